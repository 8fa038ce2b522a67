"""Run background work so that one error does not end the process."""

from __future__ import annotations

import logging
from collections.abc import Awaitable

log = logging.getLogger(__name__)


async def run_logged(awaitable: Awaitable[None], description: str) -> bool:
    """Await `awaitable` and log its exception. Returns whether it succeeded. Cancellation passes through."""
    try:
        await awaitable
    except Exception:
        log.exception("background task failed", extra={"what": description})
        return False
    return True
