"""TLS over a line to a port in a pod, whoever provides the line."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Self, TypeVar

from skysail.cloud.provider import Line

T = TypeVar("T")

_CHUNK = 64 * 1024


class TlsLine:
    """A line like the one below it. Made by `open`."""

    def __init__(self, line: Line, context: ssl.SSLContext) -> None:
        self._line = line
        self._heard = ssl.MemoryBIO()
        self._said = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._heard, self._said)

    @classmethod
    async def open(cls, line: Line, context: ssl.SSLContext) -> Self:
        """Shake hands. Raises ssl.SSLError."""
        secured = cls(line, context)
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
        await self._line.write_eof()

    async def close(self) -> None:
        await self._line.close()

    async def _carry(self, step: Callable[[], T]) -> T:
        """Do one step, and move bytes below it until it is done."""
        while True:
            try:
                done = step()
            except ssl.SSLWantReadError:
                await self._flush()
                if data := await self._line.read():
                    self._heard.write(data)
                else:
                    self._heard.write_eof()
            else:
                await self._flush()
                return done

    async def _flush(self) -> None:
        if data := self._said.read():
            await self._line.write(data)
