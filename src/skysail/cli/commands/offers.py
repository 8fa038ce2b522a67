"""`skysail offers`: rank the offers of the clouds by price."""

from __future__ import annotations

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
    from skysail.cloud.offers import OfferList
    from skysail.kube.client.client import Client


def offers(
    gpu: Annotated[str, typer.Option(help="GPU type, by the cloud's name or an alias.")] = "",
    count: Annotated[int, typer.Option(min=0, max=1024, help="GPUs in one machine; 0: machines without GPUs.")] = 1,
    gpu_memory: Annotated[int, typer.Option(min=0, help="Least GiB of each GPU.")] = 0,
    provider: Annotated[list[str] | None, typer.Option(help="Only this cloud; may be repeated.")] = None,
    region: Annotated[list[str] | None, typer.Option(help="Only this region; may be repeated.")] = None,
    cloud_type: Annotated[
        list[str] | None, typer.Option(help="Only this tier, such as SECURE; may be repeated.")
    ] = None,
    cuda: Annotated[list[str] | None, typer.Option(help="Only this CUDA version; may be repeated.")] = None,
    max_price: Annotated[
        float | None, typer.Option(min=0, help="Most US dollars per hour and GPU, or per machine without GPUs.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also show offers that do not fit, and why.")] = False,
    operator_namespace: OperatorNamespaceOption = "skysail-system",
    output: NamedOutputOption = NamedOutputFormat.TEXT,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Rank the offers of the clouds by the price of the whole machine, with the age of each price."""
    import msgspec

    from skysail.base import clock
    from skysail.cli import cluster
    from skysail.cli.clouds import offer_report, published_offers
    from skysail.cloud.offers import OfferQuery

    async def read(client: Client) -> dict[str, OfferList]:
        return await published_offers.read(client, operator_namespace)

    query = OfferQuery(
        gpu_count=count,
        gpu_type=gpu,
        gpu_memory=gpu_memory,
        regions=tuple(region or ()),
        cloud_types=tuple(tier.upper() for tier in cloud_type or ()),
        cuda_versions=tuple(cuda or ()),
        max_usd_per_gpu_hour=max_price,
    )
    published = cluster.run_client(cluster.access(kubeconfig, context), read)
    result = offer_report.report(published, query, providers=provider or (), now=clock.now().timestamp())
    if output is NamedOutputFormat.JSON:
        if not everything:
            result = msgspec.structs.replace(result, refused=())
        typer.echo(msgspec.json.format(msgspec.json.encode(result)))
    elif output is NamedOutputFormat.NAME:
        typer.echo("".join(f"{name}\n" for name in offer_report.names(result)), nl=False)
    else:
        typer.echo("\n".join(offer_report.render(result, with_refused=everything)))
