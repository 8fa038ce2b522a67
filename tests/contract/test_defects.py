"""The contract can fail: worlds that break one rule each are found out by the case that is named for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.catalogue import cases
from tests.contract.defects import SEEDED
from tests.contract.servers import ModelServer

if TYPE_CHECKING:
    from tests.simulation.world import World


@pytest.mark.parametrize(("world", "name"), SEEDED.items(), ids=[world.__name__ for world in SEEDED])
def test_a_seeded_defect_is_found_by_its_case(world: type[World], name: str) -> None:
    assert _fails(ModelServer(world), name)


@pytest.mark.parametrize("name", sorted(set(SEEDED.values())))
def test_that_case_finds_nothing_in_the_sound_model(name: str) -> None:
    assert not _fails(ModelServer(), name)


def _fails(server: ModelServer, name: str) -> bool:
    try:
        server.run(cases()[name])
    except Exception:  # noqa: BLE001 (a broken server may break a case in any way)
        return True
    return False
