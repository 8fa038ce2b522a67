"""HTTP requests through the bridge, beside a direct call and beside nginx as a plain reverse proxy."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench import process
from bench.serving_load import Load
from bench.table import Row

DIRECT, TCP, HTTP, NGINX = "direct", "bridge, TCP", "bridge, HTTP", "nginx"
_CONNECTIONS = 32
_START_SECONDS = 30.0
_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "skysail" / "bench" / "nginx"
_CONFIG = """
daemon off; worker_processes 1; error_log stderr; pid {folder}/nginx.pid;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 1000000;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream server {{ server 127.0.0.1:{server}; keepalive 64; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://server; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""


class BridgeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The rounds of each contestant. `absent` says why one is missing."""

    rounds: dict[str, list[Load]]
    absent: str = ""


def run(rounds: int, seconds: float, say: Callable[[str], None]) -> BridgeFigures:
    found: dict[str, list[Load]] = {}
    absent = ""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "body").mkdir()
        body = folder / "request"
        body.write_bytes(b"{}")
        server = _free_port()
        with _started([sys.executable, "-m", "bench.bridge_hop", "server", str(server)], server, process.CLIENT_CORE):
            for name in (DIRECT, TCP, HTTP, NGINX):
                say(f"{name}, {rounds} times {seconds:.0f} s")
                try:
                    found[name] = _measured(name, server, folder, rounds, seconds)
                except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
                    if name != NGINX:
                        raise
                    absent = f"nginx is left out: {error}"
                    say(f"  {absent}")
    return BridgeFigures(rounds=found, absent=absent)


def _measured(name: str, server: int, folder: Path, rounds: int, seconds: float) -> list[Load]:
    if name == DIRECT:
        return [_ask(server, folder, seconds) for _ in range(rounds)]
    port = _free_port()
    with _started(_command(name, port, server, folder), port, process.SERVER_CORE):
        _ask(port, folder, seconds / 2)
        return [_ask(port, folder, seconds) for _ in range(rounds)]


def _command(name: str, port: int, server: int, folder: Path) -> list[str]:
    if name == NGINX:
        config = folder / "nginx.conf"
        config.write_text(_CONFIG.format(folder=folder, port=port, server=server))
        return [str(_nginx()), "-p", str(folder), "-c", str(config)]
    protocol = "tcp" if name == TCP else "http"
    return [sys.executable, "-m", "bench.bridge_hop", protocol, str(port), str(server)]


def _nginx() -> Path:
    """Return nginx: that of the machine, or of Debian's package, unpacked into the cache. Raises OSError."""
    if installed := shutil.which("nginx"):
        return Path(installed)
    program = _CACHE / "usr" / "sbin" / "nginx"
    if not program.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "nginx"], cwd=_CACHE, check=True, capture_output=True)
        for package in _CACHE.glob("nginx_*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), str(_CACHE)], check=True, capture_output=True)
    if not program.exists():
        raise FileNotFoundError(f"{program} is not in Debian's package")
    return program


@contextmanager
def _started(argv: Sequence[str], port: int, place: int) -> Iterator[None]:
    child = subprocess.Popen(["taskset", "--cpu-list", ",".join(map(str, process.cores(place))), *argv])
    try:
        until = time.monotonic() + _START_SECONDS
        while not _listens(port):
            if child.poll() is not None or time.monotonic() > until:
                raise RuntimeError("it never listened")
            time.sleep(0.05)
        yield
    finally:
        child.terminate()
        child.wait()


def _ask(port: int, folder: Path, seconds: float) -> Load:
    told = [str(port), "/", str(folder / "request"), str(_CONNECTIONS), str(seconds)]
    asked = subprocess.run([sys.executable, "-m", "bench.serving_load", *told], stdout=subprocess.PIPE, check=True)
    load = msgspec.json.decode(asked.stdout, type=Load)
    if load.failed:
        raise RuntimeError(f"{load.failed} of {load.requests} requests failed")
    return load


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def rows(figures: BridgeFigures) -> list[Row]:
    """The median of the rounds of each contestant."""

    def median(figure: Callable[[Load], float]) -> list[float]:
        return [sorted(map(figure, loads))[len(loads) // 2] for loads in figures.rounds.values()]

    return [
        Row("requests per second (more is better)", median(lambda load: load.requests / load.seconds)),
        Row("milliseconds, half of the requests", median(lambda load: load.p50)),
        Row("milliseconds, 99 of 100 requests", median(lambda load: load.p99)),
    ]


def remarks(figures: BridgeFigures) -> list[str]:
    shown = [f"{_CONNECTIONS} connections that stay open, answers of 1 KiB, one core for each proxy."]
    return [*shown, *([figures.absent] if figures.absent else [])]
