"""The provider `local` passes the suite, and leaves nothing behind after any of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.conformance.local import local_provider
from tests.conformance.provider import ProviderConformance
from tests.conformance.talk import Talk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class TestLocal(ProviderConformance):
    @pytest.fixture
    async def talk(self, tmp_path: Path) -> AsyncIterator[Talk]:
        before = descriptors()
        async with local_provider(tmp_path) as provider:
            yield Talk(provider, image="busybox:1.36", python_image="python:3")
        assert descriptors() == before
        assert [path for part in ("runs", "volumes", "memory") for path in (tmp_path / part).glob("*")] == []


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (names are wanted)
