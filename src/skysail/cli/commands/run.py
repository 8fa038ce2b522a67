"""`skysail run`: run the operator in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    kubeconfig: Annotated[
        str | None, typer.Option(help="Path of the kubeconfig; by default as kubectl finds it.")
    ] = None,
    context: Annotated[str | None, typer.Option(help="Context in the kubeconfig; by default the current one.")] = None,
    namespace: Annotated[list[str] | None, typer.Option(help="Watch this namespace only; may be repeated.")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file with `name: value` lines.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_format: Annotated[str | None, typer.Option(help="auto, json or text.")] = None,
    operator_namespace: Annotated[str | None, typer.Option(help="Namespace of the operator's own objects.")] = None,
    identity: Annotated[str | None, typer.Option(help="Name of this replica.")] = None,
    single_replica: Annotated[
        bool | None, typer.Option(help="Only one replica runs: take over the lease at once.")
    ] = None,
    health_port: Annotated[
        list[int] | None, typer.Option(help="Port of /healthz, /readyz and /metrics; may be repeated.")
    ] = None,
    webhook_port: Annotated[int | None, typer.Option(help="Port of the admission server.")] = None,
    webhook_host: Annotated[
        str | None, typer.Option(help="Address at which the API server and pods reach this process.")
    ] = None,
    progress_port: Annotated[
        int | None, typer.Option(help="Port for progress reports of TrainingJobs; 0 switches them off.")
    ] = None,
    resync_seconds: Annotated[float | None, typer.Option(help="Seconds between two resyncs.")] = None,
    audit_token: Annotated[str | None, typer.Option(help="File with the token that POST /audit requires.")] = None,
    drain_seconds: Annotated[
        float | None, typer.Option(help="Seconds for which admission is still served after SIGTERM.")
    ] = None,
    webhooks: Annotated[bool | None, typer.Option(help="Serve admission webhooks.")] = None,
    node_address: Annotated[
        str | None, typer.Option(help="Address at which the API server reaches this process for logs and exec.")
    ] = None,
    node_certificate: Annotated[str | None, typer.Option(help="Certificate of the node servers.")] = None,
    node_key: Annotated[str | None, typer.Option(help="Private key of the node certificate.")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder for logs of cloud pods.")] = None,
    simulated_cloud_url: Annotated[
        str | None, typer.Option(help="Unix socket of the simulated clouds, used for clouds without credentials.")
    ] = None,
    simulated_cloud_token_file: Annotated[
        str | None, typer.Option(help="File with the token for the simulated clouds.")
    ] = None,
    mock_clouds: Annotated[
        bool | None, typer.Option(help="Pretend to run cloud pods: no cloud is called, nothing is paid.")
    ] = None,
    bridge_address: Annotated[
        str | None, typer.Option(help="Address of the bridge for Services; by default those of its pods.")
    ] = None,
    fetch_image: Annotated[str | None, typer.Option(help="Image that downloads models in their pods.")] = None,
    model_source: Annotated[
        list[str] | None,
        typer.Option(help="Private CIDR or host pattern that models may be downloaded from; may be repeated."),
    ] = None,
) -> None:
    """Run the operator. Every option is also read from the environment, as SKYSAIL_NAME."""
    import asyncio
    import os

    from skysail.app import operator
    from skysail.base import log_setup, settings
    from skysail.cli import dotenv

    os.environ.update(dotenv.environment(os.environ))
    flags = {
        "kubeconfig": kubeconfig,
        "context": context,
        "namespaces": namespace,
        "log_level": log_level,
        "log_format": log_format,
        "operator_namespace": operator_namespace,
        "identity": identity,
        "single_replica": single_replica,
        "health_ports": health_port,
        "webhook_port": webhook_port,
        "webhook_host": webhook_host,
        "progress_port": progress_port,
        "resync_seconds": resync_seconds,
        "audit_token": audit_token,
        "drain_seconds": drain_seconds,
        "webhooks": webhooks,
        "node_address": node_address,
        "node_certificate": node_certificate,
        "node_key": node_key,
        "data_dir": data_dir,
        "simulated_cloud_url": simulated_cloud_url,
        "simulated_cloud_token_file": simulated_cloud_token_file,
        "mock_clouds": mock_clouds,
        "bridge_address": bridge_address,
        "fetch_image": fetch_image,
        "allowed_model_hosts": model_source,
    }
    loaded = settings.load(flags, os.environ, config)
    log_setup.configure(loaded.log_level, loaded.log_format)
    raise typer.Exit(asyncio.run(operator.run(loaded)))
