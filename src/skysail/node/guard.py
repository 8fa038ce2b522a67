"""What a mistake of ours must not do: end the process, and every pod of the node with it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable

log = logging.getLogger(__name__)


async def survive(work: Awaitable[None], what: str) -> bool:
    """Await, and tell whether it went well. The one broad `except` of the agent's process; cancelling passes."""
    try:
        await work
    except Exception:
        log.exception("failed", extra={"what": what})
        return False
    return True
