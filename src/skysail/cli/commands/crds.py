"""`skysail crds apply`: install or update the CRDs of this version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from skysail.cli.options import ContextOption, KubeconfigOption

if TYPE_CHECKING:
    from skysail.kube.client.client import Client


def application() -> typer.Typer:
    app = typer.Typer(
        help="CRDs of Skysail's kinds.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_group)
    app.command()(apply)
    return app


def _group() -> None:
    """CRDs of Skysail's kinds."""


def apply(
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Replace CRDs of the same name that another project installed.")
    ] = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Install the CRDs of this version, or update older ones. Objects stay."""
    from skysail.app import crds
    from skysail.cli import cluster

    async def call(client: Client) -> None:
        await crds.apply(client, take_over=take_over, report=typer.echo)

    cluster.run_client(cluster.access(kubeconfig, context), call)
