"""Limit for the nesting of JSON from the API server.

The API server stores and returns objects that are nested up to 10,000 levels deep. Python's default recursion limit is
a tenth of that, so one such object of one tenant would break the watch for all tenants.
"""

from __future__ import annotations

import sys

DEEPEST = 10_000


def allow() -> None:
    """Raise the recursion limit of this process: decoders need one frame per level, and callers need some more."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 2 * DEEPEST))
