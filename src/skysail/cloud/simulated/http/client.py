"""A simulated account in another process: `cloud.instances.Cloud` over HTTP through a Unix socket.

As the client of a real cloud must be: whatever is not a clear answer is `OutcomeUnknown`, and nothing is ever asked
twice.
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
from skysail.cloud.simulated.account import PLACING
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
_AGAIN_SECONDS = 2.0
_MAX_LINE_BYTES = 2**20


class RemoteAccount:
    """Made inside a running event loop, because aiohttp's sessions belong to one. `close` ends it, once.

    `seconds` is how long an answer is waited for. What the account can do is not asked: it is told here.
    """

    def __init__(
        self, vendor: Vendor, path: Path, token: str, *, features: Features = PLACING, seconds: float = 20.0
    ) -> None:
        self._vendor = vendor
        self._features = features
        self._base = f"http://simulated/{vendor.name}/v1"
        # Kept open, so that the name is short enough for the kernel however deep the socket lies.
        self._folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        name = f"/proc/self/fd/{self._folder}/{path.name}"
        self._timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=_CONNECT_SECONDS)
        self._endless = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
        headers = {"Authorization": f"Bearer {token}"}
        self._session = aiohttp.ClientSession(
            headers=headers, timeout=self._timeout, connector=aiohttp.UnixConnector(name)
        )
        # Each running instance has a stream that is open as long as it runs. Where these had the connections of the
        # calls, the hundred and first instance could be neither launched nor ended nor listed.
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
        """Connects again whenever the connection ends. What was missed meanwhile is in `list`."""
        while True:
            with contextlib.suppress(ProviderError):
                async for line in self._lines("/changes"):
                    if claim := _read(line, str):
                        yield claim
            await asyncio.sleep(_AGAIN_SECONDS)

    async def output(self, instance: str) -> AsyncIterator[Output]:
        async for line in self._lines(f"/instances/{_quoted(instance)}/output"):
            yield _read(line, Output)

    async def exec(self, instance: str, command: tuple[str, ...], *, stdin: bool, tty: bool) -> Session:
        query = [*(("command", word) for word in command), ("stdin", _flag(stdin)), ("tty", _flag(tty))]
        return RemoteSession(await self._open(instance, "exec", query))

    async def attach(self, instance: str, *, stdin: bool) -> Session:
        return RemoteSession(await self._open(instance, "attach", [("stdin", _flag(stdin))]))

    async def dial(self, instance: str, port: int) -> PortConnection:
        return RemoteConnection(await self._open(instance, "dial", [("port", str(port))]))

    async def _call(
        self,
        method: str,
        path: str,
        *,
        want: int = _OK,
        query: dict[str, str] | None = None,
        body: bytes | None = None,
    ) -> bytes:
        """The body of an answer with this status; nothing else is a success."""
        data = None if body is None else io.BytesIO(body)
        try:
            async with self._session.request(
                method, self._url(path), params=query, data=data, allow_redirects=False
            ) as reply:
                content = await reply.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._no_answer(error) from error
        if reply.status != want:
            raise self._trouble(reply.status, content)
        return content

    async def _lines(self, path: str) -> AsyncIterator[bytes]:
        try:
            async with self._streams.get(self._url(path)) as reply:
                if reply.status != _OK:
                    raise self._trouble(reply.status, await reply.read())
                async for line in reply.content:
                    yield line
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:  # ValueError: a line without end
            raise self._no_answer(error) from error

    async def _open(
        self, instance: str, what: str, query: Sequence[tuple[str, str]]
    ) -> aiohttp.ClientWebSocketResponse:
        url = self._url(f"/instances/{_quoted(instance)}/{what}").with_query(query)
        try:
            socket = await self._streams.ws_connect(url, max_msg_size=protocol.MAX_FRAME_BYTES)
        except aiohttp.WSServerHandshakeError as error:
            raise self._trouble(error.status, b"") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._no_answer(error) from error
        await wait_opened(socket)
        return socket

    def _url(self, path: str) -> URL:
        return URL(self._base + path, encoded=True)

    def _no_answer(self, error: Exception) -> OutcomeUnknown:
        return OutcomeUnknown(f"The simulated {self.name} gave no answer: {str(error) or type(error).__name__}.")

    def _trouble(self, status: int, content: bytes) -> ProviderError:
        """Only a refusal in its own words is one: a 5xx, a conflict or a stranger's page settles nothing."""
        if status == _UNAUTHORIZED:
            return Rejected("Unauthorized", f"The simulated {self.name} does not know this token: give it a valid one.")
        with contextlib.suppress(msgspec.MsgspecError):
            error_message = msgspec.json.decode(content, type=ErrorMessage)
            if status < _SERVER_ERROR or error_message.kind == "Unknown":
                return error_message.error()
        return OutcomeUnknown(f"The simulated {self.name} answered {status}, which says nothing.")


def _read(content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise OutcomeUnknown(f"The simulated cloud's answer cannot be read: {error}.") from error


def _quoted(instance: str) -> str:
    return quote(instance, safe="")


def _flag(is_set: bool) -> str:  # noqa: FBT001 (the flag is all there is)
    return "1" if is_set else "0"
