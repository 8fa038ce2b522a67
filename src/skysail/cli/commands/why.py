"""`skysail why`: explain the state of a training, a model, a pod or a claim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from skysail.cli.options import ContextOption, KubeconfigOption, NamedOutputFormat, NamedOutputOption, NamespaceOption

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from skysail.cli.lookup import Found
    from skysail.kube.client.client import Client


def why(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[KIND/]NAME", help="An object of any kind of Skysail, or a pod: its name, or kind/name."
        ),
    ],
    namespace: NamespaceOption = "default",
    output: NamedOutputOption = NamedOutputFormat.TEXT,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Explain why an object is pending or has failed, and what to do."""
    from skysail.cli import cluster, lookup, pod_warnings
    from skysail.cli.console import open_console
    from skysail.kinds.training.api.training_job import TrainingJob
    from skysail.kube.api.workloads import Pod

    access = cluster.access(kubeconfig, context)

    async def call(client: Client) -> tuple[Found, list[str]]:
        found = await lookup.find(client, namespace, name)
        if isinstance(found.object, TrainingJob):
            return found, await pod_warnings.read(client, found.object)
        return found, await pod_warnings.of_pod(client, found.object) if isinstance(found.object, Pod) else []

    found, warnings = cluster.run_client(access, call)
    if output is not NamedOutputFormat.TEXT:
        typer.echo(_for_programs(found, warnings, output))
        return
    console = open_console()
    for part in _parts(found):
        console.print(part, soft_wrap=True, markup=False)
    for warning in warnings:
        console.print(f"Warning: {warning}", soft_wrap=True, markup=False, highlight=False)


def _for_programs(found: Found, warnings: list[str], output: NamedOutputFormat) -> str:
    """Return the name for kubectl, or a JSON object with the same text as for people."""
    import io

    import msgspec
    from rich.console import Console

    resource, metadata = found.resource, found.object.metadata
    kind = f"{resource.kind.lower()}.{resource.group}" if resource.group else resource.kind.lower()
    if output is NamedOutputFormat.NAME:
        return f"{kind}/{metadata.name}"
    text = Console(file=io.StringIO(), width=200)
    for part in _parts(found):
        text.print(part, soft_wrap=True, markup=False, highlight=False)
    assert isinstance(text.file, io.StringIO)
    row = {
        "kind": resource.kind,
        "namespace": metadata.namespace,
        "name": metadata.name,
        "resource": f"{kind}/{metadata.name}",
        "explanation": text.file.getvalue().splitlines(),
        "warnings": warnings,
        "status": msgspec.to_builtins(getattr(found.object, "status", None)),
    }
    return msgspec.json.format(msgspec.json.encode(row)).decode()


def _parts(found: Found) -> Iterable[RenderableType]:
    from skysail.base import clock
    from skysail.claims.types import CloudInstance
    from skysail.cli import explanations
    from skysail.cli.diagnosis import diagnosis
    from skysail.kinds.serving.api.types import MLModel, ModelDeployment
    from skysail.kinds.training.api.training_job import TrainingJob
    from skysail.kube.api.workloads import Pod

    match found.object:
        case TrainingJob() as job:
            return diagnosis(job, clock.now())
        case Pod() as pod:
            return explanations.pod(pod)
        case CloudInstance() as claim:
            return explanations.claim(claim)
        case ModelDeployment() | MLModel() as model:
            return explanations.model(model)
        case _:
            return explanations.other(found.resource.kind, found.object)
