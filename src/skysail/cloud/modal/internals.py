"""The only use of private attributes of the SDK `modal`, each with its reason.

- `SandboxListV2` (behind `Sandbox.list`): the public iterator hides name, tags, creation and start of a sandbox, which
  would cost one more call per sandbox and tick. It also hides sandboxes that have ended, by which a launch whose
  answer was lost is recognised.
- `_impl.result`: the public `returncode` has one number for timeouts, terminations, OOM kills and failed starts.
- `sandbox_stdio_read` and `SandboxGetLogs` (behind `Sandbox.stdout`): the public stream decodes strictly, so that one
  invalid byte ends it, and has no start position.
- `Client._close`: there is no public way to close a client.
- `ssl` of `_task_command_router_client`: the SDK loads all certificates of the machine for each handle of a sandbox,
  which takes 30 ms of a processor and 0.9 MB for as long as the sandbox runs.

The SDK owns one event loop in its own thread. `synchronize_api` makes these functions run in that loop, as it does for
the SDK's own methods; callers use their `aio` form from their own loop.
"""

from __future__ import annotations

import functools
import re
import ssl
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal

import modal
import modal.config
import msgspec
from modal._utils.async_utils import synchronize_api
from modal.io_streams import _sandbox_logs_iterator
from modal.sandbox import _task_command_router_client
from modal.sandbox._common import command_router, tags_from_protos
from modal.sandbox._impl_v2 import SandboxImplV2
from modal_proto import api_pb2

Stream = Literal["stdout", "stderr"]
_DESCRIPTORS = {"stdout": api_pb2.FILE_DESCRIPTOR_STDOUT, "stderr": api_pb2.FILE_DESCRIPTOR_STDERR}
# Ids of sandboxes at the older back end, which runs those with GPUs.
_V1_ID = re.compile(r"sb-[0-9A-Za-z]{22}")
_STATUS = api_pb2.GenericResult
_OUT_OF_MEMORY = {
    _STATUS.GENERIC_STATUS_KERNEL_OOM_KILL,
    _STATUS.GENERIC_STATUS_MEMORY_MANAGER_EVICTION,
    _STATUS.GENERIC_STATUS_MEMORY_THRASHING_EVICTION,
}

ResultKind = Literal["exited", "terminated", "timeout", "start-failed", "lost", "out-of-memory"]


class SandboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a listing. Times are in seconds since 1970, 0 if unknown. `has_task`: the sandbox is scheduled."""

    id: str
    created: float
    started: float
    has_task: bool
    tags: dict[str, str]


class SandboxResult(msgspec.Struct, frozen=True):
    """End of a sandbox."""

    kind: ResultKind
    code: int
    message: str = ""


class LogChunk(msgspec.Struct, frozen=True):
    """A chunk of output. `position` is where to resume after it. The last chunk of a stream has `is_end`.

    `start` is the number of bytes before the chunk, or None if Modal does not say it.
    """

    data: bytes
    position: str
    is_end: bool = False
    start: int | None = None


def is_v1(sandbox_id: str) -> bool:
    """Return whether the sandbox is at the older back end, by the shape of its id, as the SDK does."""
    return _V1_ID.fullmatch(sandbox_id) is not None


def _kind(status: int) -> ResultKind:
    if status in _OUT_OF_MEMORY:
        return "out-of-memory"
    match status:
        case _STATUS.GENERIC_STATUS_TERMINATED:
            return "terminated"
        case _STATUS.GENERIC_STATUS_TIMEOUT | _STATUS.GENERIC_STATUS_IDLE_TIMEOUT:
            return "timeout"
        case _STATUS.GENERIC_STATUS_INIT_FAILURE:
            return "start-failed"
        case _STATUS.GENERIC_STATUS_INTERNAL_FAILURE:
            return "lost"
        case _:
            return "exited"


class SharedTls:
    """The module `ssl` for connections to workers, with one context for all connections of a service."""

    def create_default_context(self) -> ssl.SSLContext:
        # The SDK switches the checks off for a service on this machine, so another service needs its own context.
        return _tls_context(modal.config.config["server_url"])

    def __getattr__(self, name: str) -> Any:
        return getattr(ssl, name)


@functools.lru_cache(maxsize=1)
def _tls_context(_server_url: str) -> ssl.SSLContext:
    return ssl.create_default_context()


async def _list_rows(client: Any, app_id: str, claim: str = "") -> list[SandboxRow]:
    """Return all running sandboxes of an App, page by page. A failed page fails the whole listing.

    With a claim, return all of its sandboxes instead, also those that have ended.
    """
    rows: list[SandboxRow] = []
    tags = [api_pb2.SandboxTag(tag_name="claim", tag_value=claim)] if claim else []
    request = api_pb2.SandboxListRequest(app_id=app_id, include_finished=bool(claim), tags=tags)
    while True:
        page = (await SandboxImplV2.list_page(client, request)).sandboxes
        if not page:
            return rows
        rows += map(_row, page)
        request.before_timestamp = page[-1].created_at


def _row(info: api_pb2.SandboxInfo) -> SandboxRow:
    return SandboxRow(
        id=info.id,
        created=info.created_at,
        started=info.task_info.started_at,
        has_task=bool(info.task_info.id),
        tags=tags_from_protos(info.tags),
    )


async def _read_output(sandbox: Any, stream: Stream, position: str) -> AsyncGenerator[LogChunk, None]:
    """Yield output after `position`, which is empty for the start. Ends without `is_end` if it has to be reopened."""
    impl = sandbox._impl  # noqa: SLF001 (see above)
    if is_v1(impl.sandbox_id):
        entries = _sandbox_logs_iterator(impl.sandbox_id, _DESCRIPTORS[stream], position, impl.client)
        async with aclosing(entries):
            async for data, entry in entries:
                yield LogChunk(data or b"", entry, is_end=data is None)
        return
    offset = int(position or 0)
    task_id, router = await command_router(impl)
    async with aclosing(router.sandbox_stdio_read(task_id, _DESCRIPTORS[stream], start_offset=offset)) as items:
        async for item in items:
            # The router keeps only the newest output, so a late reader may start behind what it asked for.
            offset = item.starting_offset + len(item.data)
            yield LogChunk(item.data, str(offset), start=item.starting_offset)
    yield LogChunk(b"", str(offset), is_end=True)


async def _close_client(client: Any) -> None:
    await client._close()  # noqa: SLF001 (see above)


async def _find_result(sandbox: Any) -> SandboxResult | None:
    found = sandbox._impl.result  # noqa: SLF001 (see above)
    if found is None or found.status == _STATUS.GENERIC_STATUS_UNSPECIFIED:
        return None
    return SandboxResult(_kind(found.status), found.exitcode, found.exception)


_router_client: Any = _task_command_router_client
_router_client.ssl = SharedTls()
_wrap: Any = synchronize_api
_listing = _wrap(_list_rows)
_output = _wrap(_read_output)
_closing = _wrap(_close_client)
_result = _wrap(_find_result)


async def list_rows(client: modal.Client, app_id: str) -> list[SandboxRow]:
    """Return all running sandboxes of an App."""
    rows: list[SandboxRow] = await _listing.aio(client, app_id)
    return rows


async def list_claim(client: modal.Client, app_id: str, claim: str) -> list[SandboxRow]:
    """Return all sandboxes of a claim, also those that have ended."""
    rows: list[SandboxRow] = await _listing.aio(client, app_id, claim)
    return rows


def read_output(sandbox: modal.Sandbox, stream: Stream, position: str) -> AsyncGenerator[LogChunk, None]:
    """Yield output after `position`, which is empty for the start."""
    chunks: AsyncGenerator[LogChunk, None] = _output.aio(sandbox, stream, position)
    return chunks


async def close_client(client: modal.Client) -> None:
    await _closing.aio(client)


async def result(sandbox: modal.Sandbox) -> SandboxResult | None:
    """Return the end of the sandbox as of its last lookup, or None while it runs."""
    found: SandboxResult | None = await _result.aio(sandbox)
    return found
