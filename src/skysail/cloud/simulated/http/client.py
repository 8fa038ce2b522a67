"""A simulated account in another process: `cloud.account.CloudAccount` over HTTP through a Unix socket.

Behaves as the client of a real cloud must: any unclear reply is `OutcomeUnknown`, and no call is retried.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import aiohttp
import msgspec
from yarl import URL

from skysail.base.names import ACCOUNT_SIMULATED
from skysail.cloud.account import Instance, Inventory, LaunchSpec, Timings
from skysail.cloud.errors import Gone, OutcomeUnknown, ProviderError, Rejected
from skysail.cloud.offers import OfferList
from skysail.cloud.provider import Features, Output, PortConnection, Session
from skysail.cloud.simulated.account import features_of
from skysail.cloud.simulated.http import protocol
from skysail.cloud.simulated.http.client_sessions import RemoteConnection, RemoteSession, wait_opened
from skysail.cloud.simulated.http.protocol import ErrorMessage
from skysail.cloud.simulated.vendors import Vendor

T = TypeVar("T")

_OK = 200
_CREATED = 201
_ACCEPTED = 202
_UNAUTHORIZED = 401
_SERVER_ERROR = 500
_CONNECT_SECONDS = 5.0
_RECONNECT_SECONDS = 2.0
_MAX_LINE_BYTES = 2**20


class RemoteAccount:
    """Client of one account. Must be created inside the running event loop, to which aiohttp's sessions belong.

    `seconds` is the timeout of a call. `features` is set by the caller; the server is not asked for it. Call `close`
    exactly once.
    """

    def __init__(
        self, vendor: Vendor, path: Path, token: str, *, features: Features | None = None, seconds: float = 20.0
    ) -> None:
        self._vendor = vendor
        self._features = features or features_of(vendor)
        self._base = f"http://simulated/{vendor.name}/v1"
        # Kept open for a short path: the kernel limits the length of a socket's path.
        self._folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        name = f"/proc/self/fd/{self._folder}/{path.name}"
        self._timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=_CONNECT_SECONDS)
        self._endless = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
        headers = {"Authorization": f"Bearer {token}"}
        self._session = aiohttp.ClientSession(
            headers=headers, timeout=self._timeout, connector=aiohttp.UnixConnector(name)
        )
        # Streams have their own session without a connection limit, because each running instance keeps one open. With
        # the default limit of 100, the next instance could not be launched, terminated or listed.
        self._streams = aiohttp.ClientSession(
            headers=headers,
            timeout=self._endless,
            read_bufsize=_MAX_LINE_BYTES,
            connector=aiohttp.UnixConnector(name, limit=0),
        )

    @property
    def name(self) -> str:
        return self._vendor.name

    @property
    def account(self) -> str:
        return ACCOUNT_SIMULATED

    @property
    def features(self) -> Features:
        return self._features

    @property
    def terms(self) -> Timings:
        return self._vendor.terms

    async def close(self) -> None:
        await self._session.close()
        await self._streams.close()
        os.close(self._folder)

    async def create(self, spec: LaunchSpec) -> Instance:
        body = msgspec.json.encode(spec)
        return _read(await self._call("POST", "/instances", want=_CREATED, body=body), Instance)

    async def terminate(self, instance: str, grace: float) -> None:
        path = f"/instances/{_quoted(instance)}"
        await self._call("DELETE", path, want=_ACCEPTED, query={"grace": str(grace)})

    async def delete_volume(self, namespace: str, volume: str) -> None:  # noqa: ARG002 (part of the id)
        await self._call("DELETE", f"/volumes/{_quoted(volume)}", want=_ACCEPTED)

    async def list(self) -> Inventory:
        return _read(await self._call("GET", "/instances"), Inventory)

    async def offers(self) -> OfferList:
        return _read(await self._call("GET", "/offers"), OfferList)

    async def get(self, instance: str) -> Instance | None:
        try:
            return _read(await self._call("GET", f"/instances/{_quoted(instance)}"), Instance)
        except Gone:
            return None

    async def watch(self) -> AsyncIterator[str]:
        """Yield changed claims. Reconnects whenever the connection ends; `list` shows changes missed meanwhile."""
        while True:
            with contextlib.suppress(ProviderError):
                async for line in self._lines("/changes"):
                    if claim := _read(line, str):
                        yield claim
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def output(self, instance: str, *, rank: int = 0) -> AsyncIterator[Output]:
        async for line in self._lines(f"/instances/{_quoted(instance)}/output?rank={rank}"):
            yield _read(line, Output)

    async def exec(self, instance: str, command: tuple[str, ...], *, stdin: bool, tty: bool, rank: int = 0) -> Session:
        flags = [("stdin", _flag(stdin)), ("tty", _flag(tty)), ("rank", str(rank))]
        query = [*(("command", word) for word in command), *flags]
        return RemoteSession(await self._open(instance, "exec", query))

    async def attach(self, instance: str, *, stdin: bool, rank: int = 0) -> Session:
        return RemoteSession(await self._open(instance, "attach", [("stdin", _flag(stdin)), ("rank", str(rank))]))

    async def dial(self, instance: str, port: int, *, rank: int = 0) -> PortConnection:
        return RemoteConnection(await self._open(instance, "dial", [("port", str(port)), ("rank", str(rank))]))

    async def _call(
        self,
        method: str,
        path: str,
        *,
        want: int = _OK,
        query: dict[str, str] | None = None,
        body: bytes | None = None,
    ) -> bytes:
        """Return the body of a reply with status `want`. Raises an error of `cloud.errors` for any other reply."""
        data = None if body is None else io.BytesIO(body)
        try:
            async with self._session.request(
                method, self._url(path), params=query, data=data, allow_redirects=False
            ) as reply:
                content = await reply.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._no_answer(error) from error
        if reply.status != want:
            raise self._error(reply.status, content)
        return content

    async def _lines(self, path: str) -> AsyncIterator[bytes]:
        try:
            async with self._streams.get(self._url(path)) as reply:
                if reply.status != _OK:
                    raise self._error(reply.status, await reply.read())
                async for line in reply.content:
                    yield line
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:  # ValueError: line too long
            raise self._no_answer(error) from error

    async def _open(
        self, instance: str, what: str, query: Sequence[tuple[str, str]]
    ) -> aiohttp.ClientWebSocketResponse:
        url = self._url(f"/instances/{_quoted(instance)}/{what}").with_query(query)
        try:
            socket = await self._streams.ws_connect(url, max_msg_size=protocol.MAX_FRAME_BYTES)
        except aiohttp.WSServerHandshakeError as error:
            raise self._error(error.status, b"") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._no_answer(error) from error
        await wait_opened(socket)
        return socket

    def _url(self, path: str) -> URL:
        return URL(self._base + path, encoded=True)

    def _no_answer(self, error: Exception) -> OutcomeUnknown:
        return OutcomeUnknown(f"The simulated {self.name} gave no answer: {str(error) or type(error).__name__}.")

    def _error(self, status: int, content: bytes) -> ProviderError:
        """Return the error of the cloud. A 5xx, a conflict or a body of unknown format is `OutcomeUnknown`."""
        if status == _UNAUTHORIZED:
            return Rejected("Unauthorized", f"The simulated {self.name} rejects this token: set a valid one.")
        with contextlib.suppress(msgspec.MsgspecError):
            error_message = msgspec.json.decode(content, type=ErrorMessage)
            if status < _SERVER_ERROR or error_message.kind == "Unknown":
                return error_message.error()
        return OutcomeUnknown(f"The simulated {self.name} answered with status {status} and no valid error.")


def _read(content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise OutcomeUnknown(f"The simulated cloud's reply cannot be decoded: {error}.") from error


def _quoted(instance: str) -> str:
    return quote(instance, safe="")


def _flag(is_set: bool) -> str:  # noqa: FBT001 (the only argument)
    return "1" if is_set else "0"
