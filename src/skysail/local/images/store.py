"""Locations of a cluster's image rules and of the shared environments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from skysail.local.control_plane.build import cache_folder
from skysail.local.images.builder import Builder
from skysail.local.images.environments import Environments
from skysail.local.images.rules import Rules


def open_in(home: Path, env: Mapping[str, str]) -> tuple[Rules, Environments]:
    """Open the rules of a home, and the environments, which are in the cache because all homes share them."""
    rules = Rules(home / "images.json")
    return rules, Environments(rules, Builder(cache_folder(env) / "environments", env))
