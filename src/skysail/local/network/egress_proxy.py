"""The way out, for pods: an HTTP proxy in two parts.

Pods know the inner part, in the hull: it connects them with what the cluster itself knows by name or address, because
programs ask a proxy for `http://web/` too, and passes on the rest. The outer part is in the machine's network, on a
listener that was made inside. It looks up names itself and connects only to an address that the guard let pass: the
very one, so that a name which means something else a moment later gains nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from skysail.local.addresses import CLUSTER_IP, POD_RANGE, SERVICE_RANGE
from skysail.local.cluster.control_client import Control
from skysail.local.errors import NotRunning
from skysail.local.network import http_proxy
from skysail.local.network.egress_policy import EgressPolicy
from skysail.local.network.http_proxy import Opener, ProxyError, ProxyRequest, Upstream

INNER_PORT = 3128
OUTER_PORT = 3129
_RETRY_SECONDS = 0.05

Lookup = Callable[[str, int], Awaitable[list[str]]]
# Addresses inside the cluster of a host, as the caller at an address means it; none where it is not of the cluster.
Known = Callable[[str, str], list[str]]


def environment() -> dict[str, str]:
    """What a pod's programs need in order to find the proxy, and to spare it what they can reach without it."""
    direct = f"localhost,127.0.0.0/8,{POD_RANGE},{SERVICE_RANGE},.svc,.cluster.local"
    return {**proxy_env(), "no_proxy": direct, "NO_PROXY": direct}


def proxy_env() -> dict[str, str]:
    """For a program of ours that wants nothing of the cluster: its localhost is the machine's."""
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    return dict.fromkeys(names, f"http://{CLUSTER_IP}:{INNER_PORT}")


async def make_listener(control: Control, port: int = OUTER_PORT) -> socket.socket:
    """For the outer part, which calls this outside. Waits until the hull is there to make it."""
    while True:
        try:
            return await asyncio.to_thread(control.listen, CLUSTER_IP, port)
        except NotRunning:
            await asyncio.sleep(_RETRY_SECONDS)


def cluster_side(known: Known, outer: tuple[str, int] = (CLUSTER_IP, OUTER_PORT)) -> Opener:
    async def open_(request: ProxyRequest, caller: str) -> Upstream:
        if addresses := known(request.host, caller):
            return await http_proxy.connect(request, addresses)
        try:
            reader, writer = await asyncio.open_connection(*outer)
        except OSError as error:
            raise ProxyError(
                502, f"{request.where} is not in the cluster, and there is no way out of it here."
            ) from error
        return Upstream(reader, writer, request.as_it_came, b"")

    return open_


async def look_up(host: str, port: int) -> list[str]:
    """Every address of a host, as this machine sees it; numeric spellings of all kinds are understood."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(where[0]) for *_, where in found]


def host_side(policy: EgressPolicy, lookup: Lookup = look_up) -> Opener:
    async def open_(request: ProxyRequest, _caller: str) -> Upstream:
        try:
            addresses = await lookup(request.host, request.port)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ProxyError(502, f"Neither the cluster nor this machine knows {request.host}: {reason}.") from error
        if deny_reason := policy.deny_reason(request.host, request.port, addresses):
            raise ProxyError(403, f"Skysail does not let pods reach {request.where}: {deny_reason}.")
        return await http_proxy.connect(request, addresses)

    return open_
