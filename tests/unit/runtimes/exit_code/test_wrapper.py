"""The wrapper runs under every shell of this machine, and reports what its program did."""

from __future__ import annotations

import contextlib
import http.server
import os
import shutil
import signal
import subprocess
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from skysail.cloud.runpod.client import USER_AGENT
from skysail.runtimes.exit_code.script import (
    WrappedFile,
    WrapperOptions,
    reported_exit,
    reports_start,
    script,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

SHELLS = [shell for shell in ("sh", "dash", "bash", "busybox") if shutil.which(shell)]


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> list[str]:
    path = shutil.which(request.param)
    assert path
    return [path, "sh"] if request.param == "busybox" else [path]


class Wrapped:
    """One wrapped program, as a container would run it."""

    def __init__(self, shell: list[str], *program: str, env: dict[str, str] | None = None, **options: object) -> None:
        nonce = str(options.pop("nonce", "") or uuid.uuid4().hex)
        values = {"lifetime": 3600, "grace": 60, "hold": 3600, "late_hold": 3600, "api": "", **options}
        self.nonce = nonce
        text = script(WrapperOptions(nonce=nonce, **values))  # type: ignore[arg-type]
        self.process = subprocess.Popen(
            [*shell, "-c", text, "skysail", *program],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"PATH": "/usr/bin:/bin", **(env or {})},
            start_new_session=True,
        )
        self.lines: list[str] = []

    def until_exit(self) -> tuple[int, str, str]:
        assert self.process.stdout
        for line in self.process.stdout:
            if reported := reported_exit(line, self.nonce):
                return tuple(reported)
            self.lines.append(line)
        raise AssertionError(f"no exit was reported, only {self.lines}")

    def until_line(self, text: str) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line)
            if text in line:
                return
        raise AssertionError(f"{text!r} was never printed, only {self.lines}")

    @property
    def printed(self) -> str:
        """Output of the program itself: without the report of the start, and the line end before that of the exit."""
        first, *rest = self.lines
        assert reports_start(first, self.nonce)
        return "".join(rest).removesuffix("\n")

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()
        for folder in ("/tmp", "/var/tmp"):
            shutil.rmtree(f"{folder}/.skysail-{self.nonce}", ignore_errors=True)


@pytest.fixture
def run(shell: list[str]) -> Iterator[object]:
    wrapped: list[Wrapped] = []

    def start(*program: str, **options: object) -> Wrapped:
        wrapped.append(Wrapped(shell, *program, **options))  # type: ignore[arg-type]
        return wrapped[-1]

    yield start
    for one in wrapped:
        one.close()


@pytest.mark.parametrize("code", [0, 1, 37, 255])
def test_exit_code_is_reported_and_the_container_is_kept(run, code):
    wrapped = run("sh", "-c", f"echo ahoy; exit {code}")
    assert wrapped.until_exit() == (code, "exited", "")
    assert wrapped.printed == "ahoy\n"
    assert wrapped.process.poll() is None


def test_signal_of_the_program_is_reported_as_128_and_its_number(run):
    assert run("sh", "-c", "kill -KILL $$").until_exit()[0] == 137


def test_missing_program_is_127(run):
    assert run("no-such-program").until_exit()[0] == 127


def test_arguments_arrive_as_they_are(run):
    words = ["a b", "$HOME", "'", '"', "*", "\\n", "", "ü"]
    wrapped = run("python3", "-c", "import sys; print(sys.argv[1:])", *words, env={"PATH": "/usr/bin:/bin"})
    assert wrapped.until_exit()[0] == 0
    assert wrapped.printed == f"{words}\n"


def test_second_start_reports_again_and_does_not_run_the_program(run, tmp_path: Path):
    nonce, counter = uuid.uuid4().hex, tmp_path / "runs"
    program = ("sh", "-c", f"echo x >> {counter}; exit 37")
    assert run(*program, nonce=nonce).until_exit() == (37, "exited", "")
    assert run(*program, nonce=nonce).until_exit() == (37, "exited", "")
    assert counter.read_text() == "x\n"


