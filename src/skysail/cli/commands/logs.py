"""`skysail logs`: what all ranks of a TrainingJob say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from skysail.cli.options import ContextOption, JobArgument, KubeconfigOption, NamespaceOption

if TYPE_CHECKING:
    from skysail.cli.pod_logs import Say, Wanted
    from skysail.kinds.training.api.training_job import TrainingJob
    from skysail.kinds.training.objects import Pod
    from skysail.kube.client.client import Client

_COLORS = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_cyan", "bright_yellow", "bright_green")
_ROLES = ("worker", "chief", "ps", "evaluator")


def logs(
    name: JobArgument,
    namespace: NamespaceOption = "default",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on over restarts and attempts, until the job has ended.")
    ] = False,
    rank: Annotated[
        str | None, typer.Option(metavar="[ROLE-]INDEX", help="Of one pod only: 1 is worker 1, ps-0 a server [all].")
    ] = None,
    attempt: Annotated[int | None, typer.Option(min=0, help="Of this attempt [the newest one; with -f, all].")] = None,
    tail: Annotated[int | None, typer.Option(min=0, help="Begin with so many lines of each pod [all].")] = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Print the logs of all ranks of a TrainingJob, each line with the rank before it."""
    import contextlib

    from skysail.cli import cluster, pod_logs

    wanted = pod_logs.Wanted(_rank(rank), attempt)

    async def talk(client: Client) -> None:
        job = await cluster.training_job(client, namespace, name)
        if follow:
            await _until_the_end(client, job, wanted, tail)
        else:
            await _until_now(client, job, wanted, tail)

    with contextlib.suppress(KeyboardInterrupt):
        cluster.speak(cluster.access(kubeconfig, context), talk)


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
            f"{text} is no rank: write an index such as 1, or a role with one, such as ps-0. "
            f"The roles are {', '.join(_ROLES)}.",
            param_hint="--rank",
        )
    return role, int(index)


async def _until_now(client: Client, job: TrainingJob, wanted: Wanted, tail: int | None) -> None:
    """One pod after the other."""
    from skysail.cli import pod_logs

    there = [pod for pod in await pod_logs.pods(client, job) if wanted.takes(pod)]
    newest = max((pod.attempt for pod in there), default=0)
    found = [pod for pod in there if pod.attempt == newest]
    if not found:
        raise _nothing(job, wanted)
    say = _teller()
    for pod in found:
        if not pod_logs.has_begun(pod):
            typer.echo(
                f"{_who(pod)} has not started: `skysail why {job.metadata.name}` tells what it waits for.", err=True
            )
            continue
        async for line in pod_logs.written(client, pod, tail):
            say(pod, line)


async def _until_the_end(client: Client, job: TrainingJob, wanted: Wanted, tail: int | None) -> None:
    from skysail.cli import pod_logs
    from skysail.kube.client.errors import KubeError

    try:
        await pod_logs.follow(client, job, wanted, _teller(), tail=tail)
    except* (BrokenPipeError, KubeError) as group:  # whoever read has enough, or may not read
        raise group.exceptions[0] from None


def _teller() -> Say:
    """Prints a line with its rank before it, in the rank's colour; and says when another attempt begins."""
    import os

    known: list[str] = []
    last: list[int] = []

    def say(pod: Pod, line: str) -> None:
        who = _who(pod)
        if who not in known:
            known.append(who)
        if last and last[-1] != pod.attempt:
            typer.secho(f"attempt {pod.attempt} on node {pod.spec.node_name}", err=True, dim=True)
        last[:] = [pod.attempt]
        prefix = typer.style(f"{who} |", fg=_COLORS[known.index(who) % len(_COLORS)])
        typer.echo(f"{prefix} {line}", color=False if os.environ.get("NO_COLOR") else None)

    return say


def _who(pod: Pod) -> str:
    return f"{pod.role}-{pod.index}"


def _nothing(job: TrainingJob, wanted: Wanted) -> Exception:
    from skysail.base.errors import UserError

    where = f"`skysail why {job.metadata.name} -n {job.metadata.namespace}`"
    if wanted.attempt is not None:
        return UserError(
            f"Attempt {wanted.attempt} has no such pods any more, or never had. {where} shows the attempts, and the "
            "last words of the pod that failed."
        )
    return UserError(f"There are no such pods now. {where} tells why.")
