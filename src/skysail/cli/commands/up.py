"""`skysail up`: start a Kubernetes control plane with Skysail's operator on this machine."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skysail.cli.commands.build import find_binaries, print_step

if TYPE_CHECKING:
    from skysail.local.cluster.control_client import LocalClusterStatus
    from skysail.local.cluster.home import Home


class Part(StrEnum):
    """Part of a local cluster that can be left out."""

    OPERATOR = "operator"


HomeOption = Annotated[
    Path | None, typer.Option("--home", help="Folder of the cluster [default: $SKYSAIL_HOME, else ~/.skysail].")
]


def up(
    home: HomeOption = None,
    attach: Annotated[
        bool, typer.Option("--attach", help="Follow the logs afterwards; Ctrl-C leaves the cluster up.")
    ] = False,
    without_operator: Annotated[bool, typer.Option("--without-operator", help="Start the control plane only.")] = False,
    without: Annotated[
        Part | None,
        typer.Option(help="operator: leave out the operator and Skysail's kinds, to install the chart instead."),
    ] = None,
    audit: Annotated[bool, typer.Option("--audit", help="Log every request in logs/audit.jsonl.")] = False,
    stand_in: Annotated[
        list[str] | None,
        typer.Option("--stand-in", help="Use a stand-in for this cloud's service instead of its simulated cloud."),
    ] = None,
) -> None:
    """Start a Kubernetes cluster with Skysail on this machine. Does nothing if it is up already."""
    import os
    import time

    from skysail.base import settings as operator_settings
    from skysail.cli import dotenv
    from skysail.local import launcher
    from skysail.local.bubblewrap.host_tools import HostTools
    from skysail.local.cluster.home import Home
    from skysail.local.control_plane.flags import PlaneOptions

    os.environ.update(dotenv.environment(os.environ))
    place = Home.of(home, os.environ)
    with_node, with_operator = not without_operator, not (without_operator or without)
    if with_node:
        HostTools.find(os.environ.get("PATH", ""))  # before the build: pods cannot start without these programs
    chosen = _stand_ins(stand_in or [])
    mock_clouds = with_operator and operator_settings.is_mock_mode(os.environ)
    began = time.monotonic()
    status = launcher.join(place, print_step)
    if status is None:
        place.prepare()  # before a build that takes minutes
        settings = launcher.LocalClusterSettings(
            home=str(place.root),
            binaries=find_binaries(),
            plane=PlaneOptions(audit=audit),
            with_operator=with_operator,
            with_node=with_node,
            with_kinds=without is None,
            mock_clouds=mock_clouds,
            stand_ins=chosen,
        )
        try:
            status = launcher.start(settings, print_step)
        except KeyboardInterrupt:
            print_step("the cluster keeps starting in the background; `skysail down` stops it")
            raise
    wanted = (with_operator, audit, mock_clouds, chosen)
    if (status.with_operator, status.with_audit, status.mock_clouds, status.stand_ins) != wanted:
        print_step(_otherwise(status))
    typer.echo(f"Skysail is up at {status.url} (took {time.monotonic() - began:.1f} s). Next:\n{_next_steps(place)}")
    if attach:
        _follow(place)


def _stand_ins(names: list[str]) -> tuple[str, ...]:
    from skysail.app.stand_ins import CLOUDS
    from skysail.local.errors import Misused

    for name in names:
        if name not in CLOUDS:
            raise Misused(f"There is no stand-in for {name!r}: use one of {', '.join(CLOUDS)}.")
    return tuple(sorted(set(names)))


def _otherwise(status: LocalClusterStatus) -> str:
    operator = "with" if status.with_operator else "without"
    log = "with" if status.with_audit else "without"
    pretence = "pretended" if status.mock_clouds else "simulated"
    served = f" and stand-ins for {', '.join(status.stand_ins)}" if status.stand_ins else ""
    clouds = f", with {pretence} clouds{served}" if status.with_operator else ""
    return (
        f"the cluster was up already, {operator} its operator and {log} an audit log{clouds}: "
        "run `skysail down` first to change that"
    )


def _next_steps(home: Home) -> str:
    """Return commands that can be copied as they are."""
    import os
    import shlex
    import shutil
    import sys
    from pathlib import Path

    from skysail.local.cluster.home import Home

    beside = shlex.quote(os.path.relpath(Path(sys.executable).parent / "skysail"))
    skysail = "skysail" if shutil.which("skysail") else beside
    lines = [
        (f"{skysail} kubectl get pods,nodes", "any kubectl command"),
        (f"{skysail} status", "components and objects of the cluster"),
        (f"export KUBECONFIG={shlex.quote(str(home.kubeconfig))}", "for your own tools"),
        (f"{skysail} down", "stop it; the data stay (--purge deletes them)"),
    ]
    if home != Home.of(None, {}):
        lines.insert(0, (f"export SKYSAIL_HOME={shlex.quote(str(home.root))}", "the cluster that the next lines use"))
    width = max(len(command) for command, _ in lines)
    return "\n".join(f"  {command:<{width}}  # {meaning}" for command, meaning in lines)


def _follow(home: Home) -> None:
    """Print new log lines until Ctrl-C."""
    import time

    from skysail.cli.log_file import LogFileFollower

    followed = {path: LogFileFollower(path) for path in home.logs.glob("*.log")}
    try:
        while home.is_taken():
            for path in sorted(home.logs.glob("*.log")):
                if path not in followed:
                    followed[path] = LogFileFollower(path, from_start=True)
                for line in followed[path].lines():
                    typer.echo(f"{path.stem}: {line}")
            time.sleep(0.2)
    except KeyboardInterrupt:
        typer.echo("still up; `skysail down` stops it")
