"""`skysail shell`: run a shell inside the local cluster's network."""

from __future__ import annotations

from typing import Annotated

import typer

from skysail.cli.commands.up import HomeOption


def shell(
    command: Annotated[list[str] | None, typer.Argument(help="Command to run [default: your shell].")] = None,
    home: HomeOption = None,
) -> None:
    """Run a shell or a command inside the network of the local cluster. Write -- before a command with flags."""
    import os

    from skysail.local.cluster import nsenter
    from skysail.local.cluster.control_client import Control
    from skysail.local.cluster.home import Home
    from skysail.local.control_plane import credentials
    from skysail.local.errors import NotRunning
    from skysail.local.network import dns_zone, egress_proxy

    place = Home.of(home, os.environ)
    if not place.is_taken():
        raise NotRunning(f"No cluster runs in {place.root}: `skysail up` starts one.")
    outer = Control(place.control).status().pid
    env = {
        **os.environ,
        **egress_proxy.environment(),
        "SKYSAIL_HOME": str(place.root),
        "KUBECONFIG": str(credentials.inside_path(place, "admin")),
        "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin",
    }
    program = command or [os.environ.get("SHELL", "/bin/sh")]
    raise typer.Exit(nsenter.run_inside(outer, program, env, resolv_conf=dns_zone.resolv_conf("default")))
