from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.modal import stand_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.modal import StandInHarness


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[StandInHarness]:
    async with stand_in(tmp_path) as harness:
        yield harness
