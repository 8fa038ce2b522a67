"""`skysail get`: a TrainingJob and its progress in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from skysail.cli.options import ContextOption, JobArgument, KubeconfigOption, NamespaceOption

if TYPE_CHECKING:
    from rich.console import Console

    from skysail.kinds.training.api.training_job import TrainingJob
    from skysail.kube.client.client import Client

_FAILED = 1
_PER_SECOND = 4


def get(
    name: JobArgument,
    namespace: NamespaceOption = "default",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show each change until the job has finished.")] = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Show a TrainingJob and its progress. With --watch, exit code 1 if the job fails."""
    import contextlib

    from rich.console import Console

    from skysail.cli import cluster

    console = Console(highlight=False)

    async def call(client: Client) -> TrainingJob | None:
        job = await cluster.training_job(client, namespace, name)
        if watch:
            return await (_live if console.is_terminal else _rows)(console, client, job)
        _show(console, job)
        return None

    with contextlib.suppress(KeyboardInterrupt):
        last = cluster.run_client(cluster.access(kubeconfig, context), call)
        if last is not None and last.status.phase == "Failed":
            raise typer.Exit(_FAILED)


def _show(console: Console, job: TrainingJob) -> None:
    from skysail.base import clock
    from skysail.cli import job_rows

    if console.is_terminal:
        console.print(job_rows.render(job, clock.now()))
    else:
        console.print(job_rows.HEADER, job_rows.format_row(job, clock.now()), sep="\n", soft_wrap=True, markup=False)


async def _rows(console: Console, client: Client, job: TrainingJob) -> TrainingJob | None:
    """Print a line for each visible change."""
    from skysail.base import clock
    from skysail.cli import cluster, job_rows

    console.print(job_rows.HEADER, soft_wrap=True, markup=False)
    last = ""
    async for seen in cluster.until_over(client, job):
        line = job_rows.format_row(seen, clock.now())
        if job_rows.strip_age(line) != last:
            console.print(line, soft_wrap=True, markup=False)
        last, job = job_rows.strip_age(line), seen
    return job


async def _live(console: Console, client: Client, job: TrainingJob) -> TrainingJob | None:
    """Redraw one area of the terminal, because ages grow even if nothing else changes."""
    from rich.live import Live

    from skysail.base import clock
    from skysail.cli import cluster, job_rows

    with Live(
        console=console, refresh_per_second=_PER_SECOND, get_renderable=lambda: job_rows.render(job, clock.now())
    ) as live:
        async for seen in cluster.until_over(client, job):
            job = seen
            live.refresh()
    return job
