"""uvicorn connection with limits for size and time of incoming requests, and without protocol upgrades.

Each request has a stage: receiving the head, receiving the body, complete. After a rejected request nothing more is
read from the connection, because the end of that request is unknown.
"""

from __future__ import annotations

from asyncio import BaseTransport
from functools import partial
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from skysail.runtimes.model_server.errors import Refused
from skysail.runtimes.model_server.http.app import Application
from skysail.runtimes.model_server.http.receive_limits import LONGEST_HEAD, Arrival, HeadTooLong
from skysail.runtimes.model_server.protocol import responses
from skysail.runtimes.model_server.protocol.responses import CLOSE, Answer

WHOLE: Final = 0
HEAD: Final = 1
BODY: Final = 2

_END_OF_HEAD = b"\r\n\r\n"
_CLOSE = b"connection: close\r\n"
# Pipelined requests that are read while an earlier one runs. Each costs a hundred times its size.
_MOST_AHEAD = 128
# Delay before closing after a rejection: closing at once could discard the answer.
_LINGER_SECONDS = 2.0


class Connection(HttpToolsProtocol):
    # Slots, because attribute access is slower on objects with more than thirty attributes.
    __slots__ = ("_arrivals", "_has_body", "application", "arrival", "stage")

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        application = self.config.app
        assert isinstance(application, Application)
        self.application = application
        self.stage = WHOLE
        self._arrivals = application.arrivals
        self.arrival: Arrival | None = None
        self._has_body = False

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._expect_more()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_keepalive_if_required()
        self.forget_arrival()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if len(data) > LONGEST_HEAD and self._has_no_end(data):
            self.refuse(HeadTooLong())
            return
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserUpgrade, httptools.HttpParserError) as error:
            self._go_on(data, error)
        if self.stage != WHOLE:
            self._await_rest(len(data))

    def on_message_begin(self) -> None:
        """Reset the request without creating a scope, which the fast path does not need."""
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        self.stage = HEAD
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # handled in _declined
        if len(self.pipeline) >= _MOST_AHEAD:
            raise Refused("Too many pipelined requests: wait for answers.")  # stops the parser
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers  # in place, because the scope holds the same list
        super().on_headers_complete()
        self.headers = _Unread()
        self.stage = BODY

    def on_body(self, body: bytes) -> None:
        self._has_body = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.stage == BODY:
            super().on_message_complete()
            self.stage = WHOLE
            self.forget_arrival()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, unless the next request has started to arrive."""
        if self.stage == WHOLE and not self._is_answering():
            super().timeout_keep_alive_handler()

    def refuse(self, refusal: Refused) -> None:
        """Send the last answer of this connection, after those to earlier requests."""
        if isinstance(self.parser, _Deaf) or self.transport.is_closing():
            return
        self.parser = _Deaf()  # type: ignore[assignment]  # has the methods that are used
        if self.stage == BODY:
            self._refuse_asked(refusal)
        elif self._is_answering():
            # `Connection: close` in the answer tells the client to send the rest elsewhere.
            self.cycle.keep_alive = False
        else:
            self._say_last(responses.of_refusal(refusal))
        self.stage = WHOLE
        self.forget_arrival()

    def is_prediction(self) -> bool:
        """Return whether the request in the stage BODY is a prediction."""
        return self.application.desk.form(self.scope["path"]) is not None

    def write(self, answer: Answer, *, keeps: bool) -> None:
        lines = [STATUS_LINE[answer.status]]
        for name, value in (*self.server_state.default_headers, *answer.headers):
            lines += (name, b": ", value, b"\r\n")
        lines.append(b"content-length: %d\r\n%b\r\n" % (len(answer.content), b"" if keeps else _CLOSE))
        lines.append(answer.content)
        self.transport.write(b"".join(lines))

    def _go_on(self, data: bytes, error: Exception) -> None:
        while isinstance(error, httptools.HttpParserUpgrade):
            data = self._declined() + data[error.args[0] :]
            try:
                self.parser.feed_data(data)
            except (httptools.HttpParserUpgrade, httptools.HttpParserError) as next_error:
                error = next_error
            else:
                return
        self.refuse(_told(error))

    def _declined(self) -> bytes:
        """Return a request with an upgrade offer as a plain request.

        The parser treats such a request as the last one in HTTP and does not read its body: Java's client would get no
        answer, and its body would be parsed as a request. So a new parser reads the request without the offer.
        """
        method, version = self.parser.get_method(), self.parser.get_http_version()
        if method == b"CONNECT":
            self.refuse(Refused("CONNECT is not supported: this server is not a proxy.", 405))
            return b""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # like uvicorn
        lines = [b"%b %b HTTP/%b" % (method, self.url, version.encode())]
        lines += [b"%b: %b" % (name, value) for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join(lines) + _END_OF_HEAD

    def _has_no_end(self, data: bytes) -> bool:
        """Return whether a head that starts here is too long. A head that started before is counted by its pieces."""
        return self.stage == WHOLE and data.find(_END_OF_HEAD, 0, LONGEST_HEAD) < 0

    def _await_rest(self, size: int) -> None:
        is_first = self.arrival is None
        arrival = self.arrival or Arrival(self._arrivals, self._call_late())
        self.arrival = arrival
        try:
            if self.stage == HEAD or not self.cycle.response_started:
                arrival.keep(size)
            # Data that arrived with the end of an earlier request does not belong to this one alone.
            if self.has_lines() and not (is_first and self._is_answering()):
                arrival.lines(size)
            else:
                arrival.no_lines()
        except Refused as refusal:
            self.refuse(refusal)
        self._has_body = False

    def has_lines(self) -> bool:
        """Return whether the last data consisted of header or trailer lines only."""
        return self.stage == HEAD or not self._has_body

    def _is_answering(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def _call_late(self) -> Any:
        return self.loop.call_later(self._arrivals.seconds, self._be_late)

    def _be_late(self) -> None:
        if self.arrival is not None and self.flow.read_paused:
            self.arrival.late = self._call_late()  # the delay is ours: reading is paused
            return
        seconds = self._arrivals.seconds
        self.refuse(Refused(f"The request was incomplete after {seconds:g} s (RECEIVE_SECONDS): send it faster.", 408))

    def _refuse_asked(self, refusal: Refused) -> None:
        """Reject a request that already has its place in the pipeline, and perhaps a task."""
        cycle = self.cycle
        if self.arrival is not None and self.is_prediction():
            self.application.desk.count(refusal.status, self.arrival.seconds)
        if self.pipeline:
            self.pipeline[0] = (cycle, partial(_tell, responses.of_refusal(refusal, CLOSE)))
        elif cycle.response_started:
            self.transport.close()
        else:
            cycle.disconnected = cycle.response_complete = True
            cycle.message_event.set()
            self._say_last(responses.of_refusal(refusal))

    def _say_last(self, answer: Answer) -> None:
        """Send the answer and keep reading for a moment: most clients read only after they have sent everything."""
        self.write(answer, keeps=False)
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    def forget_arrival(self) -> None:
        if self.arrival is not None:
            self.arrival.end()
            self.arrival = None

    def _expect_more(self) -> None:
        """Start the idle timeout, so that a silent client does not keep its connection forever."""
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)


class _Deaf:
    """Parser that ignores all data."""

    def feed_data(self, data: bytes) -> None: ...


class _Unread(list[tuple[bytes, bytes]]):
    """Trailers after a body: unused, and there may be any number."""

    def append(self, _: tuple[bytes, bytes]) -> None: ...


def _told(error: Exception) -> Refused:
    if isinstance(error, httptools.HttpParserCallbackError):
        return Refused("The URL of the request cannot be parsed.")
    return Refused(f"The request is not valid HTTP: {error}.")


async def _tell(answer: Answer, _: Any, __: Any, send: Any) -> None:
    headers = [*answer.headers, (b"content-length", b"%d" % len(answer.content))]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.content})
