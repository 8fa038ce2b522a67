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

    from skysail.kube.errors import KubeError
    from skysail.local.census import census
    from skysail.local.control import Control
    from skysail.local.errors import NotRunning
    from skysail.local.home import Home

    place = Home.of(home, os.environ)
    if not place.is_taken():
        raise NotRunning(f"No cluster runs in {place.root}: `skysail up` starts one.")
    shown = Control(place.control).status()
    console = Console()
    console.print(f"{shown.url} ({_state(shown)}), data in {place.root}", soft_wrap=True)
    console.print(_units(shown, time.time()))
    for unit in shown.units:
        if unit.crash is not None:
            console.print(f"{unit.name} ended {_age(time.time() - unit.crash.at)} ago ({unit.crash.cause}), with:")
            console.print(unit.crash.log_tail, markup=False, highlight=False)
    if not shown.is_ready:
        return
    try:
        console.print(_objects(asyncio.run(census(place.kubeconfig))))
    except KubeError as error:
        words = f"The API server does not answer as it should: {error}. {place.logs}/kube-apiserver.log may tell why."
        console.print(words, markup=False, highlight=False, soft_wrap=True)


def _state(shown: HullStatus) -> str:
    """What people look for first: whether they can work with it."""
    if not shown.is_ready:
        return "starting"
    away = [unit.name for unit in shown.units if unit.state != "running"]
    return f"not running: {', '.join(away)}" if away else "ready"


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
