"""`skysail up`: a real Kubernetes control plane with Skysail's operator, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from skysail.local.home import Home

HomeOption = Annotated[
    Path | None, typer.Option("--home", help="Folder of the cluster [default: $SKYSAIL_HOME, else ~/.skysail].")
]


def up(
    home: HomeOption = None,
    attach: Annotated[bool, typer.Option("--attach", help="Follow the logs afterwards; Ctrl-C leaves it up.")] = False,
    without_operator: Annotated[bool, typer.Option("--without-operator", help="The control plane only.")] = False,
    audit: Annotated[bool, typer.Option("--audit", help="Log every request in logs/audit.jsonl.")] = False,
) -> None:
    """Start a Kubernetes cluster with Skysail on this machine. Up already is fine."""
    import os
    import time

    from skysail.local import launch
    from skysail.local.box.tools import Tools
    from skysail.local.home import Home
    from skysail.local.plane import binaries, build
    from skysail.local.plane.flags import PlaneOptions

    place = Home.of(home, os.environ)
    if not without_operator:
        Tools.find(os.environ.get("PATH", ""))  # before anything is built: without them there would be no pods
    began = time.monotonic()
    around = build.Surroundings(env=os.environ, cache=build.cache_folder(os.environ), say=_say, pause=time.sleep)
    found = binaries.locate(around)
    if found.note:
        _say(found.note)
    settings = launch.HullSettings(
        home=str(place.root),
        binaries=found,
        plane=PlaneOptions(audit=audit),
        with_operator=not without_operator,
        with_node=not without_operator,
    )
    if place.is_taken() and (audit or without_operator):
        _say("it is up already: --audit and --without-operator count from the next `skysail down` and `up`")
    status = launch.start(settings, _say)
    typer.echo(_next_steps(place, status.url, time.monotonic() - began))
    if attach:
        _follow(place)


def _say(step: str) -> None:
    typer.echo(f"  {step}")


def _next_steps(home: Home, url: str, seconds: float) -> str:
    return f"""\
Skysail is up at {url} (took {seconds:.1f} s). Next:
  skysail kubectl get pods,nodes       any kubectl command
  skysail status                       what runs, and what is in the cluster
  export KUBECONFIG={home.kubeconfig}
  skysail down                         stop it; the data stay (--purge deletes them)"""


def _follow(home: Home) -> None:
    """Print what the logs get, until Ctrl-C."""
    import time

    logs = {path: path.stat().st_size for path in sorted(home.logs.glob("*.log"))}
    try:
        while home.is_taken():
            for path, seen in logs.items():
                with path.open() as log:
                    log.seek(seen)
                    for line in log:
                        typer.echo(f"{path.stem}: {line}", nl=False)
                    logs[path] = log.tell()
            time.sleep(0.2)
    except KeyboardInterrupt:
        typer.echo("still up; `skysail down` stops it")
