"""Outer process of a local cluster: egress proxy and DNS forwarder, which need the machine's network."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from skysail.base.open_files import CallerLimits, LimitedListener
from skysail.local.cluster.control_client import Control
from skysail.local.network import dns_forwarder, egress_proxy
from skysail.local.network.dns_forwarder import ForwarderServer, HostResolver
from skysail.local.network.egress_policy import EgressPolicy
from skysail.local.network.http_proxy import HttpProxy

_RESOLV_CONF = Path("/etc/resolv.conf")


def machines_name_servers() -> list[tuple[str, int]]:
    return dns_forwarder.nameservers(_RESOLV_CONF.read_text()) if _RESOLV_CONF.exists() else []


async def serve(control: Control, servers: Sequence[tuple[str, int]], policy: EgressPolicy) -> None:
    """Serve the egress proxy, and DNS if there are name servers, until cancelled."""
    limits = CallerLimits.of_this_process()
    proxy = HttpProxy(egress_proxy.host_side(policy))
    forwarder_server = ForwarderServer(HostResolver(servers))
    try:
        outer = await egress_proxy.make_listener(control, egress_proxy.OUTER_PORT)
        await proxy.serve(LimitedListener(outer, limits))
        if servers:
            dns = await egress_proxy.make_listener(control, dns_forwarder.PORT)
            await forwarder_server.serve(LimitedListener(dns, limits))
        await asyncio.Event().wait()
    finally:
        await forwarder_server.close()
        await proxy.close()
