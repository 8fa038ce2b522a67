"""`skysail dev`: stand-ins for clouds in the local cluster, for your own programs."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from skysail.cli.commands.up import HomeOption
from skysail.cli.options import OutputFormat, OutputOption

if TYPE_CHECKING:
    from collections.abc import Mapping

    from skysail.cloud.simulated.ledger import Row
    from skysail.local.cluster.home import Home

LedgerOption = Annotated[bool, typer.Option("--ledger", help="Show what was created, billed and ended, and exit.")]
PrintOption = Annotated[bool, typer.Option("--print", help="Print the variables and exit, for `eval`.")]
_POLL_SECONDS = 0.2


def application() -> typer.Typer:
    app = typer.Typer(
        no_args_is_help=True, rich_markup_mode=None, help="Use stand-ins for clouds that run in the local cluster."
    )
    # With a single command, typer would drop the command's name.
    app.callback()(_no_options)
    app.command()(modal)
    app.command()(runpod)
    return app


def _no_options() -> None:
    return


def modal(
    ledger: LedgerOption = False,
    only_print: PrintOption = False,
    output: OutputOption = OutputFormat.TEXT,
    home: HomeOption = None,
) -> None:
    """Point your own programs with Modal's SDK to a stand-in. Runs until Ctrl-C, which ends no sandbox."""
    serve("modal", home, shows_ledger=ledger, only_prints=only_print, output=output)


def runpod(
    ledger: LedgerOption = False,
    only_print: PrintOption = False,  # noqa: ARG001 (the same options for every stand-in)
    output: OutputOption = OutputFormat.TEXT,
    home: HomeOption = None,
) -> None:
    """Point your own programs with RunPod's REST API to a stand-in: print the variables and exit."""
    # The stand-in has no ports of this machine: its clients use its socket.
    serve("runpod", home, shows_ledger=ledger, only_prints=True, output=output)


def serve(cloud: str, home: Path | None, *, shows_ledger: bool, only_prints: bool, output: OutputFormat) -> None:
    """Print the variables of a stand-in, and forward its ports until Ctrl-C, or until nobody reads the output."""
    import os

    from skysail.app import stand_ins
    from skysail.local.cluster.home import Home

    place = Home.of(home, os.environ)
    if shows_ledger:
        _print_ledger(stand_ins.read_ledger(place, cloud), output)
        return
    _activate(place, cloud)
    environment = stand_ins.environment(place, cloud)
    _print_environment(environment, output)
    if only_prints or output is OutputFormat.JSON:
        return
    typer.echo(f"# The stand-in for {cloud} is ready. Ctrl-C stops the forwarding of its ports.")
    try:
        _forward(place, cloud)
    except KeyboardInterrupt:
        typer.echo("# The stand-in goes on in the local cluster.")


def _activate(home: Home, cloud: str) -> None:
    """Connect once, which starts the stand-in. Raises NotRunning if the cluster is not up."""
    import socket

    from skysail.app import stand_ins
    from skysail.base.unix_sockets import reachable
    from skysail.local.errors import NotRunning

    try:
        with reachable(stand_ins.socket_file(home, cloud)) as name, socket.socket(socket.AF_UNIX) as connection:
            connection.connect(name)
    except OSError as error:
        raise NotRunning(f"No local cluster with a node runs in {home.root}: start one with `skysail up`.") from error


def _print_environment(environment: Mapping[str, str], output: OutputFormat) -> None:
    import shlex

    import msgspec

    if output is OutputFormat.JSON:
        typer.echo(msgspec.json.format(msgspec.json.encode(environment)))
        return
    for name, value in environment.items():
        typer.echo(f"export {name}={shlex.quote(value)}")


def _print_ledger(rows: list[Row], output: OutputFormat) -> None:
    from datetime import UTC, datetime

    import msgspec

    from skysail.cli import text_table

    if output is OutputFormat.JSON:
        typer.echo(msgspec.json.format(msgspec.json.encode(rows)))
        return
    cells = [
        (
            datetime.fromtimestamp(row.at, UTC).isoformat(timespec="seconds"),
            row.verb,
            row.instance,
            row.claim,
            f"{row.usd:.6f}" if row.verb in {"create", "ended"} else "",
            f"{row.exit.reason} {row.exit.code}" if row.exit else row.note,
        )
        for row in rows
    ]
    header = ("AT", "EVENT", "INSTANCE", "CLAIM", "USD", "NOTE")
    typer.echo("\n".join(text_table.render(header, cells, right=("USD",))))


def _forward(home: Home, cloud: str) -> None:
    import asyncio

    asyncio.run(_forward_ports(home, cloud))


async def _forward_ports(home: Home, cloud: str) -> None:
    """Forward each port of the stand-in from the same port of this machine, also those that it opens later."""
    import asyncio
    import functools
    import sys

    from skysail.app import stand_ins
    from skysail.local.cluster import tcp_proxy
    from skysail.local.cluster.control_client import Control
    from skysail.local.errors import NotRunning

    servers: dict[int, tcp_proxy.TcpProxy] = {}
    while home.is_taken() and not _is_closed(sys.stdout):
        for port in stand_ins.ports(home, cloud):
            if port in servers:
                continue
            listener = tcp_proxy.open_listener(port)
            if listener.getsockname()[1] != port:
                listener.close()
                raise NotRunning(f"Port {port} of this machine is in use: end the program that listens there.")

            dial = functools.partial(asyncio.to_thread, Control(home.control).dial, "127.0.0.1", port)
            servers[port] = await tcp_proxy.serve(listener, dial)
        await asyncio.sleep(_POLL_SECONDS)


def _is_closed(output: IO[str]) -> bool:
    """Return whether nobody reads the output any more, such as after `| head`."""
    import select

    poll = select.poll()
    try:
        poll.register(output, 0)
    except (OSError, ValueError):  # no file of the system
        return False
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
