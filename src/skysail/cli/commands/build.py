"""`skysail build`: build the control plane before the first `up`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from skysail.local.control_plane.binaries import Binaries


def build() -> None:
    """Build the control plane into the cache, or find it there."""
    find_binaries()


def find_binaries() -> Binaries:
    """Find or build the programs of the control plane and print the progress. May take minutes."""
    import os
    import time

    from skysail.local.control_plane import binaries, build

    cache = build.cache_folder(os.environ)
    found = binaries.locate(build.BuildDependencies(env=os.environ, cache=cache, report=print_step, sleep=time.sleep))
    if found.note:
        print_step(found.note)
    return found


def print_step(step: str) -> None:
    typer.echo(f"  {step}")
