"""`skysail audit-cache` prints the numbers of the operator, for people and for programs."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from skysail.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONG = "horizontalpodautoscalers.autoscaling.with.a.long.group"
ROWS = [
    {"kind": "pods", "cached": 3, "live": 3, "missing": 0, "stale": 0, "extra": 0},
    {"kind": LONG, "cached": 10, "live": 11, "missing": 1, "stale": 0, "extra": 0},
]


class Operator(BaseHTTPRequestHandler):
    """The operator's answer to somebody with its token."""

    def do_POST(self) -> None:
        self.send_response(200 if self.headers["Authorization"] == "Bearer right" else 401)
        self.end_headers()
        self.wfile.write(json.dumps(ROWS).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Operator)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def run(url: str, tmp_path: Path, *arguments: str) -> str:
    token = tmp_path / "token"
    token.write_text("right\n")
    command = ["audit-cache", "--url", url, "--token-file", str(token), *arguments]
    done = CliRunner().invoke(main.application(), command, catch_exceptions=False)
    assert done.exit_code == 1, done.output
    return done.stdout


def test_audit_cache_prints_whole_names_in_columns(url, tmp_path):
    header, pods, others = run(url, tmp_path).splitlines()
    assert header.split() == ["KIND", "CACHED", "LIVE", "MISSING", "STALE", "EXTRA"]
    assert (pods.split(), others.split()) == (["pods", "3", "3", "0", "0", "0"], [LONG, "10", "11", "1", "0", "0"])


def test_audit_cache_json_has_the_numbers_and_names_are_what_differs(url, tmp_path):
    assert json.loads(run(url, tmp_path, "-o", "json")) == ROWS
    assert run(url, tmp_path, "-o", "name") == f"{LONG}\n"
