"""Start the control plane inside a local cluster, and wait until it is usable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import aiohttp

from skysail.kube.client import kubeconfig
from skysail.kube.client.errors import KubeError
from skysail.kube.client.http_transport import HttpTransport
from skysail.kube.client.transport import Request
from skysail.local import addresses
from skysail.local.cluster.home import Home
from skysail.local.cluster.supervisor import Supervisor, Unit
from skysail.local.control_plane import credentials, flags
from skysail.local.control_plane.binaries import Binaries
from skysail.local.control_plane.flags import Component, PlaneOptions
from skysail.local.errors import StartFailed

# Metadata of each completed request. No bodies, so no secrets.
_AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
"""
_SECONDS = 120.0
_POLL_SECONDS = 0.05
_CRASHES = 3
# The API server would wait a minute for clients to close their watches. Accepted writes are in etcd already.
_SHORT_GRACE = {Component.API_SERVER: 2.0}
# No pod can be created before the controller manager has created this service account.
_POPULATED = ("/api/v1/namespaces/default/serviceaccounts/default",)
_HEALTH = {
    Component.CONTROLLER_MANAGER: "https://127.0.0.1:10257/healthz",
    Component.SCHEDULER: "https://127.0.0.1:10259/healthz",
}
_HEALTH_TIMEOUT = aiohttp.ClientTimeout(total=5)
# /readyz succeeds before these two objects exist, and an apply in between fails: namespaces "default" not found.
_REALLY_READY = ("/readyz", "/api/v1/namespaces/default", "/api/v1/namespaces/default/services/kubernetes")


def units(home: Home, binaries: Binaries, options: PlaneOptions) -> dict[Component, Unit]:
    """Return the units of the control plane, in the order of their start."""
    return {
        component: Unit(
            name=component,
            argv=(*binaries.commands[component], *flags.of(component, home, options)),
            folder=addresses.RUN_FOLDER,
            grace=_SHORT_GRACE.get(component, 10.0),
        )
        for component in Component
        if component is not Component.KUBECTL and component in binaries.commands
    }


async def start(
    supervisor: Supervisor, home: Home, planned: dict[Component, Unit], report: Callable[[str], None]
) -> None:
    """Start the units. Returns when namespace `default` and Service `kubernetes` exist. Raises StartFailed.

    The controller manager and the scheduler have started by then, but may not be ready: see `until_ready`.
    """
    home.audit_policy.write_text(_AUDIT_POLICY)
    report("starting etcd and the API server")
    await supervisor.start(planned[Component.ETCD])
    await supervisor.start(planned[Component.API_SERVER])
    await _until_answered(_REALLY_READY, home, supervisor)
    report("the API server is ready")
    for component in (Component.CONTROLLER_MANAGER, Component.SCHEDULER):
        if component in planned:
            await supervisor.start(planned[component])


async def until_ready(supervisor: Supervisor, home: Home, planned: dict[Component, Unit]) -> None:
    """Wait until the controller manager and the scheduler are ready too. Raises StartFailed."""
    for component, url in _HEALTH.items():
        if component in planned:
            await until(partial(is_healthy, url), f"{component} to be healthy", supervisor)
    if Component.CONTROLLER_MANAGER in planned:
        await _until_answered(_POPULATED, home, supervisor)


async def _until_answered(paths: tuple[str, ...], home: Home, supervisor: Supervisor) -> None:
    transport = HttpTransport(kubeconfig.from_file(credentials.inside_path(home, "admin")))
    try:
        for path in paths:
            await until(partial(_answers, transport, path), f"the API server's {path}", supervisor)
    finally:
        await transport.close()


async def until(check: Callable[[], Awaitable[bool]], what: str, supervisor: Supervisor) -> None:
    """Poll until `check` is true.

    Raises StartFailed after the timeout, or as soon as a unit has crashed repeatedly.
    """
    deadline = asyncio.get_running_loop().time() + _SECONDS
    while not await check():
        for unit in supervisor.status():
            if unit.crash is not None and unit.restarts >= _CRASHES:
                ends = f"{unit.name} ended {unit.restarts + 1} times ({unit.crash.cause})"
                raise StartFailed(f"{ends}, the last time with:\n{unit.crash.log_tail}")
        if asyncio.get_running_loop().time() > deadline:
            raise StartFailed(f"Timeout of {_SECONDS:.0f} s waiting for {what}.")
        await asyncio.sleep(_POLL_SECONDS)


async def _answers(transport: HttpTransport, path: str) -> bool:
    try:
        reply = await transport.send(Request(method="GET", path=path))
    except KubeError:
        return False
    return reply.status == 200  # noqa: PLR2004 (HTTP OK)


async def is_healthy(url: str) -> bool:
    """Return whether a server of the local cluster answers 200.

    The certificate is not verified, because the server signs its own.
    """
    try:
        async with aiohttp.ClientSession(timeout=_HEALTH_TIMEOUT) as session, session.get(url, ssl=False) as reply:
            return reply.status == 200  # noqa: PLR2004 (HTTP OK)
    except (aiohttp.ClientError, OSError):
        return False
