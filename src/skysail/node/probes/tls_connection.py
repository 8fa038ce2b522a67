"""TLS over a line to a port in a pod, whoever provides the line."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Self, TypeVar

from skysail.cloud.provider import PortConnection

T = TypeVar("T")

_CHUNK = 64 * 1024


class TlsConnection:
    """A line like the one below it. Made by `open`."""

    def __init__(self, connection: PortConnection, context: ssl.SSLContext) -> None:
        self._port_connection = connection
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing)

    @classmethod
    async def open(cls, connection: PortConnection, context: ssl.SSLContext) -> Self:
        """Shake hands. Raises ssl.SSLError."""
        secured = cls(connection, context)
        await secured._carry(secured._tls.do_handshake)
        return secured

    async def read(self) -> bytes:
        try:
            return await self._carry(lambda: self._tls.read(_CHUNK))
        except ssl.SSLEOFError:
            return b""  # the peer hung up without a word, as many do

    async def write(self, data: bytes) -> None:
        await self._carry(lambda: self._tls.write(data))

    async def write_eof(self) -> None:
        await self._port_connection.write_eof()

    async def close(self) -> None:
        await self._port_connection.close()

    async def _carry(self, step: Callable[[], T]) -> T:
        """Do one step, and move bytes below it until it is done."""
        while True:
            try:
                done = step()
            except ssl.SSLWantReadError:
                await self._flush()
                if data := await self._port_connection.read():
                    self._incoming.write(data)
                else:
                    self._incoming.write_eof()
            else:
                await self._flush()
                return done

    async def _flush(self) -> None:
        if data := self._outgoing.read():
            await self._port_connection.write(data)
