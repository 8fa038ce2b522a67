"""One rank of a gang, as a clustered Function of Modal. Modal imports this file alone, with the Python of the image.

The program of each rank is in the variable SKYSAIL_GANG. Every rank

1. reads its rank and the addresses of all ranks from the SDK, which needs no call,
2. starts its program with RANK, WORLD_SIZE, MASTER_ADDR and so on, on its own standard output and error,
3. keeps a connection to rank 0, so that the first failure of any rank ends all of them,
4. prints marker lines. Only they carry exit codes: the result of the Function is never read.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

VARIABLE = "SKYSAIL_GANG"
# Begins the marker lines `start` (rank, task), `exit` (rank, code, aborted, cause) and `gang` (codes), in JSON.
MARK = "skysail-gang "
# Not a port that training frameworks use by default.
LINK_PORT = 31529
MASTER_PORT = "29500"
_HOSTS = "/etc/hosts"
_JOIN_SECONDS = 120.0
_POLL_SECONDS = 0.1
_KILL_SECONDS = 5.0
# Time for the other ranks to report, after one has failed and all had their grace period.
_REPORT_SECONDS = 10.0
_MAX_HELLO_BYTES = 256
_LOST = -1
_NOT_STARTED = 127
_SIGNAL_BASE = 128


class GangFailed(RuntimeError):
    """Makes the call fail if a rank has failed."""


def run() -> None:
    """Run this rank to the end of the whole gang."""
    import modal  # noqa: PLC0415 (Modal mounts its SDK into the container; nothing else here needs it)

    cluster = modal.Cluster.from_context()
    run_rank(cluster.container_rank(), list(cluster.container_ips()), cluster.object_id)


def run_rank(rank: int, addresses: list[str], cluster: str = "") -> None:
    gang = json.loads(os.environ[VARIABLE])
    grace = float(gang["grace"])
    _mark("start", rank=rank, task=os.environ.get("MODAL_TASK_ID", ""), cluster=cluster)
    _write_hosts(rank, addresses, gang["names"])
    link, program, code = Link(rank, addresses, gang["nonce"]), None, None
    try:
        program = _start(gang, rank, addresses)
        while program is not None and program.poll() is None:
            if link.is_aborted.wait(_POLL_SECONDS):
                _stop(program, grace)
        code = _NOT_STARTED if program is None else _exit_code(program.returncode)
        _mark_exit(rank, code, is_aborted=link.is_aborted.is_set())
        link.report(rank, code)
        link.wait_for_all(grace + _KILL_SECONDS + _REPORT_SECONDS)
        if rank == 0:
            codes = link.all_codes()
            _mark("gang", codes=codes)
            if any(codes):
                raise GangFailed(f"exit codes of the ranks: {codes}")
    finally:
        if program is not None and code is None:
            # Cancelled or interrupted: an exception was raised in this thread by a signal.
            _stop(program, grace)
            ended = program.poll()
            cause = type(sys.exc_info()[1]).__name__
            _mark_exit(rank, _exit_code(-signal.SIGKILL if ended is None else ended), is_aborted=True, cause=cause)
        link.close()


class Link:
    """Connection of the ranks. Rank 0 collects exit codes and aborts the others; a lost connection is a failure.

    A connection that does not begin with the nonce of the gang does not count.
    """

    def __init__(self, rank: int, addresses: list[str], nonce: str) -> None:
        self._nonce = nonce.encode()
        self.is_aborted = threading.Event()
        self._size = len(addresses)
        self._codes: dict[int, int] = {}
        self._peers: dict[int, socket.socket] = {}
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._server: socket.socket | None = None
        self._socket: socket.socket | None = None
        if rank == 0:
            self._server = _listen(addresses[0], self._size)
            _in_background(functools.partial(self._accept, self._server))
        else:
            self._socket = _dial(addresses[0])
            self._socket.sendall(b"%s %d\n" % (self._nonce, rank))
            _in_background(functools.partial(self._follow, self._socket))

    def report(self, rank: int, code: int) -> None:
        """Report an exit code to rank 0. The first one that is not 0 aborts all ranks."""
        if self._socket is not None:
            _send(self._socket, b"%d\n" % code)
            return
        with self._lock:
            self._codes.setdefault(rank, code)
            is_first = code != 0 and not self.is_aborted.is_set()
            if is_first:
                self.is_aborted.set()
            peers = list(self._peers.values()) if is_first else []
        for peer in peers:
            _send(peer, b"abort\n")
        if len(self._codes) == self._size:
            self._is_over.set()

    def wait_for_all(self, seconds: float) -> None:
        """Wait until all ranks have exited, or until an aborted gang has had this many seconds."""
        deadline = None
        while not self._is_over.wait(_POLL_SECONDS):
            if self.is_aborted.is_set():
                deadline = deadline or time.monotonic() + seconds
                if time.monotonic() > deadline:
                    return

    def all_codes(self) -> list[int]:
        return [self._codes.get(rank, _LOST) for rank in range(self._size)]

    def close(self) -> None:
        for each in (*self._peers.values(), self._socket, self._server):
            if each is not None:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed at the end
            while True:
                peer, _ = server.accept()
                _keep_alive(peer)
                _in_background(functools.partial(self._serve, peer))

    def _serve(self, peer: socket.socket) -> None:
        """Read the rank and later the exit code of a peer."""
        lines = peer.makefile("rb")
        try:
            rank = self._rank(lines.readline(_MAX_HELLO_BYTES))
        except OSError:
            rank = None
        with self._lock:
            if rank is None or rank in self._peers:
                lines.close()
                peer.close()
                return
            self._peers[rank] = peer
            is_late = self.is_aborted.is_set()
        if is_late:
            _send(peer, b"abort\n")
        try:
            code = lines.readline().strip()
        except OSError:
            code = b""
        self.report(rank, int(code) if code else _LOST)

    def _rank(self, hello: bytes) -> int | None:
        """Return the rank in the first line of a connection, or None if it comes from no rank of this gang."""
        nonce, _, number = hello.strip().partition(b" ")
        if not hmac.compare_digest(nonce, self._nonce) or not number.isdigit():
            return None
        return int(number) if 0 < int(number) < self._size else None

    def _follow(self, leader: socket.socket) -> None:
        with contextlib.suppress(OSError):
            for line in leader.makefile():
                if line.strip() == "abort":
                    self.is_aborted.set()
        # Rank 0 has ended the gang, or is lost.
        self._is_over.set()
        self.is_aborted.set()


def _start(gang: dict[str, Any], rank: int, addresses: list[str]) -> subprocess.Popen[bytes] | None:
    """Start the program of this rank. Returns None if it cannot be started, and says why."""
    own, size = gang["ranks"][rank], str(len(addresses))
    argv = own["argv"] or gang["argv"]
    if gang["has_placeholders"]:
        argv = [word.replace("{rank}", str(rank)).replace("{world_size}", size) for word in argv]
    defaults = {
        "RANK": str(rank),
        "WORLD_SIZE": size,
        "NODE_RANK": str(rank),
        "NNODES": size,
        "MASTER_PORT": MASTER_PORT,
    }
    inherited = {name: value for name, value in os.environ.items() if name != VARIABLE}
    # The address of rank 0 replaces a value of the container, which names a pod of the cluster.
    env = {**defaults, **inherited, **own["env"], "MASTER_ADDR": addresses[0]}
    try:
        # The user's own program, in the user's own container.
        return subprocess.Popen(argv, env=env, cwd=gang["cwd"] or None, start_new_session=True)  # noqa: S603
    except OSError as error:
        sys.stderr.write(f"skysail: {argv[0]} cannot be started: {error.strerror or error}\n")
        sys.stderr.flush()
        return None


def _stop(program: subprocess.Popen[bytes], grace: float) -> None:
    """Ask the program and its children to end, and kill them after the grace period."""
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, _KILL_SECONDS)):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(program.pid, number)
            program.wait(seconds)
            return


def _exit_code(code: int) -> int:
    return code if code >= 0 else _SIGNAL_BASE - code


def _write_hosts(rank: int, addresses: list[str], names: list[list[str]]) -> None:
    """Make all ranks known under the names that their pods would have."""
    rows = [f"{addresses[number]} {' '.join(names[number])}\n" for number in range(len(names))]
    try:
        with Path(_HOSTS).open("a", encoding="utf-8") as hosts:
            hosts.write("".join(rows))
    except OSError:
        if rows and rank == 0:
            sys.stderr.write("skysail: /etc/hosts is read-only, so ranks have no names: use MASTER_ADDR.\n")


def _mark(kind: str, stream: TextIO | None = None, **fields: object) -> None:
    stream = stream or sys.stdout
    stream.write(f"{MARK}{json.dumps({'kind': kind, **fields})}\n")
    stream.flush()


def _mark_exit(rank: int, code: int, *, is_aborted: bool, cause: str = "") -> None:
    """Mark the end of both streams: what follows is the SDK's own."""
    for stream in (sys.stderr, sys.stdout):
        _mark("exit", stream, rank=rank, code=code, aborted=is_aborted, cause=cause)


def _listen(address: str, size: int) -> socket.socket:
    server = socket.socket(_family(address))
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((address, LINK_PORT))
    server.listen(size)
    return server


def _dial(address: str) -> socket.socket:
    """Connect to rank 0, which may start later."""
    deadline = time.monotonic() + _JOIN_SECONDS
    while True:
        try:
            found = socket.create_connection((address, LINK_PORT), timeout=_KILL_SECONDS)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)
        else:
            found.settimeout(None)
            _keep_alive(found)
            return found


def _keep_alive(connection: socket.socket) -> None:
    """Notice a machine that is gone without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _send(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(data)


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _in_background(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()
