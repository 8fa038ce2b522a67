"""One contract, two servers: what holds for the real API server holds for the model, case by case."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.catalogue import cases

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.contract.api_dsl import Api
    from tests.contract.servers import Server


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in cases().items()])
def test_the_server_keeps_the_contract(server: Server, case: Callable[[Api], Awaitable[None]]) -> None:
    server.run(case)
