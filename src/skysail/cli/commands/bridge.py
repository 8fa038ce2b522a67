"""`skysail bridge`: run the bridge to pods at clouds in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def bridge(
    kubeconfig: Annotated[
        str | None, typer.Option(help="Path of the kubeconfig; by default as kubectl finds it.")
    ] = None,
    context: Annotated[str | None, typer.Option(help="Context in the kubeconfig; by default the current one.")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file with `name: value` lines.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_format: Annotated[str | None, typer.Option(help="auto, json or text.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; by default all addresses.")] = None,
    health_port: Annotated[int | None, typer.Option(help="Port of /healthz, /readyz and /metrics.")] = None,
    drain_seconds: Annotated[float | None, typer.Option(help="Seconds of service after SIGTERM.")] = None,
    simulated_cloud_url: Annotated[
        str | None, typer.Option(help="Unix socket of the simulated clouds, which replace all real ones.")
    ] = None,
    simulated_cloud_token_file: Annotated[
        str | None, typer.Option(help="File with the token for the simulated clouds.")
    ] = None,
) -> None:
    """Run the bridge, which leads Services to pods at clouds. Options are also read from SKYSAIL_NAME variables."""
    import asyncio
    import os

    from skysail.app import bridge as bridge_process
    from skysail.base import log_setup, settings

    flags = {
        "kubeconfig": kubeconfig,
        "context": context,
        "log_level": log_level,
        "log_format": log_format,
        "bridge_host": host,
        "bridge_health_port": health_port,
        "drain_seconds": drain_seconds,
        "simulated_cloud_url": simulated_cloud_url,
        "simulated_cloud_token_file": simulated_cloud_token_file,
    }
    loaded = settings.load(flags, os.environ, config)
    log_setup.configure(loaded.log_level, loaded.log_format)
    raise typer.Exit(asyncio.run(bridge_process.run(loaded)))
