"""Routes of the node's server. Each request is authenticated and authorized first."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from socket import socket
from typing import Any

import msgspec
from aiohttp import web

from skysail.base.disconnects import tolerate_disconnects
from skysail.cloud.errors import Gone, ProviderError, Unsupported
from skysail.kube.client.errors import KubeError
from skysail.node.server import authentication, authorization, node_pages
from skysail.node.server.authentication import Authenticator
from skysail.node.server.authorization import Authorizer
from skysail.node.server.backend import Backend, PodRef
from skysail.node.server.container_logs import ContainerLogs
from skysail.node.server.errors import HttpError, PeerGone
from skysail.node.server.exec_attach import ExecAttachHandler
from skysail.node.server.port_forward import PortForwardHandler

POLICY_RULES = (*authentication.POLICY_RULES, *authorization.POLICY_RULES)

_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
# As in the kubelet: exec has the whole command in the first line of its request.
_MAX_HEADER_BYTES = 2**20
_STOP_SECONDS = 10.0

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PodHandler = Callable[[web.Request, PodRef], Awaitable[web.StreamResponse]]


class AccessGate(msgspec.Struct, frozen=True):
    """Authentication and authorization, for every route, including routes that do not exist."""

    authenticator: Authenticator
    authorizer: Authorizer

    async def check(self, request: web.Request) -> None:
        user_info = await self.authenticator.identify(request)
        await self.authorizer.check(user_info, request.method, request.path)


class KubeletApi:
    """The API of one node. `metrics` returns this process's own metrics; `clock` returns seconds since 1970."""

    def __init__(
        self, node: str, backend: Backend, gate: AccessGate, *, metrics: Callable[[], bytes], clock: Callable[[], float]
    ) -> None:
        self._node = node
        self._backend = backend
        self._gate = gate
        self._metrics = metrics
        self._clock = clock
        self._stopping = asyncio.Event()

    def application(self) -> web.Application:
        exec_attach_handler = ExecAttachHandler(self._backend, self._stopping)
        port_forward_handler = PortForwardHandler(self._backend, self._stopping)
        logs = ContainerLogs(self._backend, self._stopping, self._clock)
        app = web.Application(middlewares=[tolerate_disconnects, self._check])
        app.on_shutdown.append(self._stop)
        for method in ("GET", "POST"):
            for with_uid in ("", "/{uid}"):
                pod = f"/{{namespace}}/{{pod}}{with_uid}"
                app.router.add_route(method, f"/exec{pod}/{{container}}", _for_pod(exec_attach_handler.exec))
                app.router.add_route(method, f"/attach{pod}/{{container}}", _for_pod(exec_attach_handler.attach))
                app.router.add_route(method, f"/portForward{pod}", _for_pod(port_forward_handler.serve))
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", _for_pod(logs.serve))
        for path, page in self._pages.items():
            app.router.add_get(path, page)
            app.router.add_get(f"{path}/", page)
        return app

    @property
    def _pages(self) -> dict[str, Handler]:
        return {
            "/pods": self._pods,
            "/runningpods": self._running_pods,
            "/stats/summary": self._summary,
            "/metrics/resource": self._resource_metrics,
            "/metrics": self._own_metrics,
            "/healthz": self._healthz,
        }

    @web.middleware
    async def _check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check access, and turn errors into responses: text, not JSON, because the API server forwards log bodies."""
        try:
            await self._gate.check(request)
            return await handler(request)
        except (HttpError, PeerGone, ProviderError, KubeError) as error:
            status, text = answer(error)
            log.info("request failed", extra={"path": request.path, "status": status, "why": str(error)})
            return web.Response(status=status, text=text)

    async def _stop(self, _: web.Application) -> None:
        self._stopping.set()

    async def _pods(self, _: web.Request) -> web.Response:
        return _json(node_pages.pod_list(self._backend.pods()))

    async def _running_pods(self, _: web.Request) -> web.Response:
        return _json(node_pages.pod_list(self._backend.running_pods()))

    async def _summary(self, _: web.Request) -> web.Response:
        return _json(node_pages.summary(self._node, await self._backend.stats()))

    async def _resource_metrics(self, _: web.Request) -> web.Response:
        text = node_pages.resource_metrics(await self._backend.stats())
        return web.Response(body=text.encode(), headers={"Content-Type": _PROMETHEUS})

    async def _own_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics(), headers={"Content-Type": _PROMETHEUS})

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")


def answer(error: Exception) -> tuple[int, str]:
    """Return the status and text of the response for an error."""
    match error:
        case HttpError():
            return error.status, str(error)
        case Gone():
            return 404, str(error)
        case Unsupported():
            return 501, str(error)
        case KubeError():
            return 500, "the node could not authenticate you at the API server; try again"
    return 500, str(error)


async def serve(api: KubeletApi, listener: socket, context: ssl.SSLContext) -> web.AppRunner:
    """Start the server. The runner's `cleanup` sends each user a final status, and stops the server."""
    runner = make_runner(api.application())
    await runner.setup()
    await web.SockSite(runner, listener, ssl_context=context).start()
    return runner


def make_runner(application: web.Application) -> web.AppRunner:
    return web.AppRunner(
        application,
        access_log=None,
        shutdown_timeout=_STOP_SECONDS,
        max_line_size=_MAX_HEADER_BYTES,
        max_field_size=_MAX_HEADER_BYTES,
    )


def _for_pod(handler: PodHandler) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await handler(request, PodRef(**request.match_info))

    return handle


def _json(content: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), content_type="application/json")
