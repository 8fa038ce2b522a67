"""`skysail plan`: show place, price and permission of workloads before they are applied."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skysail.cli.options import (
    ContextOption,
    KubeconfigOption,
    NamedOutputFormat,
    NamedOutputOption,
    OperatorNamespaceOption,
)

if TYPE_CHECKING:
    from skysail.cli.clouds.plan_facts import ClusterFacts
    from skysail.kube.client.client import Client

REFUSED = 3
UNKNOWN = 4


def plan(
    file: Annotated[str, typer.Option("--file", "-f", help="File with manifests, or - for standard input.")],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace of objects that name none.")
    ] = "default",
    config: Annotated[
        Path | None, typer.Option(help="Settings file of the operator [default: the operator's defaults].")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show all candidates, not only the first.")] = False,
    operator_namespace: OperatorNamespaceOption = "skysail-system",
    output: NamedOutputOption = NamedOutputFormat.TEXT,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Show where the pods of the workloads in a file would run, and what they would cost.

    Workloads are Pods, Jobs, CronJobs, Deployments, ReplicaSets, StatefulSets, TrainingJobs, ModalJobs, ModalEndpoints,
    ModalFunctions, ModelDeployments, MLModels, TrainJobs, JobSets and jobs of the Kubeflow training operator.

    Reads only. Exit code 0 if policies and budgets allow all of them, 3 if one is refused, 4 if that is not known
    because something could not be read.
    """
    import os

    import msgspec

    from skysail.base import clock, settings
    from skysail.cli import cluster
    from skysail.cli.clouds import launch_plan, plan_facts, plan_report, plan_text, workloads
    from skysail.kinds.offload.config import offload_config
    from skysail.kinds.serving.spec.config import serving_config

    known_settings = settings.load({"operator_namespace": operator_namespace}, os.environ, config)
    content = workloads.parse(_read(file), file, namespace, serving_config(known_settings))
    offload = offload_config(known_settings)
    namespaces = {workload.namespace for workload in content.workloads}

    async def read(client: Client) -> ClusterFacts:
        return await plan_facts.read(client, namespaces, operator_namespace)

    access = cluster.access(kubeconfig, context)
    known = cluster.run_client(access, read)
    result = launch_plan.forecast(content.workloads, content.skipped, known, offload, clock.now())
    if output is NamedOutputFormat.JSON:
        typer.echo(msgspec.json.format(msgspec.json.encode(result)))
    elif output is NamedOutputFormat.NAME:
        typer.echo("".join(f"{name}\n" for name in plan_report.names(result)), nl=False)
    else:
        typer.echo(cluster.with_local_kubectl("\n".join(plan_text.render(result, with_all=everything)), access))
    raise typer.Exit({"allowed": 0, "refused": REFUSED, "unknown": UNKNOWN}[result.verdict])


def _read(file: str) -> str:
    import sys

    from skysail.cli.clouds.workloads import InvalidFile

    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidFile(f"{file} cannot be read: {error}. Name a readable file.") from error
