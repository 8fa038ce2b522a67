"""`skysail logs`: the logs of all ranks of a TrainingJob."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from skysail.cli.options import ContextOption, KubeconfigOption, NamespaceOption

if TYPE_CHECKING:
    from skysail.cli.pod_logs import LinePrinter, LogSelection
    from skysail.kinds.training.api.training_job import TrainingJob
    from skysail.kinds.training.objects import Pod
    from skysail.kube.client.client import Client

_COLORS = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_cyan", "bright_yellow", "bright_green")
_ROLES = ("worker", "chief", "ps", "evaluator")


def logs(
    name: Annotated[
        str,
        typer.Argument(metavar="[KIND/]NAME", help="A TrainingJob, model, endpoint, pod or claim: name, or kind/name."),
    ],
    namespace: NamespaceOption = "default",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow over restarts and attempts until the job has finished.")
    ] = False,
    rank: Annotated[
        str | None,
        typer.Option(metavar="[ROLE-]INDEX", help="One rank only: 1 is worker 1, ps-0 is parameter server 0 [all]."),
    ] = None,
    attempt: Annotated[int | None, typer.Option(min=0, help="One attempt only [the newest one; with -f, all].")] = None,
    tail: Annotated[int | None, typer.Option(min=0, help="Start with the last N lines of each pod [all].")] = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Print the logs of all ranks of a TrainingJob, or of the pods of another object. Each line says whose it is."""
    import contextlib

    from skysail.cli import cluster, lookup, object_logs, pod_logs
    from skysail.kinds.training.api.training_job import TrainingJob

    selection = pod_logs.LogSelection(_rank(rank), attempt)

    async def call(client: Client) -> None:
        found = await lookup.find(client, namespace, name)
        job = found.training or found.object
        if not isinstance(job, TrainingJob) and follow:
            await object_logs.follow(
                client, found, typer.echo, tail=tail, report=lambda line: typer.echo(line, err=True)
            )
        elif not isinstance(job, TrainingJob):
            await object_logs.print_all(client, found, typer.echo, tail=tail)
        elif follow:
            await _until_the_end(client, job, selection, tail)
        else:
            await _until_now(client, job, selection, tail)

    with contextlib.suppress(KeyboardInterrupt):
        cluster.run_client(cluster.access(kubeconfig, context), call)


def _rank(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    role, dash, index = text.rpartition("-")
    if text in _ROLES:
        role, index = text, "0"
    elif not dash:
        role = "worker"
    if role not in _ROLES or not index.isdecimal():
        raise typer.BadParameter(
            f"{text} is not a rank: write an index such as 1, or a role and an index such as ps-0. "
            f"The roles are {', '.join(_ROLES)}.",
            param_hint="--rank",
        )
    return role, int(index)


async def _until_now(client: Client, job: TrainingJob, selection: LogSelection, tail: int | None) -> None:
    """Print the logs so far, pod by pod."""
    from skysail.cli import pod_logs

    there = [pod for pod in await pod_logs.pods(client, job) if selection.takes(pod)]
    newest = max((pod.attempt for pod in there), default=0)
    found = [pod for pod in there if pod.attempt == newest]
    if not found:
        raise _nothing(job, selection)
    print_line = line_printer()
    for pod in found:
        if not pod_logs.has_begun(pod):
            typer.echo(
                pod_logs.not_started(pod, f"skysail why {job.metadata.name} -n {job.metadata.namespace}"), err=True
            )
            continue
        async for line in pod_logs.read(client, pod, tail):
            print_line(pod, line)


async def _until_the_end(client: Client, job: TrainingJob, selection: LogSelection, tail: int | None) -> None:
    from skysail.cli import pod_logs
    from skysail.kube.client.errors import KubeError

    try:
        await pod_logs.follow(
            client, job, selection, line_printer(), tail=tail, report=lambda line: typer.echo(line, err=True)
        )
    except* (BrokenPipeError, KubeError) as group:  # the reader closed the pipe, or has no right to read logs
        raise group.exceptions[0] from None


def line_printer() -> LinePrinter:
    """Return a printer that prefixes each line with its rank in colour, and announces each new attempt."""
    import os

    known: list[str] = []
    last: list[int] = []

    def print_line(pod: Pod, line: str) -> None:
        who = _who(pod)
        if who not in known:
            known.append(who)
        if last and last[-1] != pod.attempt:
            typer.secho(f"attempt {pod.attempt} on node {pod.spec.node_name}", err=True, dim=True)
        last[:] = [pod.attempt]
        prefix = typer.style(f"{who} |", fg=_COLORS[known.index(who) % len(_COLORS)])
        typer.echo(f"{prefix} {line}", color=False if os.environ.get("NO_COLOR") else None)

    return print_line


def _who(pod: Pod) -> str:
    return f"{pod.role}-{pod.index}"


def _nothing(job: TrainingJob, selection: LogSelection) -> Exception:
    from skysail.base.errors import UserError

    where = f"`skysail why {job.metadata.name} -n {job.metadata.namespace}`"
    if selection.attempt is not None:
        return UserError(
            f"Attempt {selection.attempt} has no such pods. {where} shows the attempts and the last log lines of the "
            "failed pod."
        )
    return UserError(f"No such pods exist now. {where} says why.")
