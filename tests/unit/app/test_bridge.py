from __future__ import annotations

import asyncio

from skysail.app.bridge import until_named
from skysail.cloud.errors import OutcomeUnknown
from tests.support import virtual_time


class Account:
    """Knows its name after the third call."""

    name = "modal"
    account = ""

    def __init__(self) -> None:
        self.calls = 0

    async def offers(self) -> None:
        self.calls += 1
        if self.calls < 3:
            raise OutcomeUnknown("no answer")
        self.account = "workspace/default"


def test_routes_are_built_again_when_the_cloud_has_named_its_account():
    async def test() -> None:
        account, changed = Account(), asyncio.Event()
        await until_named(account, changed)  # type: ignore[arg-type]
        assert (account.calls, changed.is_set()) == (3, True)

    virtual_time.run(test())
