"""File at an http or https URL, resumed by Range and If-Range.

Keys of the Secret: `HTTP_TOKEN`, or `HTTP_USERNAME` and `HTTP_PASSWORD`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

from aiohttp import ClientResponse

from skysail.runtimes.fetch.errors import ContentChanged, InvalidContent, TransientError
from skysail.runtimes.fetch.network.uris import last_part, redact
from skysail.runtimes.fetch.sources.base import CHUNK, FileStream, SourceContext, SourceFile, nothing

Get = Callable[[str, Mapping[str, str]], AbstractAsyncContextManager[ClientResponse]]
_PARTIAL = 206
_BEYOND_THE_END = 416
_PACKED = (".gz", ".tgz")


class HttpSource:
    def __init__(self, uri: str, context: SourceContext) -> None:
        self._uri = uri
        self._get = partial(context.web.get, secret=_authorization(context.secrets))

    async def items(self) -> list[SourceFile]:
        """Return the file, from the headers of a response whose body is not read."""
        async with self.open(SourceFile(path="", key=self._uri), 0, "") as file_stream:
            return [
                SourceFile(path=_plain(file_stream.name or last_part(self._uri)), key=self._uri, size=file_stream.total)
            ]

    @asynccontextmanager
    async def open(self, source_file: SourceFile, start: int, mark: str) -> AsyncIterator[FileStream]:
        async with open_url(self._get, source_file.key, start, mark) as file_stream:
            yield file_stream


@asynccontextmanager
async def open_url(get: Get, url: str, start: int, mark: str, *, is_fixed: bool = False) -> AsyncIterator[FileStream]:
    """Open any URL at an offset; other sources use it, too. With `is_fixed`, the content never changes."""
    condition = {} if is_fixed else {"If-Range": mark}
    asked = {"Range": f"bytes={start}-", **condition} if start and mark else {}
    async with get(url, asked) as answer:
        _object_to_pages(answer, url)
        if asked and answer.status == _BEYOND_THE_END:
            if answer.headers.get("Content-Range", f"bytes */{start}") != f"bytes */{start}":
                raise ContentChanged(redact(url))
            yield FileStream(chunks=nothing(), start=start, total=start, mark=mark)
            return
        begin, total = _extent(answer)
        if begin not in {0, start}:
            raise TransientError("ServerError", f"{redact(url)} answered with another byte range than requested.")
        name = answer.content_disposition.filename if answer.content_disposition else None
        chunks = answer.content.iter_chunked(CHUNK)
        yield FileStream(
            chunks=chunks, start=begin, total=total, mark=mark if is_fixed else _mark(answer), name=name or ""
        )


def _plain(name: str) -> str:
    """Return the last part of a name that a server chose."""
    return name.replace("\\", "/").rpartition("/")[2] or "model"


def _authorization(secrets: Mapping[str, str]) -> dict[str, str]:
    if token := secrets.get("HTTP_TOKEN"):
        return {"Authorization": f"Bearer {token.strip()}"}
    if user := secrets.get("HTTP_USERNAME"):
        known = b64encode(f"{user}:{secrets.get('HTTP_PASSWORD', '')}".encode()).decode()
        return {"Authorization": f"Basic {known}"}
    return {}


def _object_to_pages(answer: ClientResponse, url: str) -> None:
    """Reject a web page at the URL of a file, which is the most common mistake."""
    name = last_part(url)
    if answer.content_type == "text/html" and not name.endswith((".html", ".htm")):
        raise InvalidContent(
            "UnsupportedFormat",
            f"{redact(url)} is a web page and not a model: use the URL of its download button.",
        )
    encoding = answer.headers.get("Content-Encoding", "identity")
    if encoding != "identity" and not name.endswith(_PACKED):
        raise InvalidContent(
            "UnsupportedFormat",
            f"{redact(url)} is sent with Content-Encoding {encoding[:20]}: use a server that sends files unchanged.",
        )


def _extent(answer: ClientResponse) -> tuple[int, int | None]:
    """Return the offset of the response, and the size of the whole file."""
    if answer.status != _PARTIAL:
        return 0, answer.content_length
    try:
        begin, _, rest = answer.headers["Content-Range"].removeprefix("bytes ").partition("-")
        total = rest.partition("/")[2]
        return int(begin), int(total) if total != "*" else None
    except (KeyError, ValueError):
        return -1, None


def _mark(answer: ClientResponse) -> str:
    """Return the mark of the content.

    A weak tag does not guarantee equal bytes, and a non-ASCII one cannot be sent back.
    """
    tag = answer.headers.get("ETag", "")
    mark = tag if tag.startswith('"') else answer.headers.get("Last-Modified", "")
    return mark if mark.isascii() else ""
