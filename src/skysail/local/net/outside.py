"""What the outer process of a hull does for pods: the ways out that must be served in the machine's network."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from skysail.local.control import Control
from skysail.local.net import egress, resolver
from skysail.local.net.guard import Guard
from skysail.local.net.httpproxy import HttpProxy
from skysail.local.net.resolver import Exchange, MachineResolver

_RESOLV_CONF = Path("/etc/resolv.conf")


def machines_name_servers() -> list[tuple[str, int]]:
    return resolver.nameservers(_RESOLV_CONF.read_text()) if _RESOLV_CONF.exists() else []


async def serve(control: Control, servers: Sequence[tuple[str, int]], guard: Guard) -> None:
    """Until cancelled: an HTTP proxy behind the guard, and these name servers where there are some."""
    proxy = HttpProxy(egress.outer(guard))
    exchange = Exchange(MachineResolver(servers))
    try:
        await proxy.serve(await egress.make_listener(control, egress.OUTER_PORT))
        if servers:
            await exchange.serve(await egress.make_listener(control, resolver.PORT))
        await asyncio.Event().wait()
    finally:
        await exchange.close()
        await proxy.close()
