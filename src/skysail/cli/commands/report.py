"""`skysail report`: collect versions, settings, conditions, events and logs into one archive."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skysail.cli.options import ContextOption, KubeconfigOption, OperatorNamespaceOption

if TYPE_CHECKING:
    from skysail.kube.client.client import Client


def report(
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("skysail-report.tar.gz"),
    operator_namespace: OperatorNamespaceOption = "skysail-system",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Write an archive for a bug report: versions, settings, conditions, events, logs, and the checks of `doctor`.

    Specs, annotations and Secrets are left out, and credentials in logs are masked. Look at it before you send it.
    """
    import asyncio
    import os

    from skysail.cli import cluster, dotenv
    from skysail.cli.doctor import checks, registry
    from skysail.cli.doctor.cluster import CLUSTER
    from skysail.cli.report import collector, contents, local_logs
    from skysail.local.cluster.home import Home

    async def call(client: Client) -> dict[str, str]:
        return await collector.collect(client, operator_namespace)

    environment = dotenv.environment(os.environ)
    access = cluster.access(kubeconfig, context)
    files = cluster.run_client(access, call) | local_logs.collect(Home.of(None, os.environ), access)
    doctor_context = checks.DoctorContext(
        environment=environment, operator_namespace=operator_namespace, kubeconfig=kubeconfig, context=context
    )
    rows = asyncio.run(registry.run(CLUSTER, doctor_context))
    files["doctor.txt"] = "\n".join(checks.render([rows])) + "\n"
    secrets = {name: value for name, value in environment.items() if name.endswith(("_TOKEN_ID", "_SECRET", "_KEY"))}
    output.write_bytes(contents.archive({name: contents.masked(text, secrets) for name, text in files.items()}))
    output.chmod(0o600)
    typer.echo(f"{output} has {len(files)} files, without secrets. Look at it before you send it.")
