"""The replay server's process and its routes: as much of the Kubernetes API as Skysail and Kopf use, and our own two.

`POST /bench/emit` changes pods at a steady rate; `GET /bench/counts` tells how often each verb was used.
"""

from __future__ import annotations

import argparse
import asyncio

import msgspec
from aiohttp import web

from bench import process
from bench.replay.discovery import Discovery
from bench.replay.door import Door
from bench.replay.emitter import Emitter
from bench.replay.world import World
from bench.size import Size


def application(world: World) -> web.Application:
    emitter, discovery = Emitter(world), Discovery(world)
    app = web.Application()
    app.router.add_post("/bench/emit", emitter.emit)
    app.router.add_get("/bench/counts", emitter.counts)
    app.router.add_get("/api", discovery.versions)
    app.router.add_get("/apis", discovery.groups)
    for root in discovery.roots:
        app.router.add_get(root, discovery.resources)
    for collection in world.collections:
        door = Door(world, collection)
        root, _, plural = collection.resource.path().rpartition("/")
        one = f"{root}/namespaces/{{namespace}}/{plural}/{{name}}"
        app.router.add_get(f"{root}/{plural}", door.list_or_watch)
        app.router.add_get(one, door.get)
        app.router.add_put(f"{one}/status", door.update_status)
        app.router.add_patch(f"{one}/status", door.patch_status)
    return app


async def serve(world: World) -> tuple[web.AppRunner, str]:
    """Listen on a free port. Returns the runner, to be cleaned up, and the URL."""
    runner = web.AppRunner(application(world), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    return runner, f"http://{host}:{port}"


async def _run(size: Size) -> None:
    world = World()
    world.fill(size)
    _, url = await serve(world)
    print(url, flush=True)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", help="a Size, as JSON")
    size = msgspec.json.decode(parser.parse_args().size, type=Size)
    process.pin(process.SERVER_CORE)
    asyncio.run(_run(size))


if __name__ == "__main__":
    main()
