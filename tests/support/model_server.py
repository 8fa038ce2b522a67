"""The model server as a process of its own, at a port of the machine."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 600
SOURCE = Path(__file__).parents[2] / "src"


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class ModelServer:
    def __init__(self, process: subprocess.Popen[str], said: str, port: int) -> None:
        self.process = process
        self.said = said
        self.port = port

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)

    def get(self, path: str) -> Reply:
        return self._ask("GET", path)

    def post(self, path: str, content: Any) -> Reply:
        """`content` is JSON, or the bytes of a body."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Reply:
        connection = self.connect()
        try:
            connection.request(method, path, body)
            return reply(connection)
        finally:
            connection.close()


def reply(connection: http.client.HTTPConnection) -> Reply:
    answer = connection.getresponse()
    headers = {name.lower(): value for name, value in answer.getheaders()}
    return Reply(answer.status, headers, answer.read())


def begin(model: Path, *, python: str = sys.executable, **variables: str) -> subprocess.Popen[str]:
    """At any free port."""
    told = {"MODEL_PATH": str(model), "MODEL_NAME": "net", "HOST": "127.0.0.1", "PORT": "0", "DRAIN_SECONDS": "0"}
    return subprocess.Popen(
        [python, "-m", "skysail.runtimes.model_server"],
        env={**os.environ, "PYTHONPATH": str(SOURCE), **told, **variables},
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def serving(model: Path, *, python: str = sys.executable, **variables: str) -> Iterator[ModelServer]:
    """Ready to serve; asked to end afterwards, which it must do with 0."""
    process = begin(model, python=python, **variables)
    assert process.stderr is not None
    said = ""
    while not said.startswith("Serving "):
        said = process.stderr.readline()
        assert said, f"it ended with {process.wait(SECONDS)}"
    try:
        yield ModelServer(process, said, int(re.search(r":(\d+);", said)[1]))  # type: ignore[index]
    finally:
        process.terminate()
        _, rest = process.communicate(timeout=SECONDS)
    assert (process.returncode, rest) == (0, "")


def refusal(model: Path, *, python: str = sys.executable, **variables: str) -> tuple[int, str]:
    """Of a server that cannot start: its exit code, and what it said."""
    process = begin(model, python=python, **variables)
    _, said = process.communicate(timeout=SECONDS)
    return process.returncode, said
