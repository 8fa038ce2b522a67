"""Output of web Apps over breaks."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from skysail.cloud.errors import Gone, OutcomeUnknown
from skysail.cloud.modal.web import account
from skysail.cloud.modal.web.account import WebApps

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest


def entry(at: int) -> Any:
    return SimpleNamespace(timestamp=datetime.fromtimestamp(at, UTC), source="stdout", message=f"{at}\n")


class Inventory:
    """Has the App for as long as its log has streams. Each stream but the last one breaks."""

    def __init__(self, *streams: list[int]) -> None:
        self.streams = list(streams)
        self.failures = [OutcomeUnknown("no answer")]

    async def find(self, _: str) -> Any:
        if not self.streams:
            raise Gone("The App was stopped.")
        if len(self.streams) == 1 and self.failures:
            raise self.failures.pop()
        return SimpleNamespace(
            app_id="ap-1", handle=SimpleNamespace(logs=SimpleNamespace(stream=SimpleNamespace(aio=self._stream)))
        )

    async def _stream(self) -> AsyncIterator[Any]:
        for at in self.streams.pop(0):
            yield entry(at)
        raise OSError("the connection broke")


async def test_output_of_an_app_survives_breaks_and_repeats_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(account, "_RETRY_SECONDS", 0.0)
    apps = WebApps.__new__(WebApps)
    apps.inventory = Inventory([1, 2], [2, 3], [4])  # type: ignore[assignment]
    found = [piece.data async for piece in apps.output("web.ap-1.c1")]
    assert found == [b"1\n", b"2\n", b"3\n", b"4\n"]
