"""A recording proxy between an operator and the simulated clouds: paid calls can be lost, held, or be its last ones."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import aiohttp

from skysail.base import unix_sockets
from tests.support.proxy import Proxy, Seen

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import AsyncIterator
    from pathlib import Path


class CloudProxy(Proxy):
    """`with CloudProxy(cluster) as proxy:`, then start an operator with `proxy.path`. Commands do not pass."""

    @property
    def path(self) -> Path:
        return self._cluster.home.root / "proxy.sock"

    def _listen(self) -> socket.socket:
        return unix_sockets.listen(self.path)

    @contextlib.asynccontextmanager
    async def _upstream(self) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
        patience = aiohttp.ClientTimeout(total=None)
        with unix_sockets.reachable(self._cluster.home.simulated_clouds) as name:
            connector = aiohttp.UnixConnector(name, limit=0)
            async with aiohttp.ClientSession(connector=connector, timeout=patience, auto_decompress=False) as session:
                yield session, "http://simulated"

    def _tls(self) -> ssl.SSLContext | None:
        return None

    def _is_stream(self, seen: Seen) -> bool:
        return seen.path.endswith(("/changes", "/output"))
