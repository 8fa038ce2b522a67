"""`skysail why`: explain the state of a training, a model, a pod or a claim."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from skysail.cli.options import ContextOption, KubeconfigOption, NamedOutputFormat, NamedOutputOption, NamespaceOption

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from skysail.cli.lookup import Found
    from skysail.kube.api.workloads import Pod
    from skysail.kube.client.client import Client
    from skysail.kube.client.kubeconfig import Access


class Facts(NamedTuple):
    """Facts of an explanation. `log`: the last lines of the newest pod, if it failed."""

    found: Found
    pods: Sequence[Pod] = ()
    log: Sequence[str] = ()
    warnings: Sequence[str] = ()


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
    from skysail.cli import cluster
    from skysail.cli.console import open_console

    access = cluster.access(kubeconfig, context)
    facts = cluster.run_client(access, lambda client: _read(client, namespace, name))
    if output is not NamedOutputFormat.TEXT:
        typer.echo(_for_programs(facts, output))
        return
    console = open_console()
    for part in _parts(facts):
        console.print(_with_local_kubectl(part, access), soft_wrap=True, markup=False)
    for warning in facts.warnings:
        text = cluster.with_local_kubectl(f"Warning: {warning}", access)
        console.print(text, soft_wrap=True, markup=False, highlight=False)


async def _read(client: Client, namespace: str, name: str) -> Facts:
    from skysail.cli import lookup, object_logs, pod_warnings
    from skysail.kinds.training.api.training_job import TrainingJob
    from skysail.kube.api import workloads

    found = await lookup.find(client, namespace, name)
    training = found.training or found.object
    if isinstance(training, TrainingJob):
        return Facts(found, warnings=await pod_warnings.read(client, training))
    if not isinstance(found.object, workloads.Pod | workloads.Job):
        return Facts(found)
    pods = workloads.oldest_first(await object_logs.pods(client, found))
    if not pods:
        return Facts(found)
    newest = pods[-1]
    return Facts(
        found, pods, await object_logs.last_lines_of_failed(client, newest), await pod_warnings.of_pod(client, newest)
    )


def _with_local_kubectl(part: RenderableType, access: Access) -> RenderableType:
    from rich.text import Text

    from skysail.cli import cluster

    if isinstance(part, Text):
        return Text(cluster.with_local_kubectl(part.plain, access))
    return cluster.with_local_kubectl(part, access) if isinstance(part, str) else part


def _for_programs(facts: Facts, output: NamedOutputFormat) -> str:
    """Return the name for kubectl, or a JSON object with the same text as for people."""
    import io

    import msgspec
    from rich.console import Console

    found = facts.found
    resource, metadata = found.resource, found.object.metadata
    kind = f"{resource.kind.lower()}.{resource.group}" if resource.group else resource.kind.lower()
    if output is NamedOutputFormat.NAME:
        return f"{kind}/{metadata.name}"
    text = Console(file=io.StringIO(), width=200)
    for part in _parts(facts):
        text.print(part, soft_wrap=True, markup=False, highlight=False)
    assert isinstance(text.file, io.StringIO)
    row = {
        "kind": resource.kind,
        "namespace": metadata.namespace,
        "name": metadata.name,
        "resource": f"{kind}/{metadata.name}",
        "explanation": text.file.getvalue().splitlines(),
        "warnings": facts.warnings,
        "status": msgspec.to_builtins(getattr(found.object, "status", None)),
    }
    return msgspec.json.format(msgspec.json.encode(row)).decode()


def _parts(facts: Facts) -> Iterable[RenderableType]:
    from skysail.base import clock
    from skysail.claims.types import CloudInstance
    from skysail.cli import explanations
    from skysail.cli.diagnosis import diagnosis
    from skysail.kinds.serving.api.types import MLModel, ModelDeployment
    from skysail.kinds.training.api.training_job import TrainingJob
    from skysail.kube.api.workloads import Job, Pod

    found = facts.found
    if found.training is not None:
        headline = explanations.headline(found.resource.kind, found.object, found.training)
        return itertools.chain([headline], itertools.islice(diagnosis(found.training, clock.now()), 1, None))
    parts: Iterable[RenderableType]
    match found.object:
        case TrainingJob() as job:
            parts = diagnosis(job, clock.now())
        case Pod() as pod:
            parts = explanations.pod(pod, facts.log)
        case Job() as job:
            parts = explanations.job(job, facts.pods, facts.log)
        case CloudInstance() as claim:
            parts = explanations.claim(claim)
        case ModelDeployment() | MLModel() as model:
            parts = explanations.model(model)
        case _:
            parts = explanations.other(found.resource.kind, found.object)
    return parts
