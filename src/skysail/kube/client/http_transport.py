"""HTTP transport: aiohttp over TLS.

It uses two sessions, because a watch keeps its connection for minutes. Ordinary requests share a bounded pool, so that
a burst of writes waits here and not at the API server. Each watch has its own connection.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from http import HTTPStatus
from types import TracebackType
from typing import Self

import aiohttp
from yarl import URL

from skysail.kube.client.errors import ReplyLost, Unreachable
from skysail.kube.client.exec_plugin import PluginError
from skysail.kube.client.kubeconfig import Access
from skysail.kube.client.transport import Reply, Request

_CONNECT_SECONDS = 10


class HttpTransport:
    """Transport over aiohttp. Create it inside a running event loop, because aiohttp sessions belong to one loop."""

    def __init__(self, access: Access, *, connections: int = 48, seconds: float = 60.0) -> None:
        self._access = access
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=access.tls, limit=connections, keepalive_timeout=30),
            timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=min(seconds, _CONNECT_SECONDS)),
            auto_decompress=False,
            skip_auto_headers=("User-Agent",),
        )
        self._watches = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=access.tls, limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
            auto_decompress=False,
            skip_auto_headers=("User-Agent",),
            read_bufsize=2**20,
        )

    async def send(self, request: Request) -> Reply:
        try:
            async with await self._request(self._session, request) as response:
                headers = {name.lower(): value for name, value in response.headers.items()}
                return Reply(status=response.status, body=await response.read(), headers=headers)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unreachable(f"Cannot reach {self._access.server}: {error}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ReplyLost(f"{request.method} {request.path}: no reply ({_name(error)})") from error

    async def open(self, request: Request) -> HttpStream:
        try:
            response = await self._request(self._watches, request)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unreachable(f"Cannot reach {self._access.server}: {error}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ReplyLost(f"watch {request.path}: no reply ({_name(error)})") from error
        return HttpStream(response, request.path)

    async def close(self) -> None:
        await self._session.close()
        await self._watches.close()

    async def _request(self, session: aiohttp.ClientSession, request: Request) -> aiohttp.ClientResponse:
        # Disable compression: inside a cluster, bandwidth is cheaper than the CPU time for it.
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "skysail"}
        headers.update(request.headers)
        token = await self._token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        response = await session.request(
            request.method,
            URL(self._access.server + request.path, encoded=True),
            params=request.query,
            headers=headers,
            data=request.body,
            allow_redirects=False,
        )
        if response.status == HTTPStatus.UNAUTHORIZED and self._access.plugin is not None:
            self._access.plugin.reject(token)
        return response

    async def _token(self) -> str:
        """Return the token for a request. Raises PluginError, or Unreachable if the plugin worked before."""
        plugin = self._access.plugin
        if plugin is None:
            return self._access.token() or ""
        try:
            return await plugin.token()
        except PluginError as error:
            if plugin.has_worked:
                raise Unreachable(str(error)) from error
            raise


class HttpStream:
    """One open watch."""

    def __init__(self, response: aiohttp.ClientResponse, path: str) -> None:
        self._response = response
        self._path = path

    @property
    def status(self) -> int:
        return self._response.status

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Abort instead of a clean close: the TLS shutdown would outlive the session.
        if (connection := self._response.connection) and connection.transport:
            connection.transport.abort()
        self._response.close()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ReplyLost(f"watch {self._path}: stream interrupted ({_name(error)})") from error


def _name(error: BaseException) -> str:
    return str(error) or type(error).__name__
