"""The command `runpod-controller`: the operator with the RunPod controller's flags, and with RunPod's node only."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from skysail.base import recursion_limit
from skysail.base.errors import UserError
from skysail.cli.durations import seconds

if TYPE_CHECKING:
    from skysail.base.settings import Settings

NODE = "runpod-virtual-node"
_MAX_PORT = 65535


def main() -> None:
    """Run the operator. An error that the user can fix is printed as a sentence, not as a traceback."""
    recursion_limit.raise_recursion_limit()
    try:
        application()()
    except UserError as error:
        typer.echo(f"runpod-controller: {error}", err=True)
        sys.exit(error.exit_code)


def application() -> typer.Typer:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command("runpod-controller")(run)
    return app


def address(text: str) -> tuple[str, int]:
    """Parse `host:port` or `:port`. An empty host means all addresses. Raises BadParameter."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 0 < int(port) <= _MAX_PORT:
        raise typer.BadParameter(f"{text!r} is no address: write a port such as :8080, or 127.0.0.1:8080.")
    return host.strip("[]"), int(port)


def run(
    kubeconfig: Annotated[str | None, typer.Option(help="Path of the kubeconfig; only outside the cluster.")] = None,
    reconcile_interval: Annotated[
        str, typer.Option(help="How often all objects are reconciled, in seconds or as 5m.")
    ] = "30",
    pending_job_threshold: Annotated[
        int, typer.Option(help="If more managed Jobs wait, they are offloaded at once.")
    ] = 1,
    max_pending_time: Annotated[
        str, typer.Option(help="How long a managed Job may wait before it is offloaded, in seconds or as 5m.")
    ] = "0",
    max_gpu_price: Annotated[float, typer.Option(help="Most US dollars per hour and GPU.")] = 0.5,
    health_server_address: Annotated[str, typer.Option(help="Address of /healthz, /readyz and /metrics.")] = ":8080",
) -> None:
    """Offload Jobs to RunPod: Skysail's operator with only the node runpod-virtual-node.

    All other settings of the operator are read from the environment, as SKYSAIL_NAME.
    """
    import asyncio
    import os

    from skysail.app import operator
    from skysail.base import log_setup
    from skysail.base import settings as operator_settings

    host, port = address(health_server_address)
    flags = {
        "kubeconfig": kubeconfig,
        "resync_seconds": seconds(reconcile_interval),
        "pending_job_threshold": pending_job_threshold,
        "max_pending_seconds": seconds(max_pending_time),
        "max_gpu_price": max_gpu_price,
        "health_host": host or None,
        "health_ports": [port],
    }
    loaded = only_runpod(operator_settings.load(flags, os.environ))
    log_setup.configure(loaded.log_level, loaded.log_format)
    raise typer.Exit(asyncio.run(operator.run(loaded)))


def only_runpod(settings: Settings) -> Settings:
    """Return the settings without the nodes of other clouds."""
    import msgspec

    nodes = {name: node for name, node in settings.nodes.items() if name == NODE}
    return msgspec.structs.replace(settings, nodes=nodes)


if __name__ == "__main__":
    main()
