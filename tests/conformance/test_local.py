"""The provider `local` passes the suite, and leaves nothing behind after any of it."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from tests.conformance.local import local_provider
from tests.conformance.provider import ProviderConformance
from tests.conformance.provider_harness import ProviderHarness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class TestLocal(ProviderConformance):
    @pytest.fixture
    async def talk(self, tmp_path: Path) -> AsyncIterator[ProviderHarness]:
        before = descriptors()
        async with local_provider(tmp_path) as provider:
            yield ProviderHarness(provider, image="busybox:1.36", python_image="python:3")
        await settle(before)
        assert descriptors() <= before
        assert [path for part in ("runs", "volumes", "memory") for path in (tmp_path / part).glob("*")] == []


async def settle(wanted: int) -> None:
    """What is closed goes some turns of the loop later. What other tests left may go at any time, too."""
    for _ in range(1000):
        if descriptors() <= wanted:
            return
        await asyncio.sleep(0.01)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (names are wanted)
