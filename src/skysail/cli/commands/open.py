"""`skysail open`: forward a port of this machine to a Service of the local cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from skysail.cli.commands.up import HomeOption

if TYPE_CHECKING:
    import socket

    from skysail.local.cluster.home import Home
    from skysail.local.network.service_lookup import ServiceTarget

_FIRST_FREE_FOR_ALL = 1024
_HTTPS_PORT = 443


def open_service(
    service: Annotated[
        str, typer.Argument(metavar="SERVICE[:PORT]", help="Name of the Service, and the port if it has several.")
    ],
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace of the Service.")] = "default",
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=1, max=65535, help="Port on this machine [default: the Service's port, else a free one]."
        ),
    ] = None,
    home: HomeOption = None,
) -> None:
    """Forward a port of this machine to a Service until Ctrl-C."""
    import asyncio
    import contextlib
    import os

    from skysail.local.cluster.home import Home
    from skysail.local.errors import NotRunning

    place = Home.of(home, os.environ)
    if not place.is_taken():
        raise NotRunning(f"No cluster runs in {place.root}: `skysail up` starts one.")
    name, _, chosen = service.removeprefix("service/").removeprefix("svc/").partition(":")
    service_target = asyncio.run(_find(place, namespace, name, chosen))
    listener = _listener(port, service_target)
    scheme = "https" if service_target.port == _HTTPS_PORT else "http"
    typer.echo(f"{namespace}/{name} is at {scheme}://127.0.0.1:{listener.getsockname()[1]}; Ctrl-C closes it.")
    if not service_target.is_served:
        typer.echo("The Service has no ready pod yet: connections fail until one is ready.", err=True)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_carry(place, service_target, listener))


async def _find(home: Home, namespace: str, name: str, port: str) -> ServiceTarget:
    from skysail.kube.client import kubeconfig
    from skysail.kube.client.client import Client
    from skysail.kube.client.http_transport import HttpTransport
    from skysail.local.network import service_lookup

    transport = HttpTransport(kubeconfig.from_file(home.kubeconfig))
    try:
        return await service_lookup.find(Client(transport), namespace, name, port)
    finally:
        await transport.close()


def _listener(port: int | None, service_target: ServiceTarget) -> socket.socket:
    """Open the listener. A port that the user named is used or rejected, never replaced."""
    from skysail.local.cluster import tcp_proxy
    from skysail.local.errors import Refused

    if port is None:
        return tcp_proxy.open_listener(service_target.port if service_target.port >= _FIRST_FREE_FOR_ALL else 0)
    listener = tcp_proxy.open_listener(port)
    if listener.getsockname()[1] != port:
        listener.close()
        raise Refused(
            f"Port {port} of this machine is in use: choose another with --port, or leave it out for a free one."
        )
    return listener


async def _carry(home: Home, service_target: ServiceTarget, listener: socket.socket) -> None:
    import asyncio

    from skysail.local.cluster import tcp_proxy
    from skysail.local.cluster.control_client import Control
    from skysail.local.errors import Refused

    control = Control(home.control)

    async def dial() -> socket.socket:
        for service_endpoint in service_target.addresses:
            try:
                return await asyncio.to_thread(control.dial, service_endpoint.address, service_endpoint.port)
            except Refused as error:
                typer.echo(f"{service_endpoint.address}:{service_endpoint.port} does not answer: {error}", err=True)
        raise Refused("The Service has no ready pod.")

    async with await tcp_proxy.serve(listener, dial) as server:
        await server.serve_forever()
