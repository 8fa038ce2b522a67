"""`skysail cost`: running and past spend at clouds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from skysail.cli.options import ContextOption, KubeconfigOption, NamedOutputFormat, NamedOutputOption

if TYPE_CHECKING:
    from skysail.cli.clouds.cost_report import CostQuery, CostReport
    from skysail.kube.client.client import Client


def cost(
    by: Annotated[
        Literal["namespace", "owner", "gpu", "day"], typer.Option(help="Key by which costs are added up.")
    ] = "namespace",
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Only this namespace [default: all namespaces].")
    ] = "",
    days: Annotated[int, typer.Option(min=1, max=400, help="Days of past spend, today included.")] = 30,
    output: NamedOutputOption = NamedOutputFormat.TEXT,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Show the spend of running instances until now, and the spend of the last days. Days are in UTC."""
    import msgspec

    from skysail.cli import cluster
    from skysail.cli.clouds import cost_report
    from skysail.cli.clouds.cost_report import CostQuery, Grouping
    from skysail.cli.console import open_console

    query = CostQuery(by=Grouping(by), namespace=namespace, days=days)
    result = cluster.run_client(cluster.access(kubeconfig, context), lambda client: _read(client, query))
    if output is NamedOutputFormat.JSON:
        typer.echo(msgspec.json.format(msgspec.json.encode(result)))
        return
    if output is NamedOutputFormat.NAME:
        typer.echo("".join(f"{row.key}\n" for row in result.rows), nl=False)
        return
    console = open_console()
    has_bars = console.is_terminal and console.encoding.startswith("utf")
    width = console.width if has_bars else 0
    typer.echo("\n".join(cost_report.render(result, width=width)))


async def _read(client: Client, query: CostQuery) -> CostReport:
    import msgspec

    from skysail.base import clock
    from skysail.claims.limits.spend_account import SPEND_ACCOUNT, SpendAccount
    from skysail.cli.clouds import cloud_objects, cost_report

    claims = await cloud_objects.list_claims(client)
    accounts = await cloud_objects.find_all(client, SPEND_ACCOUNT, SpendAccount)
    result = cost_report.report(claims, accounts, query, clock.now())
    simulated = cloud_objects.simulation_note(await cloud_objects.find_nodes(client))
    return msgspec.structs.replace(result, notes=(*result.notes, simulated)) if simulated else result
