"""`skysail status`: what runs, how often it had to be restarted, and what is in the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skysail.cli.up import HomeOption

if TYPE_CHECKING:
    from rich.table import Table

    from skysail.local.control import HullStatus


def status(home: HomeOption = None) -> None:
    """Show the cluster on this machine."""
    import asyncio
    import os
    import time

    from rich.console import Console

    from skysail.local.census import census
    from skysail.local.control import Control
    from skysail.local.errors import NotRunning
    from skysail.local.home import Home

    place = Home.of(home, os.environ)
    if not place.is_taken():
        raise NotRunning(f"No cluster runs in {place.root}: `skysail up` starts one.")
    shown = Control(place.control).status()
    console = Console()
    console.print(f"{shown.url} ({'ready' if shown.is_ready else 'starting'}), data in {place.root}")
    console.print(_units(shown, time.time()))
    for unit in shown.units:
        if unit.crash is not None:
            console.print(f"{unit.name} ended {_age(time.time() - unit.crash.at)} ago ({unit.crash.cause}), with:")
            console.print(unit.crash.log_tail, markup=False, highlight=False)
    if shown.is_ready:
        console.print(_objects(asyncio.run(census(place.kubeconfig))))


def _units(shown: HullStatus, now: float) -> Table:
    from rich.table import Table

    table = Table("component", "state", "restarts", "age")
    for unit in shown.units:
        age = _age(now - unit.started) if unit.started else ""
        table.add_row(unit.name, unit.state, str(unit.restarts), age)
    return table


def _objects(counts: dict[str, int]) -> Table:
    from rich.table import Table

    table = Table("kind", "objects")
    for kind, count in sorted(counts.items()):
        table.add_row(kind, str(count))
    return table


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds:.0f}s"
