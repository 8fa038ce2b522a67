"""Health, readiness, metrics and cache audit of a process, over HTTP."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from socket import socket
from typing import Any

import msgspec
from aiohttp import web

from skysail.base.disconnects import tolerate_disconnects
from skysail.base.metrics import Metrics

_METRICS = "text/plain; version=0.0.4; charset=utf-8"


class AuditFailed(Exception):
    """The caches could not be compared with the API server; the message has the reason."""


class HealthServer:
    """HTTP server with the same pages on every port, because each operator that Skysail replaces had its own port.

    `audit_token` is the token that callers of /audit must send. Without a token, /audit is disabled.
    """

    def __init__(
        self,
        metrics: Metrics,
        *,
        unready: Callable[[], list[str]],
        outages: Callable[[], Mapping[str, str]],
        audit: Callable[[], Awaitable[list[Any]]],
        audit_token: str = "",
        with_metrics: bool = True,
    ) -> None:
        self._metrics = metrics
        self._unready = unready
        self._outages = outages
        self._audit = audit
        self._audit_token = audit_token
        self._is_auditing = False
        self._with_metrics = with_metrics

    def application(self) -> web.Application:
        app = web.Application(middlewares=[tolerate_disconnects])
        app.router.add_get("/healthz", self._live)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/readyz/{part}", self._part_ready)
        if self._with_metrics:
            app.router.add_get("/metrics", self._count)
        app.router.add_post("/audit", self._compare)
        return app

    async def _live(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, _: web.Request) -> web.Response:
        waiting = self._unready()
        if waiting:
            return web.Response(status=503, text="".join(f"waiting for {what}\n" for what in waiting))
        return web.Response(text="ok\n")

    async def _part_ready(self, request: web.Request) -> web.Response:
        """Return the readiness of one dependency, by name. An outage does not make the process unready."""
        outages, part = self._outages(), request.match_info["part"]
        if part not in outages:
            known = ", ".join(outages) or "none"
            return web.Response(status=404, text=f"{part} not found: the names are {known}\n")
        return web.Response(status=503 if outages[part] else 200, text=f"{outages[part] or 'ok'}\n")

    async def _count(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": _METRICS})

    async def _compare(self, request: web.Request) -> web.Response:
        """Compare the caches with the API server. One audit at a time, because it reads everything.

        The answer has numbers only, and no names of objects.
        The caller needs the token, because otherwise every user of the API server's proxy could start an audit.
        The caller must be on this machine or in this pod: the connection is not encrypted, so the token must not cross
        a network.
        """
        if not self._audit_token:
            return web.Response(status=403, text="audits are switched off: set audit_token to a file with a token\n")
        if not self._is_authenticated(request):
            text = "an audit needs the token of the file that audit_token names: skysail audit-cache --token-file\n"
            return web.Response(status=401, headers={"WWW-Authenticate": "Bearer"}, text=text)
        if not _is_loopback_caller(request):
            text = "audits are accepted from the same machine or pod only: use kubectl port-forward\n"
            return web.Response(status=403, text=text)
        if self._is_auditing:
            return web.Response(status=429, headers={"Retry-After": "5"}, text="an audit is running\n")
        self._is_auditing = True
        try:
            findings = await self._audit()
        except AuditFailed as error:
            return web.Response(status=503, text=f"{error}\n")
        finally:
            self._is_auditing = False
        return web.Response(body=msgspec.json.encode(findings), content_type="application/json")

    def _is_authenticated(self, request: web.Request) -> bool:
        desired = f"Bearer {self._audit_token}".encode()
        return hmac.compare_digest(request.headers.get("Authorization", "").encode(errors="surrogateescape"), desired)


def _is_loopback_caller(request: web.Request) -> bool:
    """Return whether the caller has our own address: a process of this machine or pod, such as kubectl port-forward."""
    assert request.transport is not None, "a request that is being handled has a connection"
    caller, own = (request.transport.get_extra_info(end) for end in ("peername", "sockname"))
    return bool(caller[0] == own[0])


async def serve(
    application: web.Application,
    port: int,
    *,
    host: str | None = None,
    listener: socket | None = None,
    **arguments: Any,
) -> web.AppRunner:
    """Listen on `host`, by default all addresses, or on a socket that is open already. `cleanup` stops it."""
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    site = web.SockSite(runner, listener, **arguments) if listener else web.TCPSite(runner, host, port, **arguments)
    await site.start()
    return runner
