"""The recursion limit of Skysail's processes."""

from __future__ import annotations

import sys

# The API server stores and returns objects that are nested up to 10,000 levels deep. Python's default recursion limit
# is a tenth of that, so one such object of one tenant would break the watch for all tenants.
MAX_NESTING = 10_000


def raise_recursion_limit() -> None:
    """Raise the recursion limit of this process: decoders need one frame per level, and callers need some more."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 2 * MAX_NESTING))
