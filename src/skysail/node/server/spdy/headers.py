"""SPDY/3.1 header blocks: pairs of strings, compressed by deflate with a fixed dictionary.

Each connection has one compressor and one decompressor: a block that is skipped breaks all later blocks.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

from skysail.node.server.errors import ProtocolBroken

_WORD = struct.Struct(">I")
_MAX_BLOCK_BYTES = 64 * 1024

_WORDS = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow "
    "authorization cache-control connection content-base content-encoding content-language content-length "
    "content-location content-md5 content-range content-type date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie "
    "keep-alive origin"
)
_TAIL = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden"
    "404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,"
    "publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _string(value: bytes) -> bytes:
    return _WORD.pack(len(value)) + value


# The dictionary of the SPDY/3 draft, section 2.6.10.1: words with their length before them, then plain text.
DICTIONARY = b"".join(_string(word.replace("_", " ").encode()) for word in _WORDS.split()) + _TAIL.encode()


class Compressor:
    def __init__(self) -> None:
        self._zlib = zlib.compressobj(9, zlib.DEFLATED, 15, 8, zlib.Z_DEFAULT_STRATEGY, DICTIONARY)

    def block(self, headers: Mapping[str, str]) -> bytes:
        plain = _WORD.pack(len(headers)) + b"".join(
            _string(name.encode()) + _string(value.encode()) for name, value in headers.items()
        )
        return self._zlib.compress(plain) + self._zlib.flush(zlib.Z_SYNC_FLUSH)


class Decompressor:
    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(zdict=DICTIONARY)

    def headers(self, block: bytes) -> dict[str, str]:
        """Return the headers, with names in lower case and the first value of each name. Raises ProtocolBroken."""
        try:
            plain = self._zlib.decompress(block, _MAX_BLOCK_BYTES)
        except zlib.error as error:
            raise ProtocolBroken(f"a header block cannot be inflated: {error}") from error
        if self._zlib.unconsumed_tail:
            raise ProtocolBroken(f"a header block is larger than {_MAX_BLOCK_BYTES} bytes")
        return _parse(plain)


def _parse(plain: bytes) -> dict[str, str]:
    try:
        (count,) = _WORD.unpack_from(plain)
        position = _WORD.size
        strings = []
        for _ in range(2 * count):
            (length,) = _WORD.unpack_from(plain, position)
            position += _WORD.size + length
            if position > len(plain):
                raise ProtocolBroken("a header block ends within a string")
            strings.append(plain[position - length : position].decode(errors="replace"))
    except struct.error as error:
        raise ProtocolBroken("a header block ends too early") from error
    return {name.lower(): value.split("\0")[0] for name, value in zip(strings[::2], strings[1::2], strict=True)}
