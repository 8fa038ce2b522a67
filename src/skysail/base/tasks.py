"""What one mistake must not do: end the process, and every pod, node and cloud of it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable

log = logging.getLogger(__name__)


async def survive(work: Awaitable[None], what: str) -> bool:
    """Await, and tell whether it went well. The broad `except` of everything that is no loop; cancelling passes."""
    try:
        await work
    except Exception:
        log.exception("failed", extra={"what": what})
        return False
    return True
