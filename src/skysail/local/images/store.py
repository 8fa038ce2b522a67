"""Where a cluster's rules and everybody's environments are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from skysail.local.control_plane.build import cache_folder
from skysail.local.images.builder import Builder
from skysail.local.images.environments import Environments
from skysail.local.images.rules import Rules


def open_in(home: Path, env: Mapping[str, str]) -> tuple[Rules, Environments]:
    """Rules belong to a home; environments are large and the same for all of them, so they are in the cache."""
    rules = Rules(home / "images.json")
    return rules, Environments(rules, Builder(cache_folder(env) / "environments", env))
