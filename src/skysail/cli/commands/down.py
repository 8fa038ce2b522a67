"""`skysail down`: stop the local cluster; the data stay unless `--purge` is given."""

from __future__ import annotations

from typing import Annotated

import typer

from skysail.cli.commands.up import HomeOption


def down(
    home: HomeOption = None,
    purge: Annotated[bool, typer.Option("--purge", help="Delete the cluster's data too.")] = False,
) -> None:
    """Stop the cluster on this machine. Does nothing if it is down already."""
    import os

    from skysail.local import launcher
    from skysail.local.cluster.home import Home

    place = Home.of(home, os.environ)
    was_up = launcher.stop(place)
    typer.echo(f"Skysail in {place.root} is down." if was_up else f"Nothing runs in {place.root}.")
    if purge:
        place.purge()
        typer.echo(f"{place.root} is deleted.")
