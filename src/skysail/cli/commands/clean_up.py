"""`skysail clean-up`: delete what an uninstalled operator left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from skysail.cli.options import ContextOption, KubeconfigOption, OperatorNamespaceOption

if TYPE_CHECKING:
    from skysail.kube.client.client import Client


def clean_up(
    timeout: Annotated[
        str, typer.Option(help="How long to wait until the operator has stopped, in seconds or as 5m.")
    ] = "2m",
    operator_namespace: OperatorNamespaceOption = "skysail-system",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Delete the nodes and other objects that the operator created for itself, after it was uninstalled.

    `helm uninstall` runs it. Exit code 1 if the operator still runs, or if a claim is left.
    """
    from skysail.cli import cluster, durations
    from skysail.cli.clouds import cleanup

    seconds = durations.seconds(timeout)

    async def call(client: Client) -> None:
        await cleanup.clean_up(client, operator_namespace, seconds=seconds, report=typer.echo)

    cluster.run_client(cluster.access(kubeconfig, context), call)