def test_start_after_an_interrupted_run_reports_a_restart(run, tmp_path: Path):
    nonce, counter = uuid.uuid4().hex, tmp_path / "runs"
    first = run("sh", "-c", f"echo x >> {counter}; echo up; sleep 1000", nonce=nonce)
    first.until_line("up")
    first.process.kill()
    assert run("sh", "-c", f"echo x >> {counter}", nonce=nonce).until_exit() == (137, "restarted", "")
    assert counter.read_text() == "x\n"


def test_sigterm_is_forwarded_and_ends_the_container(run):
    wrapped = run("sh", "-c", "trap 'echo farewell; exit 9' TERM; echo up; while :; do sleep 0.02; done")
    wrapped.until_line("up")
    wrapped.process.send_signal(signal.SIGTERM)
    assert wrapped.until_exit() == (9, "exited", "")
    assert "farewell" in wrapped.printed
    assert wrapped.process.wait(60) == 9


def test_program_that_ignores_sigterm_is_killed_after_the_grace_period(run):
    wrapped = run("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.02; done", grace=1)
    wrapped.until_line("up")
    wrapped.process.send_signal(signal.SIGTERM)
    assert wrapped.until_exit() == (137, "exited", "")


def test_sigterm_before_the_program_has_started_ends_it_with_a_report(run):
    for _ in range(3):
        wrapped = run("sleep", "1000")
        wrapped.until_line("skysail-start")
        wrapped.process.send_signal(signal.SIGTERM)
        assert wrapped.until_exit() == (143, "exited", "")


def test_deadline_ends_the_program(run):
    assert run("sleep", "1000", lifetime=1).until_exit() == (143, "deadline", "")


def test_deadline_kills_a_program_that_ignores_sigterm(run):
    program = ("sh", "-c", "trap '' TERM; while :; do sleep 0.02; done")
    assert run(*program, lifetime=1, grace=1).until_exit() == (137, "deadline", "")


def test_termination_message_is_reported(run, tmp_path: Path):
    path = tmp_path / "message"
    wrapped = run("sh", "-c", f"printf 'disk füll\\n' > {path}; exit 1", message_path=str(path))
    assert wrapped.until_exit() == (1, "exited", "disk füll\n")


def test_files_and_folders_are_written_before_the_program_starts(run, tmp_path: Path):
    content = bytes(range(256)) + "it's 100% \\ ü\n".encode()
    file = WrappedFile(str(tmp_path / "a b" / "it's"), content, 0o640)
    wrapped = run("true", files=(file,), folders=(str(tmp_path / "empty"),), working_dir=str(tmp_path / "work"))
    assert wrapped.until_exit()[0] == 0
    assert Path(file.path).read_bytes() == content
    assert Path(file.path).stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "empty").is_dir()
    assert (tmp_path / "work").is_dir()


@pytest.mark.parametrize(
    "content", [b"-----BEGIN CERTIFICATE-----\nMIIB+/=\n-----END CERTIFICATE-----\n", b"-n", b"7", b""]
)
def test_files_that_begin_with_a_dash_or_digit_are_written_whole(run, tmp_path: Path, content: bytes):
    file = WrappedFile(str(tmp_path / "ca.pem"), content, 0o600)
    wrapped = run("true", files=(file,))
    assert wrapped.until_exit()[0] == 0
    assert wrapped.printed == ""
    assert Path(file.path).read_bytes() == content


def test_working_dir_that_cannot_be_entered_is_reported_and_the_container_is_kept(run, tmp_path: Path):
    (tmp_path / "file").write_text("")
    folder, nonce = str(tmp_path / "file"), uuid.uuid4().hex
    program = ("touch", str(tmp_path / "ran"))
    first = run(*program, working_dir=folder, nonce=nonce)
    problem = f"workingDir {folder} cannot be entered: create the folder in the image, or change workingDir."
    assert first.until_exit() == (128, "exited", problem)
    assert first.process.poll() is None
    assert run(*program, working_dir=folder, nonce=nonce).until_exit()[:2] == (128, "exited")
    assert not (tmp_path / "ran").exists()


