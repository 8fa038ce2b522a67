"""`skysail get`: a TrainingJob and its progress in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from skysail.cli.options import ContextOption, KubeconfigOption, NamespaceOption

if TYPE_CHECKING:
    from rich.console import Console

    from skysail.cli.listing import Group, Row
    from skysail.kinds.training.api.training_job import TrainingJob
    from skysail.kube.client.client import Client
    from skysail.kube.client.kubeconfig import Access

_FAILED = 1
_OUTPUTS = ("text", "json", "name")
_PER_SECOND = 4


def get(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[[KIND/]NAME|jobs|models|endpoints|claims]", help="Name, kind/name, or what to list [all]."
        ),
    ] = "all",
    namespace: NamespaceOption = "default",
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="List all namespaces.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show each change until the job has finished.")] = False,
    output: Annotated[str, typer.Option("--output", "-o", help="text, json or name.")] = "text",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Show an object and its progress, or list trainings, models and endpoints.

    With --watch, exit code 1 if a job fails.
    """
    import contextlib

    from skysail.cli import cluster, listing, lookup, pod_warnings
    from skysail.cli.console import open_console

    if output not in _OUTPUTS:
        raise typer.BadParameter(f"{output} is none of {', '.join(_OUTPUTS)}.", param_hint="--output")
    if name in listing.GROUPS:
        _list(listing.GROUPS[name], "" if all_namespaces else namespace, output, cluster.access(kubeconfig, context))
        return

    from skysail.kinds.training.api.training_job import TrainingJob
    from skysail.kube.api.workloads import Pod

    console = open_console()

    async def call(client: Client) -> TrainingJob | None:
        found = await lookup.find(client, namespace, name)
        job = found.training or found.object
        row = listing.row(found.resource, found.object, found.training)
        if output != "text":
            _print_rows([row], output)
            return None
        if not isinstance(job, TrainingJob):
            _print_table([row], with_namespace=False)
            if isinstance(job, Pod):
                _print_warnings(console, await pod_warnings.of_pod(client, job))
            return None
        if watch:
            return await (_live if console.is_terminal else _rows)(console, client, job)
        _show(console, job)
        _print_warnings(console, await pod_warnings.read(client, job))
        return None

    with contextlib.suppress(KeyboardInterrupt):
        last = cluster.run_client(cluster.access(kubeconfig, context), call)
        if last is not None and last.status.phase == "Failed":
            raise typer.Exit(_FAILED)


def _print_warnings(console: Console, warnings: list[str]) -> None:
    for warning in warnings:
        console.print(f"Warning: {warning}", soft_wrap=True, markup=False)


def _list(group: Group, namespace: str, output: str, access: Access) -> None:
    from skysail.cli import cluster, listing

    rows = cluster.run_client(access, lambda client: listing.read(client, group, namespace))
    if output != "text":
        _print_rows(rows, output)
    elif rows:
        _print_table(rows, with_namespace=not namespace)
    else:
        where = f"namespace {namespace}; -A lists all namespaces" if namespace else "this cluster"
        typer.echo(f"Nothing found in {where}.", err=True)


def _print_table(rows: list[Row], *, with_namespace: bool) -> None:
    import sys

    from skysail.base import clock
    from skysail.cli import listing

    lines = listing.render(rows, clock.now(), with_namespace=with_namespace, for_terminal=sys.stdout.isatty())
    typer.echo("\n".join(lines))


def _print_rows(rows: list[Row], output: str) -> None:
    import msgspec

    if output == "name":
        typer.echo("".join(f"{row.resource}\n" for row in rows), nl=False)
    else:
        typer.echo(msgspec.json.format(msgspec.json.encode(rows)).decode())


def _show(console: Console, job: TrainingJob) -> None:
    from skysail.base import clock
    from skysail.cli import job_rows

    if console.is_terminal:
        console.print(job_rows.render(job, clock.now()))
        return
    lines = [job_rows.HEADER, job_rows.format_row(job, clock.now()), job_rows.explanation(job)]
    console.print("\n".join(line for line in lines if line), soft_wrap=True, markup=False)


async def _rows(console: Console, client: Client, job: TrainingJob) -> TrainingJob | None:
    """Print a line for each visible change."""
    from skysail.base import clock
    from skysail.cli import cluster, job_rows

    console.print(job_rows.HEADER, soft_wrap=True, markup=False)
    last = ""
    async for seen in cluster.until_over(client, job):
        row, message = job_rows.format_row(seen, clock.now()), job_rows.explanation(seen)
        change = f"{job_rows.strip_age(row)}\n{message}"
        if change != last:
            console.print(f"{row}\n{message}".rstrip(), soft_wrap=True, markup=False)
        last, job = change, seen
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
