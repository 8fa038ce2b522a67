"""`skysail rollback`: serve an earlier revision of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from skysail.cli.options import ContextOption, KubeconfigOption, ModelArgument, NamespaceOption

if TYPE_CHECKING:
    from skysail.cli.cluster import Model
    from skysail.kube.client.client import Client


def rollback(
    name: ModelArgument,
    to: Annotated[
        int | None, typer.Option("--to", min=1, help="Number of the revision [default: the previous one].")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Serve the revision of the spec again.")] = False,
    namespace: NamespaceOption = "default",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Serve an earlier revision of a model, without validating it again.

    An MLModel has the revision on its PVC. The servers of a ModelDeployment download it again from its URI.
    """
    if undo and to is not None:
        raise typer.BadParameter("--undo and --to exclude each other: give one of them.")
    from skysail.cli import cluster
    from skysail.cli.revision_history import choose, failed_before, history, revision_name

    async def call(client: Client) -> str:
        model = await cluster.model(client, namespace, name)
        if undo:
            await _pin(client, model, None)
            return f"{name} follows its spec again.{failed_before(model, await history(client, model))}"
        revision = choose(model, await history(client, model), to)
        await _pin(client, model, revision.number)
        undone = f"skysail rollback {name} -n {namespace} --undo"
        return f"{name} goes back to revision {revision_name(model, revision)}. `{undone}` reverts this."

    typer.echo(cluster.run_client(cluster.access(kubeconfig, context), call))


async def _pin(client: Client, model: Model, number: int | None) -> None:
    from skysail.kinds.serving.api.types import ML_MODEL, MODEL_DEPLOYMENT, ModelDeployment
    from skysail.kube.api.objects import Object

    kind = MODEL_DEPLOYMENT if isinstance(model, ModelDeployment) else ML_MODEL
    patch = {"metadata": {"uid": model.metadata.uid}, "spec": {"rollbackTo": number}}
    await client.merge_patch(kind.resource, model.metadata.namespace, model.metadata.name, patch, Object)
