from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _depth() -> Iterator[None]:
    """A process may allow more levels than others: what a test does is none of the next one's business."""
    limit = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(limit)
