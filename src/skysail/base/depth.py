"""How deep JSON may be nested that others wrote.

The API server stores what anybody nests up to 10,000 levels deep, and tells of it. Python gives up at a tenth of that
by default, so one such object of one tenant would stop the watch for everybody.
"""

from __future__ import annotations

import sys

DEEPEST = 10_000


def allow() -> None:
    """For this process. Decoders need a frame for each level, and there are those of who calls them."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 2 * DEEPEST))
