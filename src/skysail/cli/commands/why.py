"""`skysail why`: explain the state of a training, a model, a pod or a claim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from skysail.cli.options import ContextOption, KubeconfigOption, NamespaceOption

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from skysail.kube.api.objects import Object
    from skysail.kube.client.client import Client


def why(
    name: Annotated[
        str, typer.Argument(metavar="[KIND/]NAME", help="A TrainingJob, model, pod or claim: its name, or kind/name.")
    ],
    namespace: NamespaceOption = "default",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Explain why an object is pending or has failed, and what to do."""
    from skysail.cli import cluster, lookup, pod_warnings
    from skysail.cli.console import open_console
    from skysail.kinds.training.api.training_job import TrainingJob
    from skysail.kube.api.workloads import Pod

    access = cluster.access(kubeconfig, context)

    async def call(client: Client) -> tuple[Object, list[str]]:
        found = await lookup.find(client, namespace, name)
        if isinstance(found, TrainingJob):
            return found, await pod_warnings.read(client, found)
        return found, await pod_warnings.of_pod(client, found) if isinstance(found, Pod) else []

    found, warnings = cluster.run_client(access, call)
    console = open_console()
    for part in _parts(found):
        console.print(part, soft_wrap=True, markup=False)
    for warning in warnings:
        console.print(f"Warning: {warning}", soft_wrap=True, markup=False, highlight=False)


def _parts(found: Object) -> Iterable[RenderableType]:
    from skysail.base import clock
    from skysail.claims.types import CloudInstance
    from skysail.cli import explanations
    from skysail.cli.diagnosis import diagnosis
    from skysail.kinds.training.api.training_job import TrainingJob
    from skysail.kube.api.workloads import Pod

    if isinstance(found, TrainingJob):
        return diagnosis(found, clock.now())
    if isinstance(found, Pod):
        return explanations.pod(found)
    if isinstance(found, CloudInstance):
        return explanations.claim(found)
    return explanations.model(found)  # type: ignore[arg-type]
