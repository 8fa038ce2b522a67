"""Manifests are applied while the API server starts."""

from __future__ import annotations

import pytest

from skysail.app.install import apply_manifest
from skysail.kube.api.resources import SERVICE
from skysail.kube.client.errors import ReplyLost, Unreachable


class Interrupted:
    """A client whose first calls fail."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def apply(self, *_: object) -> None:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)


async def test_apply_manifest_after_interrupted_connections_is_retried():
    client = Interrupted(Unreachable("reset"), ReplyLost("cut"))
    await apply_manifest(client, SERVICE, {})  # type: ignore[arg-type]
    assert client.calls == 3


async def test_apply_manifest_without_any_connection_raises_the_reason():
    client = Interrupted(*(Unreachable("reset") for _ in range(100)))
    with pytest.raises(Unreachable, match="reset"):
        await apply_manifest(client, SERVICE, {})  # type: ignore[arg-type]
