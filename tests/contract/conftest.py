"""The two servers that keep the contract. The real one comes from the fixture `cluster` of the plane tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.servers import ModelServer, PlaneServer

if TYPE_CHECKING:
    from tests.contract.servers import Server


@pytest.fixture(params=["model", pytest.param("plane", marks=pytest.mark.plane)])
def server(request: pytest.FixtureRequest) -> Server:
    if request.param == "model":
        return ModelServer()
    return PlaneServer(request.getfixturevalue("cluster"))
