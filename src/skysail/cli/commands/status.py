"""`skysail status`: components and restarts, objects, models, and cloud costs of the local cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from skysail.cli.commands.up import HomeOption
from skysail.cli.durations import age
from skysail.cli.options import NamedOutputFormat, NamedOutputOption

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from skysail.local.cluster.control_client import LocalClusterStatus
    from skysail.local.cluster.home import Home
    from skysail.local.cluster.supervisor import UnitStatus
    from skysail.local.reports.cloud_costs import CloudCosts

# A component that has run this long after a crash has recovered: the table still counts the restart.
_RECENT_SECONDS = 600.0


def status(home: HomeOption = None, output: NamedOutputOption = NamedOutputFormat.TEXT) -> None:
    """Show the cluster on this machine."""
    import asyncio
    import os
    import time

    from skysail.cli.console import open_console
    from skysail.kube.client.errors import KubeError
    from skysail.local.cluster.control_client import Control
    from skysail.local.cluster.home import Home
    from skysail.local.errors import NotRunning
    from skysail.local.reports.object_counts import count_objects

    place = Home.of(home, os.environ)
    if not place.is_taken():
        raise NotRunning(f"No cluster runs in {place.root}: `skysail up` starts one.")
    cluster_status = Control(place.control).status()
    if output is not NamedOutputFormat.TEXT:
        counts = asyncio.run(count_objects(place.kubeconfig)) if cluster_status.is_ready else {}
        typer.echo(_for_programs(cluster_status, counts, output))
        return
    console = open_console()
    console.print(f"{cluster_status.url} ({_state(cluster_status)}), data in {place.root}", soft_wrap=True)
    console.print(_units(cluster_status, time.time()))
    for unit in cluster_status.units:
        if unit.crash is not None and _is_current(unit, time.time()):
            console.print(f"{unit.name} ended {age(time.time() - unit.crash.at)} ago ({unit.crash.cause}), with:")
            console.print(unit.crash.log_tail, markup=False, highlight=False)
    if not cluster_status.is_ready:
        return
    try:
        _print_content(place, console)
    except KubeError as error:
        words = f"The request to the API server failed: {error}. See {place.logs}/kube-apiserver.log."
        console.print(words, markup=False, highlight=False, soft_wrap=True)


def _print_content(place: Home, console: Console) -> None:
    """Print objects, models and clouds. Raises KubeError."""
    import asyncio
    import time

    from skysail.cli import model_table
    from skysail.cli.cluster import connected
    from skysail.kube.client import kubeconfig
    from skysail.local.reports import cloud_costs, node_limits
    from skysail.local.reports.object_counts import count_objects

    console.print(_objects(asyncio.run(count_objects(place.kubeconfig))))
    if limits := asyncio.run(node_limits.read(place.kubeconfig)):
        console.print(limits, markup=False, highlight=False, soft_wrap=True)
    model_rows = asyncio.run(connected(kubeconfig.from_file(place.kubeconfig), model_table.read))
    if model_rows:
        console.print(model_table.table(model_rows))
    clouds = asyncio.run(cloud_costs.read(place.kubeconfig, time.time()))
    if clouds:
        console.print(_clouds(clouds))
        for sentence in (*_outages(clouds), *_orphans(clouds), _bill(clouds)):
            console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def _for_programs(status: LocalClusterStatus, counts: dict[str, int], output: NamedOutputFormat) -> str:
    """Return the names of the components, or all facts as JSON."""
    import msgspec

    if output is NamedOutputFormat.NAME:
        return "\n".join(unit.name for unit in status.units)
    facts = {**msgspec.to_builtins(status), "state": _state(status), "objects": counts}
    return msgspec.json.format(msgspec.json.encode(facts)).decode()


def _state(status: LocalClusterStatus) -> str:
    """Return the overall state of the cluster."""
    if not status.is_ready:
        return "starting"
    away = [unit.name for unit in status.units if unit.state != "running"]
    return f"not running: {', '.join(away)}" if away else "ready"


def _is_current(unit: UnitStatus, now: float) -> bool:
    """Return whether a crash is worth a message: the component is down, or has not run long since."""
    return unit.state != "running" or unit.crash is None or now - unit.crash.at < _RECENT_SECONDS


def _units(status: LocalClusterStatus, now: float) -> Table:
    from skysail.cli import console

    table = console.table("component", "state", "restarts", "age")
    for unit in status.units:
        lives = age(now - unit.started) if unit.started else ""
        table.add_row(unit.name, unit.state, str(unit.restarts), lives)
    return table


def _objects(counts: dict[str, int]) -> Table:
    from skysail.cli import console

    table = console.table("kind", "objects")
    for kind, count in sorted(counts.items()):
        table.add_row(kind, str(count))
    return table


def _clouds(clouds: list[CloudCosts]) -> Table:
    from rich.table import Column, Table

    node = Column("node", overflow="fold")
    table = Table(Column("cloud", overflow="fold"), node, "account", "reachable", "instances", "USD/h", "USD so far")
    for cloud_costs in clouds:
        table.add_row(
            cloud_costs.cloud,
            cloud_costs.node,
            cloud_costs.account,
            "no" if cloud_costs.outage else "yes",
            f"{cloud_costs.live}, {cloud_costs.unknown} unknown" if cloud_costs.unknown else str(cloud_costs.live),
            f"{cloud_costs.usd_per_hour:.2f}",
            f"{cloud_costs.usd:.4f}",
        )
    return table


def _outages(clouds: list[CloudCosts]) -> list[str]:
    """Return the outages as lines below the table, because a column of sentences is too narrow."""
    return [
        f"{cloud_costs.node} cannot be reached: {cloud_costs.outage}" for cloud_costs in clouds if cloud_costs.outage
    ]


def _orphans(clouds: list[CloudCosts]) -> list[str]:
    return [f"{cloud_costs.node}: {cloud_costs.orphans}" for cloud_costs in clouds if cloud_costs.orphans]


def _bill(clouds: list[CloudCosts]) -> str:
    """Say whether the prices are real, so that a simulated price is never taken for a bill."""
    from skysail.cli.clouds.cloud_objects import nothing_paid_note

    if all(cloud_costs.is_free for cloud_costs in clouds):
        return nothing_paid_note(cloud_costs.account for cloud_costs in clouds)
    if any(cloud_costs.is_free for cloud_costs in clouds):
        return "Simulated clouds and stand-ins cost nothing. Real clouds bill their own prices, also for deleted pods."
    return "These are real accounts. Deleted pods are not in the sums: see the clouds' own bills."
