"""TLS over a provider's connection to a port in a pod."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Self, TypeVar

from skysail.cloud.provider import PortConnection

T = TypeVar("T")

_CHUNK = 64 * 1024


class TlsConnection:
    """A `PortConnection` with TLS over another one. Created by `open`."""

    def __init__(self, connection: PortConnection, context: ssl.SSLContext) -> None:
        self._port_connection = connection
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing)

    @classmethod
    async def open(cls, connection: PortConnection, context: ssl.SSLContext) -> Self:
        """Do the TLS handshake. Raises ssl.SSLError."""
        secured = cls(connection, context)
        await secured._step(secured._tls.do_handshake)
        return secured

    async def read(self) -> bytes:
        try:
            return await self._step(lambda: self._tls.read(_CHUNK))
        except ssl.SSLEOFError:
            return b""  # many peers close the connection without a TLS alert

    async def write(self, data: bytes) -> None:
        await self._step(lambda: self._tls.write(data))

    async def write_eof(self) -> None:
        await self._port_connection.write_eof()

    async def close(self) -> None:
        await self._port_connection.close()

    async def _step(self, step: Callable[[], T]) -> T:
        """Run one step of the TLS engine, and transfer bytes until it is complete."""
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
