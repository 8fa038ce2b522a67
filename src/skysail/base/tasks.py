"""Run background work so that one error does not end the process."""

from __future__ import annotations

import logging
from collections.abc import Awaitable

log = logging.getLogger(__name__)


async def survive(work: Awaitable[None], what: str) -> bool:
    """Await `work` and log its exception. Returns whether it succeeded. Cancellation passes through."""
    try:
        await work
    except Exception:
        log.exception("background task failed", extra={"what": what})
        return False
    return True
