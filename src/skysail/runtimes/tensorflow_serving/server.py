"""HTTP server of the standard library: one thread per connection, and a shutdown that waits only for busy ones."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic
from typing import Any, Protocol

_MAX_BODY_BYTES = 64 * 2**20
_MAX_DIGITS = 18
# Longer than the 60 s of most proxies.
_IDLE_SECONDS = 75
_LINGER_SECONDS = 2


class Page(Exception):
    """Answer with an error status."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        self.message = message


class Rest(Protocol):
    """Routes of the server."""

    def read(self, path: str) -> Any:
        """Answer a GET. Raises Page."""

    def predict(self, path: str, body: bytes) -> Any:
        """Answer a POST. Raises Page."""


class Server(ThreadingHTTPServer):
    """Server that tracks idle connections, which can be closed at once."""

    # Without this, the standard library would wait for idle clients, too.
    daemon_threads = True

    def __init__(self, port: int, rest: Rest) -> None:
        super().__init__(("", port), _Handler)
        self.rest = rest
        self.is_ending = False
        self._idle: set[Any] = set()
        self._busy: set[Any] = set()
        self._change = threading.Condition()

    def end(self, seconds: float) -> None:
        """Finish busy requests within `seconds`. Called after `shutdown`."""
        self.server_close()
        with self._change:
            self.is_ending = True
            for connection in self._idle:
                # Data that has already arrived can still be read.
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
    """Connection."""

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
        """Mark the connection as busy when the first line of a request has arrived."""
        self.server.begin_request(self.connection)
        return super().parse_request()

    def do_GET(self) -> None:
        self._answer(lambda _: self.server.rest.read(self.path))

    def do_POST(self) -> None:
        self._answer(lambda body: self.server.rest.predict(self.path, body))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the name of the standard library)
        """Log nothing: a line per request would hide the rest."""

    def finish(self) -> None:
        super().finish()
        if self.is_refused:
            self._linger()

    def _answer(self, answer: Callable[[bytes], Any]) -> None:
        """Read the body in any case, because the rest of it would be parsed as the next request."""
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
        """Read the body. Raises Page, after which nothing more is read from this connection."""
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
        """Return the length of the body. Raises Page if it is unknown or too large."""
        if self.headers.defects:
            raise Page(400, "The headers are invalid: send a name, a colon and a value in each line")
        if "Transfer-Encoding" in self.headers:
            raise Page(411, "Chunked bodies are not supported: send a Content-Length")
        lengths = self.headers.get_all("Content-Length", ["0"])
        text = lengths[0].strip()
        if len(lengths) > 1 or not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
            raise Page(400, f"Content-Length must be one number, not {', '.join(lengths)[:80]}")
        if int(text) > _MAX_BODY_BYTES:
            raise Page(413, f"The body is longer than {_MAX_BODY_BYTES} bytes")
        return int(text)

    def _linger(self) -> None:
        """Read the rest for a moment: closing with unread data could discard the answer."""
        until = monotonic() + _LINGER_SECONDS
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(_LINGER_SECONDS)
            while monotonic() < until and self.connection.recv(65536):
                pass
