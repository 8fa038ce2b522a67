"""`skysail shell`: look around where the cluster runs."""

from __future__ import annotations

from typing import Annotated

import typer

from skysail.cli.up import HomeOption


def shell(
    command: Annotated[list[str] | None, typer.Argument(help="What to run [default: your shell].")] = None,
    home: HomeOption = None,
) -> None:
    """Run a shell, or a command, inside the network of the cluster. Write -- before a command that has flags."""
    import os

    from skysail.local import visitor
    from skysail.local.control import Control
    from skysail.local.errors import NotRunning
    from skysail.local.home import Home
    from skysail.local.net import egress, names
    from skysail.local.plane import credentials

    place = Home.of(home, os.environ)
    if not place.is_taken():
        raise NotRunning(f"No cluster runs in {place.root}: `skysail up` starts one.")
    outer = Control(place.control).status().pid
    env = {
        **os.environ,
        **egress.environment(),
        "SKYSAIL_HOME": str(place.root),
        "KUBECONFIG": str(credentials.inside_path(place, "admin")),
        "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin",
    }
    program = command or [os.environ.get("SHELL", "/bin/sh")]
    raise typer.Exit(visitor.run(outer, program, env, resolv_conf=names.resolv_conf("default")))
