"""A connection of uvicorn's that takes in only so much, for only so long, and declines to speak another protocol.

Each request has a stage: its head comes in, then its body, until it is whole. One that must not go on is refused, and
nothing that comes after it on the same connection is read: where it would have ended is not known.
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
# Requests that are read while an earlier one is computed. Each costs a hundred times its bytes.
_MOST_AHEAD = 128
# For what is under way when a request is refused: a connection that is closed at once may take the answer with it.
_LINGER_SECONDS = 2.0


class Connection(HttpToolsProtocol):
    # Python finds attributes more slowly where an object has more than thirty, and uvicorn has nearly as many.
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
        """Without a scope: not every request needs one."""
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        self.stage = HEAD
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # nothing has begun: see _declined
        if len(self.pipeline) >= _MOST_AHEAD:
            raise Refused("Too many requests were sent ahead of their answers.")  # to the parser, which stops there
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers  # a list that is in the scope as well
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
        """Set with the last answer, when the beginning of the next request may have been here already."""
        if self.stage == WHOLE and not self._is_answering():
            super().timeout_keep_alive_handler()

    def refuse(self, refusal: Refused) -> None:
        """The last answer of this connection, which comes after those to earlier requests."""
        if isinstance(self.parser, _Deaf) or self.transport.is_closing():
            return
        self.parser = _Deaf()  # type: ignore[assignment]  # what is asked of one
        if self.stage == BODY:
            self._refuse_asked(refusal)
        elif self._is_answering():
            # Who is answered for the last time is told so, and may send the rest elsewhere.
            self.cycle.keep_alive = False
        else:
            self._say_last(responses.of_refusal(refusal))
        self.stage = WHOLE
        self.forget_arrival()

    def is_prediction(self) -> bool:
        """Whether the request whose body comes in is for one."""
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
        """What was offered to another protocol, as a request like any other.

        The parser takes it for the last one in HTTP, and does not read its body: Java's client would get no answer from
        us, and what it sends as a body would be taken for a request. So another parser reads it, without the offer.
        """
        method, version = self.parser.get_method(), self.parser.get_http_version()
        if method == b"CONNECT":
            self.refuse(Refused("This server is no proxy: CONNECT is not for it.", 405))
            return b""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        lines = [b"%b %b HTTP/%b" % (method, self.url, version.encode())]
        lines += [b"%b: %b" % (name, value) for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join(lines) + _END_OF_HEAD

    def _has_no_end(self, data: bytes) -> bool:
        """Whether a head that begins here is too long. One that began before is counted by its pieces."""
        return self.stage == WHOLE and data.find(_END_OF_HEAD, 0, LONGEST_HEAD) < 0

    def _await_rest(self, size: int) -> None:
        is_first = self.arrival is None
        arrival = self.arrival or Arrival(self._arrivals, self._call_late())
        self.arrival = arrival
        try:
            if self.stage == HEAD or not self.cycle.response_started:
                arrival.keep(size)
            # What came with the end of an earlier request is not all of this one.
            if self.has_lines() and not (is_first and self._is_answering()):
                arrival.lines(size)
            else:
                arrival.no_lines()
        except Refused as refusal:
            self.refuse(refusal)
        self._has_body = False

    def has_lines(self) -> bool:
        """Whether what came last was nothing but lines of a head, or those after chunks."""
        return self.stage == HEAD or not self._has_body

    def _is_answering(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def _call_late(self) -> Any:
        return self.loop.call_later(self._arrivals.seconds, self._be_late)

    def _be_late(self) -> None:
        if self.arrival is not None and self.flow.read_paused:
            self.arrival.late = self._call_late()  # it is we who do not read
            return
        seconds = self._arrivals.seconds
        self.refuse(
            Refused(f"The request was not whole after {seconds:g} s, which is what RECEIVE_SECONDS allows.", 408)
        )

    def _refuse_asked(self, refusal: Refused) -> None:
        """It has its place among the answers already, and perhaps a task."""
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
        """Most clients read only when they have sent everything: for a moment it is taken from them."""
        self.write(answer, keeps=False)
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    def forget_arrival(self) -> None:
        if self.arrival is not None:
            self.arrival.end()
            self.arrival = None

    def _expect_more(self) -> None:
        """A client that asks for nothing does not keep its connection for ever."""
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)


class _Deaf:
    """In place of a parser, where nothing more is read."""

    def feed_data(self, data: bytes) -> None: ...


class _Unread(list[tuple[bytes, bytes]]):
    """Headers after a body: nobody asks for them, and there may be any number."""

    def append(self, _: tuple[bytes, bytes]) -> None: ...


def _told(error: Exception) -> Refused:
    if isinstance(error, httptools.HttpParserCallbackError):
        return Refused("The address of the request cannot be read.")
    return Refused(f"The request cannot be read as HTTP: {error}.")


async def _tell(answer: Answer, _: Any, __: Any, send: Any) -> None:
    headers = [*answer.headers, (b"content-length", b"%d" % len(answer.content))]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.content})
