"""`skysail drain`: end everything that costs money."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from skysail.base.errors import UserError
from skysail.cli.options import (
    ContextOption,
    KubeconfigOption,
    NamedOutputFormat,
    NamedOutputOption,
    OperatorNamespaceOption,
)

if TYPE_CHECKING:
    from skysail.cli.clouds.draining import DrainReport, Survey
    from skysail.kube.client.client import Client

LEFT = 1


class NotConfirmed(UserError):
    """The user did not confirm the drain."""


def drain(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    timeout: Annotated[
        str, typer.Option(help="How long to wait until all instances are terminated, in seconds or as 5m.")
    ] = "10m",
    operator_namespace: OperatorNamespaceOption = "skysail-system",
    output: NamedOutputOption = NamedOutputFormat.TEXT,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """End everything that costs money at clouds, for example before Skysail is uninstalled.

    Stops all launches, deletes the pods on the nodes of clouds and waits until the operator has terminated their
    instances. Then removes Skysail's finalizers; while an operator runs, those for volumes at clouds stay. Exit code 1
    if something is left.
    """
    import msgspec

    from skysail.cli import cluster, durations
    from skysail.cli.clouds import drain_text, draining

    seconds = durations.seconds(timeout)

    async def call(client: Client) -> DrainReport:
        before = await draining.survey(client, operator_namespace)
        if not yes:
            _confirm(before)
        return await draining.drain(client, before, seconds=seconds, report=lambda line: typer.echo(line, err=True))

    access = cluster.access(kubeconfig, context)
    done = cluster.run_client(access, call)
    if output is NamedOutputFormat.JSON:
        typer.echo(msgspec.json.format(msgspec.json.encode(done)))
    elif output is NamedOutputFormat.NAME:
        typer.echo("".join(f"{name}\n" for name in draining.names(done)), nl=False)
    else:
        typer.echo(cluster.with_local_kubectl("\n".join(drain_text.render(done)), access))
    if not done.is_complete:
        raise typer.Exit(LEFT)


def _confirm(before: Survey) -> None:
    import sys

    from skysail.cli.clouds import drain_text

    typer.echo(drain_text.question(before), err=True)
    if not sys.stdin.isatty():
        raise NotConfirmed("Nothing was ended: confirm with --yes, because no terminal can be asked.")
    if not typer.confirm("Continue?", err=True):
        raise NotConfirmed("Nothing was ended.")
