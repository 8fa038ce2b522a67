"""HTTP, by the standard library: a thread for each connection, and an end that waits only for those who have asked."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic
from typing import Any, Protocol

_LONGEST_BODY = 64 * 2**20
_MOST_DIGITS = 18
# More than the minute that proxies keep theirs.
_IDLE_SECONDS = 75
_LINGER_SECONDS = 2


class Page(Exception):
    """An answer other than the one that was asked for."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        self.message = message


class Rest(Protocol):
    """What is answered to whom."""

    def read(self, path: str) -> Any:
        """Raises Page."""

    def predict(self, path: str, body: bytes) -> Any:
        """Raises Page."""


class Server(ThreadingHTTPServer):
    """Knows which connections are idle: those have nothing to lose when the process ends."""

    # The standard library would wait for all, and an idle client may stay for as long as it likes.
    daemon_threads = True

    def __init__(self, port: int, rest: Rest) -> None:
        super().__init__(("", port), _Handler)
        self.rest = rest
        self.is_ending = False
        self._idle: set[Any] = set()
        self._busy: set[Any] = set()
        self._change = threading.Condition()

    def end(self, seconds: float) -> None:
        """After `shutdown`: what is under way is finished, as far as it is within `seconds`."""
        self.server_close()
        with self._change:
            self.is_ending = True
            for connection in self._idle:
                # What has come in already can still be read.
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RD)
            self._change.wait_for(lambda: not self._idle and not self._busy, seconds)

    def begin_request(self, connection: Any) -> None:
        with self._change:
            self._idle.discard(connection)
            self._busy.add(connection)

    def end_request(self, connection: Any) -> None:
        with self._change:
            self._busy.discard(connection)
            self._idle.add(connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._change:
            self._idle.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._change:
            self._idle.discard(request)
            self._busy.discard(request)
            self._change.notify_all()
        super().shutdown_request(request)


class _Handler(BaseHTTPRequestHandler):
    """A connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS
    is_refused = False

    def handle_one_request(self) -> None:
        super().handle_one_request()
        self.server.end_request(self.connection)
        if self.server.is_ending:
            self.close_connection = True

    def parse_request(self) -> bool:
        """Called with the first line of a request."""
        self.server.begin_request(self.connection)
        return super().parse_request()

    def do_GET(self) -> None:
        self._answer(lambda _: self.server.rest.read(self.path))

    def do_POST(self) -> None:
        self._answer(lambda body: self.server.rest.predict(self.path, body))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the name of the standard library)
        """A line for each request would be all that a log has."""

    def finish(self) -> None:
        super().finish()
        if self.is_refused:
            self._linger()

    def _answer(self, answer: Callable[[bytes], Any]) -> None:
        """The body is read whatever is asked: what is left of it would be taken for the next request."""
        try:
            status, content = 200, answer(self._body())
        except Page as page:
            status, content = page.status, {"error": page.message}
        self._send(status, json.dumps(content).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection or self.server.is_ending:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _body(self) -> bytes:
        """Raises Page, after which nothing more is read of this connection."""
        try:
            return self._read(self._length())
        except Page:
            self.close_connection = self.is_refused = True
            raise

    def _read(self, length: int) -> bytes:
        body = self.rfile.read(length)
        if len(body) < length:
            raise Page(400, "The body is shorter than its Content-Length")
        return body

    def _length(self) -> int:
        """Raises Page where nobody can say where the request ends, or it is too long."""
        if self.headers.defects:
            raise Page(400, "The headers cannot be read: each is a line with a name, a colon and a value")
        if "Transfer-Encoding" in self.headers:
            raise Page(411, "A body in chunks is not read here: send it with a Content-Length")
        told = self.headers.get_all("Content-Length", ["0"])
        text = told[0].strip()
        if len(told) > 1 or not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
            raise Page(400, f"Content-Length must be one number, and not {', '.join(told)[:80]}")
        if int(text) > _LONGEST_BODY:
            raise Page(413, f"A request has at most {_LONGEST_BODY} bytes")
        return int(text)

    def _linger(self) -> None:
        """A connection that is closed while something is unread may take the answer with it."""
        until = monotonic() + _LINGER_SECONDS
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(_LINGER_SECONDS)
            while monotonic() < until and self.connection.recv(65536):
                pass
