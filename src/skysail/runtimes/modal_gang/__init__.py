"""Shim of a gang at Modal: one rank of a clustered Function."""

from __future__ import annotations

from pathlib import Path

# Modal gets this file alone. Without a package around it, the SDK uploads nothing else of Skysail.
SHIM = Path(__file__).with_name("skysail_gang.py")
