"""The shim of a gang: real processes on loopback, without Modal."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any

import pytest

from skysail.runtimes.modal_gang import SHIM, skysail_gang

MARK = "skysail-gang "
RUN = "import sys; sys.path.insert(0, sys.argv[1]); import skysail_gang as g; g.LINK_PORT = int(sys.argv[2]); "
RANK = RUN + "g._HOSTS = '/nonexistent/hosts'; g.run_rank(int(sys.argv[3]), sys.argv[4].split(','))"


class Ranks:
    def __init__(self, *scripts: str, port: int, has_placeholders: bool = False, argv: list[str] | None = None) -> None:
        rows = [{"argv": [sys.executable, "-c", script], "env": {"OWN": str(n)}} for n, script in enumerate(scripts)]
        if argv:
            rows = [{"argv": None, "env": {}} for _ in scripts]
        gang: dict[str, Any] = {"argv": argv, "ranks": rows, "names": [], "cwd": "", "grace": 2, "nonce": "n-1"}
        env = {**os.environ, "SKYSAIL_GANG": json.dumps({**gang, "has_placeholders": has_placeholders})}
        addresses = ",".join(["127.0.0.1"] * len(scripts))
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, str(SHIM.parent), str(port), str(rank), addresses],
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(len(scripts))
        ]

    def end(self) -> list[tuple[str, dict[str, Any]]]:
        """Own output and exit marker of each rank."""
        found = []
        for process in self.processes:
            out, _ = process.communicate(timeout=60)
            lines = out.splitlines()
            marks = [json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)]
            own = [line for line in lines if not line.startswith(MARK)]
            found.append(("\n".join(own), next((mark for mark in marks if mark["kind"] == "exit"), {})))
        return found


def test_ranks_get_their_variables_and_end_together(unused_tcp_port: int):
    script = "import os; print(*(os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'NNODES', 'OWN')))"
    ranks = Ranks(script, script, port=unused_tcp_port)
    found = ranks.end()
    assert [own for own, _ in found] == ["0 2 127.0.0.1 2 0", "1 2 127.0.0.1 2 1"]
    assert [mark["code"] for _, mark in found] == [0, 0]
    assert [process.returncode for process in ranks.processes] == [0, 0]


def test_first_failure_ends_all_ranks(unused_tcp_port: int):
    sleep = "import time; time.sleep(3600)"
    ranks = Ranks(sleep, "raise SystemExit(3)", sleep, port=unused_tcp_port)
    marks = [mark for _, mark in ranks.end()]
    assert [(mark["code"], mark["aborted"]) for mark in marks] == [(143, True), (3, False), (143, True)]
    assert ranks.processes[0].returncode != 0


def test_rank_that_is_done_waits_for_the_others(unused_tcp_port: int):
    ranks = Ranks("print('done')", "import time; time.sleep(1); print('late')", port=unused_tcp_port)
    assert [own for own, _ in ranks.end()] == ["done", "late"]


def test_lost_rank_ends_the_others(unused_tcp_port: int):
    sleep = "import os, time; print('up', os.getpid(), flush=True); time.sleep(3600)"
    ranks = Ranks(sleep, sleep, port=unused_tcp_port)
    programs = []
    for process in ranks.processes:
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith("up "):
            pass
        programs.append(int(line.split()[1]))
    ranks.processes[1].send_signal(signal.SIGKILL)
    os.kill(programs[1], signal.SIGKILL)  # at Modal it ends with its container
    first, lost = ranks.end()
    assert (first[1]["code"], first[1]["aborted"]) == (143, True)
    assert lost[1] == {}


def test_program_that_cannot_start_is_127_and_told(unused_tcp_port: int):
    ranks = Ranks("", "", port=unused_tcp_port, argv=["/no/such/program"])
    assert [mark["code"] for _, mark in ranks.end()] == [127, 127]


def test_words_of_one_pod_have_rank_and_size(unused_tcp_port: int):
    ranks = Ranks("", "", port=unused_tcp_port, argv=["echo", "{rank}/{world_size}"], has_placeholders=True)
    assert [own for own, _ in ranks.end()] == ["0/2", "1/2"]


@pytest.mark.parametrize("hello", [b"1\n7\n", b"other 1\n7\n", b"n-1 2\n7\n", b"n-1 x\n7\n", b"\xff\n", b""])
def test_connection_of_a_stranger_does_not_count(unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch, hello: bytes):
    """Each rank has one chance to connect, so a stranger must not take it, nor end the gang."""
    monkeypatch.setattr(skysail_gang, "LINK_PORT", unused_tcp_port)
    addresses = ["127.0.0.1"] * 2
    leader = skysail_gang.Link(0, addresses, "n-1")
    with socket.create_connection(("127.0.0.1", unused_tcp_port), timeout=30) as stranger:
        stranger.sendall(hello)
        stranger.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):  # closed with unread bytes
            assert stranger.recv(1) == b""
    member = skysail_gang.Link(1, addresses, "n-1")
    member.report(1, 0)
    leader.report(0, 0)
    leader.wait_for_all(0)
    assert (leader.all_codes(), leader.is_aborted.is_set()) == ([0, 0], False)
    member.close()
    leader.close()
