"""A recording proxy between an operator and the simulated clouds: paid calls can be lost, held, or be its last ones."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import aiohttp

from skysail.local import addresses
from skysail.local.cluster import tcp_proxy
from tests.support.proxy import Proxy, Seen

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator


class CloudProxy(Proxy):
    """`with CloudProxy(cluster) as proxy:`, then start an operator with `proxy.url`. Commands and ports do not pass."""

    url = ""

    def _publish(self, port: int) -> None:
        self.url = f"http://{addresses.HULL}:{port}"

    @contextlib.asynccontextmanager
    async def _upstream(self) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
        """The test's process is not in the hull: a door leads there."""
        listener, dial = tcp_proxy.open_listener(0), self._cluster.dial
        patience = aiohttp.ClientTimeout(total=None)
        async with (
            await tcp_proxy.serve(listener, lambda: asyncio.to_thread(dial, addresses.SIMULATED_PORT)),
            aiohttp.ClientSession(timeout=patience, auto_decompress=False) as session,
        ):
            yield session, f"http://127.0.0.1:{listener.getsockname()[1]}"

    def _tls(self) -> ssl.SSLContext | None:
        return None

    def _is_stream(self, seen: Seen) -> bool:
        return seen.path.endswith(("/changes", "/output"))
