"""How fast bytes and requests go in and out of a pod: by kubectl and by a Service, beside the direct way."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench.pods_seen import SPACE, Pods, manifest
from skysail.kube.api.resources import POD, SERVICE
from skysail.kube.client import kubeconfig
from skysail.kube.client.client import Client
from skysail.kube.client.http_transport import HttpTransport
from skysail.kube.client.transport import Request
from skysail.local.cluster.control_client import Control
from skysail.local.cluster.home import Home
from skysail.node.config.references import Service

_PORT = 8000
_LINE = "x" * 79
# A node keeps the last 32 MiB of a log; what is asked for must fit.
_MAX_LOG_BYTES = 24
_PIECE = 1 << 18
_LOAD = Path(__file__).with_name("pods_load.py")


class Beside(msgspec.Struct, frozen=True):
    """One figure each: straight to the program, and our way."""

    direct: float
    ours: float


async def measure(home: Home, pods: Pods, megabytes: int, say: Callable[[str], None]) -> dict[str, Beside]:
    log = min(megabytes, _MAX_LOG_BYTES)
    talker = manifest("talker", "sh", "-c", f"{_words(log)}; sleep 600")
    server = manifest(
        "server", "python3", "-c", _LOAD.read_text(), "serve", str(_PORT), image="python:3", labels={"app": "server"}
    )
    await pods.create(talker, server)
    await pods.until("Ready", "talker", "server")
    address = pods.address("server")
    say("logs, exec, port-forward")
    printed, by_kubectl = await asyncio.to_thread(_logs, home, log)
    found = {
        "kubectl logs, MB/s": Beside(printed, by_kubectl),
        "  the same log by HTTP, MB/s": Beside(printed, await _log_by_http(home)),
        "kubectl exec, stdout, MB/s": await asyncio.to_thread(_exec, home, megabytes),
        "kubectl port-forward, MB/s": await asyncio.to_thread(_forward, home, address, megabytes),
    }
    say("requests through a Service")
    return {**found, **await _service(home, pods, address, requests=megabytes * 20)}


async def _service(home: Home, pods: Pods, address: str, requests: int) -> dict[str, Beside]:
    """The one who asks is a pod: callers from outside would be measured by their way in."""
    cluster_ip = await _expose(home)
    command = ("python3", "-c", _LOAD.read_text(), "ask", str(requests))
    targets = (f"{address}:{_PORT}", f"{cluster_ip}:{_PORT}")
    await pods.create(manifest("asker", *command, *targets, image="python:3"))
    await pods.until("Ready", "asker")
    line = await asyncio.to_thread(_last_line, home, "asker")
    found = msgspec.json.decode(line, type=dict[str, list[float]])
    return {f"requests/s, {way}": Beside(*figures) for way, figures in found.items()}


async def _expose(home: Home) -> str:
    spec = {"selector": {"app": "server"}, "ports": [{"port": _PORT}]}
    metadata = {"name": "server", "namespace": SPACE}
    transport = HttpTransport(kubeconfig.from_file(home.kubeconfig))
    try:
        made = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
        return (await Client(transport).create(SERVICE, made, Service)).spec.cluster_ip
    finally:
        await transport.close()


def _logs(home: Home, megabytes: int) -> tuple[float, float]:
    _last_line(home, "talker", until=b"end\n")
    return _piped(["sh", "-c", _words(megabytes)]), _piped(_kubectl(home, "logs", "talker"))


async def _log_by_http(home: Home) -> float:
    """Through the API server as well, but without kubectl, which writes line by line."""
    transport = HttpTransport(kubeconfig.from_file(home.kubeconfig))
    try:
        began = time.monotonic()
        reply = await transport.send(Request(method="GET", path=POD.path(SPACE, "talker", "log")))
        return len(reply.body) / 1e6 / (time.monotonic() - began)
    finally:
        await transport.close()


def _exec(home: Home, megabytes: int) -> Beside:
    command = ["head", "-c", str(megabytes * 10**6), "/dev/zero"]
    return Beside(_piped(command), _piped(_kubectl(home, "exec", "talker", "--", *command)))


def _forward(home: Home, address: str, megabytes: int) -> Beside:
    control = Control(home.control)
    direct = _downloaded(control.dial(address, _PORT), megabytes)
    with _forwarded(home) as port:
        return Beside(direct, _downloaded(socket.create_connection(("127.0.0.1", port)), megabytes))


@contextmanager
def _forwarded(home: Home) -> Iterator[int]:
    command = _kubectl(home, "port-forward", "pod/server", f":{_PORT}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forward:
        assert forward.stdout is not None
        try:
            yield int(forward.stdout.readline().split(":")[1].split()[0])
        finally:
            forward.terminate()


def _downloaded(line: socket.socket, megabytes: int) -> float:
    """MB/s of one answer."""
    buffer, total, began = bytearray(_PIECE), 0, time.monotonic()
    with line:
        line.sendall(f"GET /{megabytes * 10**6} HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
        while got := line.recv_into(buffer):
            total += got
    return total / 1e6 / (time.monotonic() - began)


def _piped(command: list[str]) -> float:
    """MB/s of what a command prints, from its first word on: how long it takes to start is another question."""
    buffer, total, began = bytearray(_PIECE), 0, 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as child:
        assert child.stdout is not None
        while got := child.stdout.readinto(buffer):  # type: ignore[attr-defined]  # unbuffered, hence a raw file
            began = began or time.monotonic()
            total += got
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    return total / 1e6 / (time.monotonic() - began)


def _last_line(home: Home, pod: str, until: bytes = b"\n") -> bytes:
    """Of what a pod prints; waits for one that ends so."""
    command = _kubectl(home, "logs", "-f", "--tail=1", pod)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        try:
            return next(line for line in child.stdout if line.endswith(until))
        finally:
            child.terminate()


def _words(megabytes: int) -> str:
    return f"yes {_LINE} | head -c {megabytes * 10**6 // 80 * 80}; echo end"


def _kubectl(home: Home, *arguments: str) -> list[str]:
    kubectl = msgspec.json.decode(home.kubectl.read_bytes(), type=list[str])
    return [
        *kubectl,
        f"--kubeconfig={home.kubeconfig}",
        f"--cache-dir={home.kubectl_cache}",
        "-n",
        SPACE,
        *arguments,
    ]
