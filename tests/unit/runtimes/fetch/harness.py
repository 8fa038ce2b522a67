"""A download in this process, against real servers, and the command as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import random
import ssl
import sys
import time
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

from skysail.runtimes.fetch.network.credentials import PREFIX
from skysail.runtimes.fetch.network.egress_proxy import EgressProxy
from skysail.runtimes.fetch.network.http_client import HttpClient
from skysail.runtimes.fetch.network.proxy_env import ProxyEnv
from skysail.runtimes.fetch.network.resolver import AddressGuard, look_up
from skysail.runtimes.fetch.network.tls import trust_context
from skysail.runtimes.fetch.pipeline import FetchPipeline, FetchRequest
from skysail.runtimes.fetch.sources.base import SourceContext
from skysail.runtimes.fetch.sources.factory import open_source
from skysail.runtimes.fetch.transfer.progress import Progress
from skysail.runtimes.fetch.transfer.retry import RetryPolicy

LOOPBACK = ("127.0.0.0/8",)


@cache
def _public() -> ssl.SSLContext:
    """Reading all public authorities takes longer than most tests."""
    return trust_context({})


@asynccontextmanager
async def means(*, allowed=LOOPBACK, secrets=None, claim=None, proxies=None, lookup=look_up):
    address_guard, ways = AddressGuard(allowed, lookup), ProxyEnv(proxies or {})
    known = trust_context(secrets) if secrets else _public()
    async with HttpClient(address_guard, ways, known) as http, EgressProxy(address_guard, ways) as egress_proxy:
        yield address_guard, SourceContext(web=http, gate=egress_proxy, trust=known, secrets=secrets or {}, claim=claim)


@asynccontextmanager
async def saying(answer: bytes):
    """The URL of a server that says just these bytes to whoever asks, as no library would write them."""

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(say, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def fetch(uri, into: Path, *, lines=None, **options):
    """As the command does it, but for patience: nobody sleeps here, and it ends after some failures."""
    told = lines if lines is not None else []
    clock = iter(range(0, 10**9, 2))
    pipeline = FetchPipeline(
        progress=Progress(told.append, time.monotonic),
        retry_policy=lambda: RetryPolicy(
            seconds=20, clock=lambda: next(clock), sleep=lambda _seconds: asyncio.sleep(0), rng=random.Random(7)
        ),
    )
    wishes = {name: options.pop(name) for name in list(options) if name in FetchRequest.__struct_fields__}
    request = FetchRequest(**{"uri": uri, "into": into, "layout": "folder", "name": "iris", "limit": 2**30, **wishes})
    async with means(**options) as (guard, tools):
        source = open_source(uri, tools)
        guard.check(uri)
        return await pipeline.fetch(request, source)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Command:
    """`python -m skysail.runtimes.fetch`, and what it left. Keys of a Secret come as its pod gives them."""

    def __init__(self, folder: Path, *arguments: str, keys: dict[str, str] | None = None):
        self._arguments = arguments
        self._log = folder / f"termination-{id(self)}"
        inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
        given = {f"{PREFIX}{key}": value for key, value in (keys or {}).items()}
        self._environment = {**inherited, "TERMINATION_LOG": str(self._log), **given}

    def set(self, name: str, value: str) -> None:
        self._environment[name] = value

    @property
    def has_message(self) -> bool:
        return self._log.exists()

    async def start(self, before=None) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "skysail.runtimes.fetch",
            *self._arguments,
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=before,
        )

    async def run(self, before=None) -> int:
        process = await self.start(before)
        return await self.end(process)

    async def end(self, process: asyncio.subprocess.Process) -> int:
        out, err = await process.communicate()
        self.out, self.err = out.decode(), err.decode()
        return process.returncode or 0

    @property
    def message(self) -> dict:
        return json.loads(self._log.read_text())
