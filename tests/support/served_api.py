"""The model of the API server behind HTTPS on loopback, with a kubeconfig, for commands that make their own client."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from aiohttp import web

from skysail.app.kinds import ALL_KINDS
from skysail.kube import certificates
from skysail.kube.api.resources import NAMESPACE
from skysail.kube.client.transport import Request
from tests.simulation.api import ApiModel
from tests.simulation.ownership import Manager
from tests.simulation.world import World
from tests.simulation.writes import Write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from skysail.kube.api.resources import Resource

Manifest = dict[str, Any]
_VALID = timedelta(days=1)


class ServedApi:
    """One cluster in a thread. `forbidden` are plurals that users may not read. `requests` are method and path."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.forbidden: set[str] = set()
        self.requests: list[tuple[str, str]] = []
        self.world: World
        self.loop: asyncio.AbstractEventLoop
        self.stop: asyncio.Event
        self._model: ApiModel

    def create(self, resource: Resource, manifest: Manifest) -> Manifest:
        """Write an object, with its status."""
        return self.call(lambda: self._create(resource, manifest))

    def objects(self, resource: Resource) -> list[Manifest]:
        return self.call(lambda: list(self.world.objects[resource].values()))

    def call(self, do: Callable[[], Any]) -> Any:
        """Do something in the thread of the cluster."""

        async def within() -> Any:
            return do()

        return asyncio.run_coroutine_threadsafe(within(), self.loop).result(30)

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [row for row in self.requests if row[0] != "GET"]

    def _create(self, resource: Resource, manifest: Manifest) -> Manifest:
        kind, write = self.world.kinds[resource], Write(Manager("test", "Update"))
        live = self.world.create(kind, {k: v for k, v in manifest.items() if k != "status"}, write)
        if "status" not in manifest:
            return live
        part = "status" if kind.has_status else ""
        status = Write(Manager("test", "Update", part))
        return self.world.replace(kind, live, {**live, "status": manifest["status"]}, status)

    async def run(self, started: threading.Event, tls: ssl.SSLContext, ports: list[int]) -> None:
        self.loop, self.stop = asyncio.get_running_loop(), asyncio.Event()
        self.world = World([kind.resource for kind in ALL_KINDS])
        self._create(NAMESPACE, {"metadata": {"name": "skysail-system"}})
        self._model = ApiModel(self.world)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        ports.append(runner.addresses[0][1])
        started.set()
        await self.stop.wait()
        await runner.cleanup()

    async def _answer(self, http: web.Request) -> web.StreamResponse:
        self.requests.append((http.method, http.rel_url.raw_path))
        if self.forbidden & set(http.path.split("/")):
            body = {"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "forbidden"}
            return web.json_response(body, status=403)
        request = Request(
            method=http.method,
            path=http.rel_url.raw_path,
            query=dict(http.query),
            headers=dict(http.headers),
            body=await http.read() or None,
        )
        if request.query.get("watch") == "true":
            return await self._stream(http, request)
        reply = await self._model.send(request)
        return web.Response(status=reply.status, body=reply.body, content_type="application/json")

    async def _stream(self, http: web.Request, request: Request) -> web.StreamResponse:
        stream = await self._model.open(request)
        response = web.StreamResponse(status=stream.status)
        await response.prepare(http)
        async with stream:
            async for chunk in stream:
                await response.write(chunk)
        return response


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[ServedApi]:
    """Serve an empty cluster. Its kubeconfig is in the folder."""
    now = datetime.now(UTC)
    authority = certificates.certificate_authority("test", now=now, valid=_VALID)
    pair = certificates.server(authority, ["127.0.0.1"], now=now, valid=_VALID)
    (folder / "api.pem").write_bytes(pair.certificate + pair.key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "api.pem")
    api, started, ports = ServedApi(folder / "kubeconfig"), threading.Event(), []
    thread = threading.Thread(target=lambda: asyncio.run(api.run(started, tls, ports)), daemon=True)
    thread.start()
    assert started.wait(30)
    _write_kubeconfig(api.kubeconfig, ports[0], authority.certificate)
    try:
        yield api
    finally:
        api.loop.call_soon_threadsafe(api.stop.set)
        thread.join(30)


def _write_kubeconfig(path: Path, port: int, authority: bytes) -> None:
    cluster = {
        "server": f"https://127.0.0.1:{port}",
        "certificate-authority-data": base64.b64encode(authority).decode(),
    }
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": {"token": "t"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
    path.write_text(json.dumps(config))