def test_folders_of_a_volume_appear_under_their_path(run, tmp_path: Path):
    (tmp_path / "ckpt").mkdir()
    links = ((str(tmp_path / "volume" / "job 1"), str(tmp_path / "ckpt")),)
    assert run("sh", "-c", f"echo 7 > {tmp_path}/ckpt/step", links=links).until_exit()[0] == 0
    assert (tmp_path / "volume" / "job 1" / "step").read_text() == "7\n"


def test_line_without_end_does_not_hide_the_report(run):
    wrapped = run("printf", "no end")
    assert wrapped.until_exit()[0] == 0
    assert wrapped.printed == "no end"


def test_report_of_another_run_does_not_count():
    assert reported_exit("skysail-exit abc 0 exited", "abd") is None
    assert reported_exit("prefix skysail-exit abc 0 exited", "abc") is None
    assert reported_exit("skysail-exit abc 999 exited 61", "abc") == (255, "exited", "a")
    assert not reports_start("skysail-start abc", "abd")


def test_container_that_reached_its_deadline_is_kept_until_its_report_is_read(run, tmp_path: Path):
    tools = tmp_path / "bin"
    tools.mkdir()
    called = tmp_path / "called"
    os.mkfifo(called)
    (tools / "curl").write_text(f"#!/bin/sh\necho called > {called}\n")
    (tools / "curl").chmod(0o755)
    env = {"PATH": f"{tools}:/usr/bin:/bin", "RUNPOD_POD_ID": "pod1", "RUNPOD_API_KEY": "key1"}
    wrapped = run("sleep", "1000", lifetime=1, late_hold=3, api="http://127.0.0.1:1/v2", env=env)
    assert wrapped.until_exit() == (143, "deadline", "")
    reported = time.monotonic()
    assert called.read_text() == "called\n"
    assert time.monotonic() - reported > 2


@pytest.mark.parametrize("deletion", [204, 403])
@pytest.mark.parametrize("tool", ["curl", "python3", "wget"])
def test_ended_container_deletes_its_own_pod_or_terminates_it_if_deletion_is_forbidden(
    run, tool, deletion, tmp_path: Path
):
    if not shutil.which(tool, path="/usr/bin:/bin"):
        pytest.skip(f"{tool} is not installed")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "sleep", "mkdir", "od", "tr", "cat", "true", tool):
        found = shutil.which(name, path="/usr/bin:/bin")
        if found:
            (tools / name).symlink_to(found)
    requests: list[tuple[str | None, ...]] = []
    seen = threading.Event()

    class Api(http.server.BaseHTTPRequestHandler):
        def do_DELETE(self) -> None:
            self.answer(deletion, "")

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"])).decode()
            self.answer(200, f"{self.headers['Content-Type']} {content}")

        def answer(self, status: int, content: str) -> None:
            headers = self.headers["Authorization"], self.headers["User-Agent"]
            requests.append((self.command, self.path, content, *headers))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()
            if status < 300:
                seen.set()

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        env = {"PATH": str(tools), "RUNPOD_POD_ID": "pod1", "RUNPOD_API_KEY": "key1"}
        wrapped = run("true", hold=1, api=f"http://127.0.0.1:{server.server_port}/v2", env=env)
        assert wrapped.until_exit()[0] == 0
        assert seen.wait(60)
        server.shutdown()
    headers = "Bearer key1", USER_AGENT
    terminated = ("POST", "/v2/pods/pod1/action", 'application/json {"action":"terminate"}', *headers)
    assert requests == [("DELETE", "/v2/pods/pod1", "", *headers), *([terminated] if deletion == 403 else [])]
