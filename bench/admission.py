"""Admission reviews of pods: the placement webhook beside a webhook that only decodes and allows.

Both servers are processes of their own and get the same reviews, over as many connections as an API server keeps. A pod
that asks for no cloud and no GPU never reaches the webhook: the API server evaluates its match conditions itself.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import aiohttp
import msgspec

from bench import admission_server, pods, process
from bench.admission_server import EMPTY, PATHS, PLACEMENT
from bench.table import Row

_CONNECTIONS = 8
_WARM_UP = 200
COLUMNS = ("empty webhook", "placement, GPU pod", "placement, asking")
_ASK = {"modal-operator.io/offload": "true", "modal-operator.io/gpu": "A100"}


class Reviews(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of each review, and processor time of the server for all of them."""

    seconds: list[float]
    cpu: float
    patched: int


class AdmissionFigures(msgspec.Struct, frozen=True, kw_only=True):
    empty: Reviews
    automatic: Reviews
    asking: Reviews


def run(reviews: int, say: Callable[[str], None]) -> AdmissionFigures:
    found = {}
    cases = (("empty", EMPTY, {}), ("automatic", PLACEMENT, {}), ("asking", PLACEMENT, _ASK))
    for name, contestant, asked in cases:
        say(f"{reviews:,} admission reviews: {name}")
        with _server(contestant) as (port, pid):
            found[name] = asyncio.run(_measure(port, pid, PATHS[contestant], reviews, asked))
    return AdmissionFigures(**found)


def rows(figures: AdmissionFigures) -> list[Row]:
    every: Sequence[Reviews] = (figures.empty, figures.automatic, figures.asking)
    return [
        Row("review, p50, ms", [pods.at(each.seconds, 50) for each in every]),
        Row("  p99, ms", [pods.at(each.seconds, 99) for each in every]),
        Row("  processor time, µs", [each.cpu / len(each.seconds) * 1e6 for each in every]),
    ]


def remarks(figures: AdmissionFigures) -> list[str]:
    count = len(figures.asking.seconds)
    return [f"Of {count:,} pods that asked, {figures.asking.patched:,} were patched: each one was placed."]


def _review(number: int, annotations: dict[str, str]) -> bytes:
    container = {
        "name": "main",
        "image": "python:3.11",
        "command": ["python3", "-c", "print(1)"],
        "env": [{"name": f"V{n}", "value": str(n)} for n in range(8)],
        "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "2", "memory": "8Gi"}},
    }
    metadata = {"name": f"p-{number}", "namespace": "bench", "annotations": annotations, "labels": {"app": "bench"}}
    pod = {"metadata": metadata, "spec": {"containers": [container], "restartPolicy": "Never"}}
    request: dict[str, Any] = {"uid": str(number), "namespace": "bench", "operation": "CREATE", "object": pod}
    return msgspec.json.encode({"kind": "AdmissionReview", "request": request})


async def _measure(port: int, pid: int, path: str, reviews: int, annotations: dict[str, str]) -> Reviews:
    url = f"http://127.0.0.1:{port}{path}"
    seconds: list[float] = []
    patched = 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=_CONNECTIONS)) as session:

        async def ask(number: int) -> bool:
            body = _review(number, annotations)
            begun = time.perf_counter()
            async with session.post(url, data=body) as answer:
                content = await answer.read()
            seconds.append(time.perf_counter() - begun)
            patch = msgspec.json.decode(content)["response"].get("patch", "")
            return b"nodeSelector" in base64.b64decode(patch)

        async def worker(numbers: range) -> int:
            return sum([await ask(number) for number in numbers])

        await worker(range(_WARM_UP))
        seconds.clear()
        before = process.cpu_of(pid)
        share = -(-reviews // _CONNECTIONS)
        patched = sum(await asyncio.gather(*(worker(range(n * share, (n + 1) * share)) for n in range(_CONNECTIONS))))
        spent = process.cpu_of(pid) - before
    return Reviews(seconds=seconds, cpu=spent, patched=patched)


@contextmanager
def _server(contestant: str) -> Any:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [sys.executable, "-m", admission_server.__name__, contestant, str(port)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None, "a pipe"
            assert server.stdout.readline() == "ready\n", "the server has not started"
            yield port, server.pid
        finally:
            server.terminate()
