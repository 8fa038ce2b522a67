"""The pod network as a unit inside a local cluster, without a node: a test asks it for places by HTTP.

Run as a program with the path of a kubeconfig.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from pathlib import Path

import msgspec
from aiohttp import web

from skysail.cloud.provider import Pod
from skysail.kube.api.objects import resource_version
from skysail.kube.client import kubeconfig
from skysail.kube.client.client import Client
from skysail.kube.client.http_transport import HttpTransport
from skysail.local.addresses import CLUSTER_IP
from skysail.local.network.network import Network

PORT = 18053


class Footprint(msgspec.Struct, frozen=True):
    """What the network holds of the kernel."""

    namespaces: list[str]
    links: list[str]
    descriptors: int


def footprint() -> Footprint:
    return Footprint(
        namespaces=sorted(path.name for path in Path("/run/netns").iterdir()),
        links=sorted(path.name for path in Path("/sys/class/net").iterdir() if path.is_dir()),
        descriptors=len(list(Path("/proc/self/fd").iterdir())),
    )


async def main(login: Path) -> None:
    transport = HttpTransport(kubeconfig.from_file(login))
    network = Network(Client(transport), random.Random())

    async def ready(_: web.Request) -> web.Response:
        return web.Response(status=200 if network.ready.is_set() else 503)

    async def attach(request: web.Request) -> web.Response:
        place = await network.pods.attach(msgspec.json.decode(await request.read(), type=Pod))
        return web.Response(body=msgspec.json.encode(place))

    async def detach(request: web.Request) -> web.Response:
        await network.pods.detach(await request.text())
        return web.Response()

    async def look(_: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(footprint()))

    async def seen(_: web.Request) -> web.Response:
        known = [*network.services.all(), *network.slices.all()]
        return web.Response(body=msgspec.json.encode({thing.metadata.uid: resource_version(thing) for thing in known}))

    app = web.Application()
    app.add_routes([web.get("/readyz", ready), web.get("/look", look), web.get("/seen", seen)])
    app.add_routes([web.post("/attach", attach), web.post("/detach", detach)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, CLUSTER_IP, PORT).start()
    running = asyncio.create_task(network.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        pass
    finally:
        await runner.cleanup()
        await transport.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
