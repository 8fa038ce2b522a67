"""The short way for predictions: from uvicorn's parser to the desk and back, without a task, an event and a scope.

These cost several times what a small model does. Whatever is not plain (a body of unknown length or too long, `Expect`,
a connection that ends or is slow to read, several requests at once) goes uvicorn's own way, by the application.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from skysail.runtimes.fastapi_pytorch.answers import Answer
from skysail.runtimes.fastapi_pytorch.application import Application
from skysail.runtimes.fastapi_pytorch.requests import Form

_NOT_PLAIN = (b"transfer-encoding", b"expect", b"upgrade")
_CLOSE = b"connection: close\r\n"


class Lane(HttpToolsProtocol):
    """A connection."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        application = self.config.app
        assert isinstance(application, Application)
        self._application = application
        self._form = application.desk.plain_form
        self._reading: _Request | None = None
        self._read: _Request | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        request = self._read
        if request is not None:
            # Not from inside the parser, which would take any error for one of the client's.
            self._read = None
            self._application.desk.take(request.form, request.whole(), request)

    def on_message_begin(self) -> None:
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_headers_complete(self) -> None:
        form = self._form(self.url.decode("latin-1"))
        if form is not None and self._is_plain():
            self._reading = self.cycle = _Request(self, form)  # type: ignore[assignment]  # what uvicorn asks of one
            return
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers  # a list that is in the scope as well
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._reading is None:
            super().on_body(body)
        else:
            self._reading.parts.append(body)

    def on_message_complete(self) -> None:
        if self._reading is None:
            super().on_message_complete()
        else:
            self._read, self._reading = self._reading, None

    def _is_plain(self) -> bool:
        earlier: Any = self.cycle
        if earlier is not None and not earlier.response_complete:
            return False
        if self.flow.write_paused or not self.parser.should_keep_alive():
            return False
        if self.parser.get_method() != b"POST" or self.parser.get_http_version() != "1.1":
            return False
        length = None
        for name, value in self.headers:
            if name == b"content-length":
                length = int(value)
            elif name in _NOT_PLAIN:
                return False
        return length is not None and length <= self._application.body_limit

    def write(self, answer: Answer, *, keeps: bool) -> None:
        lines = [STATUS_LINE[answer.status]]
        for name, value in (*self.server_state.default_headers, *answer.headers):
            lines += (name, b": ", value, b"\r\n")
        keeps = keeps and not self._application.sends_away
        lines.append(b"content-length: %d\r\n%b\r\n" % (len(answer.content), b"" if keeps else _CLOSE))
        lines.append(answer.content)
        self.transport.write(b"".join(lines))
        if not keeps:
            self.transport.close()


class _Nobody:
    """In place of the event that tells a task of uvicorn's that its client has left."""

    def set(self) -> None: ...


class _Request:
    """Stands where uvicorn has its cycle: `keep_alive` and `disconnected` are set, the others read by it."""

    __slots__ = ("_lane", "disconnected", "form", "keep_alive", "parts", "response_complete")

    message_event = _Nobody()

    def __init__(self, lane: Lane, form: Form) -> None:
        self._lane = lane
        self.form = form
        self.parts: list[bytes] = []
        self.keep_alive = True
        self.disconnected = False
        self.response_complete = False

    def whole(self) -> bytes:
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)

    def has_left(self) -> bool:
        return self._lane.transport.is_closing()

    def reply(self, answer: Answer | None) -> None:
        self.response_complete = True
        if answer is None or self.has_left():
            return
        self._lane.write(answer, keeps=self.keep_alive)
        self._lane.on_response_complete()
