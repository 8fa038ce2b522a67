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

from skysail.runtimes.model_server.errors import RequestError
from skysail.runtimes.model_server.http.app import Application
from skysail.runtimes.model_server.http.receive_limits import MAX_HEAD_BYTES, HeadTooLong, IncompleteRequest
from skysail.runtimes.model_server.protocol import responses
from skysail.runtimes.model_server.protocol.responses import CLOSE, Response

COMPLETE: Final = 0
HEAD: Final = 1
BODY: Final = 2

_END_OF_HEAD = b"\r\n\r\n"
_CLOSE = b"connection: close\r\n"
# Pipelined requests that are read while an earlier one runs. Each costs a hundred times its size.
_MAX_PIPELINED = 128
# Delay before closing after a rejection: closing at once could discard the answer.
_LINGER_SECONDS = 2.0


class Connection(HttpToolsProtocol):
    # Slots, because attribute access is slower on objects with more than thirty attributes.
    __slots__ = ("_has_body", "_receive_budget", "application", "arrival", "stage")

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        application = self.config.app
        assert isinstance(application, Application)
        self.application = application
        self.stage = COMPLETE
        self._receive_budget = application.receive_budget
        self.arrival: IncompleteRequest | None = None
        self._has_body = False

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._expect_more()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_keepalive_if_required()
        self.forget_arrival()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if len(data) > MAX_HEAD_BYTES and self._has_no_end(data):
            self.refuse(HeadTooLong())
            return
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserUpgrade, httptools.HttpParserError) as error:
            self._go_on(data, error)
        if self.stage != COMPLETE:
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
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise RequestError("Too many pipelined requests: wait for answers.")  # stops the parser
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers  # in place, because the scope holds the same list
        super().on_headers_complete()
        self.headers = _DroppedHeaders()
        self.stage = BODY

    def on_body(self, body: bytes) -> None:
        self._has_body = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.stage == BODY:
            super().on_message_complete()
            self.stage = COMPLETE
            self.forget_arrival()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, unless the next request has started to arrive."""
        if self.stage == COMPLETE and not self._is_answering():
            super().timeout_keep_alive_handler()

    def refuse(self, refusal: RequestError) -> None:
        """Send the last answer of this connection, after those to earlier requests."""
        if isinstance(self.parser, _ClosedParser) or self.transport.is_closing():
            return
        self.parser = _ClosedParser()  # type: ignore[assignment]  # has the methods that are used
        if self.stage == BODY:
            self._refuse_asked(refusal)
        elif self._is_answering():
            # `Connection: close` in the answer tells the client to send the rest elsewhere.
            self.cycle.keep_alive = False
        else:
            self._send_last(responses.error_response(refusal))
        self.stage = COMPLETE
        self.forget_arrival()

    def is_prediction(self) -> bool:
        """Return whether the request in the stage BODY is a prediction."""
        return self.application.predictor.codec_for(self.scope["path"]) is not None

    def write(self, response: Response, *, keeps: bool) -> None:
        lines = [STATUS_LINE[response.status]]
        for name, value in (*self.server_state.default_headers, *response.headers):
            lines += (name, b": ", value, b"\r\n")
        lines.append(b"content-length: %d\r\n%b\r\n" % (len(response.content), b"" if keeps else _CLOSE))
        lines.append(response.content)
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
        self.refuse(_request_error(error))

    def _declined(self) -> bytes:
        """Return a request with an upgrade offer as a plain request.

        The parser treats such a request as the last one in HTTP and does not read its body: Java's client would get no
        answer, and its body would be parsed as a request. So a new parser reads the request without the offer.
        """
        method, version = self.parser.get_method(), self.parser.get_http_version()
        if method == b"CONNECT":
            self.refuse(RequestError("CONNECT is not supported: this server is not a proxy.", 405))
            return b""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # like uvicorn
        lines = [b"%b %b HTTP/%b" % (method, self.url, version.encode())]
        lines += [b"%b: %b" % (name, value) for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join(lines) + _END_OF_HEAD

    def _has_no_end(self, data: bytes) -> bool:
        """Return whether a head that starts here is too long. A head that started before is counted by its pieces."""
        return self.stage == COMPLETE and data.find(_END_OF_HEAD, 0, MAX_HEAD_BYTES) < 0

    def _await_rest(self, size: int) -> None:
        is_first = self.arrival is None
        incomplete_request = self.arrival or IncompleteRequest(self._receive_budget, self._call_late())
        self.arrival = incomplete_request
        try:
            if self.stage == HEAD or not self.cycle.response_started:
                incomplete_request.add(size)
            # Data that arrived with the end of an earlier request does not belong to this one alone.
            if self.has_lines() and not (is_first and self._is_answering()):
                incomplete_request.add_header_bytes(size)
            else:
                incomplete_request.no_lines()
        except RequestError as refusal:
            self.refuse(refusal)
        self._has_body = False

    def has_lines(self) -> bool:
        """Return whether the last data consisted of header or trailer lines only."""
        return self.stage == HEAD or not self._has_body

    def _is_answering(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def _call_late(self) -> Any:
        return self.loop.call_later(self._receive_budget.seconds, self._be_late)

    def _be_late(self) -> None:
        if self.arrival is not None and self.flow.read_paused:
            self.arrival.timer = self._call_late()  # the delay is ours: reading is paused
            return
        seconds = self._receive_budget.seconds
        self.refuse(
            RequestError(f"The request was incomplete after {seconds:g} s (RECEIVE_SECONDS): send it faster.", 408)
        )

    def _refuse_asked(self, refusal: RequestError) -> None:
        """Reject a request that already has its place in the pipeline, and perhaps a task."""
        cycle = self.cycle
        if self.arrival is not None and self.is_prediction():
            self.application.predictor.count(refusal.status, self.arrival.seconds)
        if self.pipeline:
            self.pipeline[0] = (cycle, partial(_send_response, responses.error_response(refusal, CLOSE)))
        elif cycle.response_started:
            self.transport.close()
        else:
            cycle.disconnected = cycle.response_complete = True
            cycle.message_event.set()
            self._send_last(responses.error_response(refusal))

    def _send_last(self, response: Response) -> None:
        """Send the answer and keep reading for a moment: most clients read only after they have sent everything."""
        self.write(response, keeps=False)
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


class _ClosedParser:
    """Parser that ignores all data."""

    def feed_data(self, data: bytes) -> None: ...


class _DroppedHeaders(list[tuple[bytes, bytes]]):
    """Trailers after a body: unused, and there may be any number."""

    def append(self, _: tuple[bytes, bytes]) -> None: ...


def _request_error(error: Exception) -> RequestError:
    if isinstance(error, httptools.HttpParserCallbackError):
        return RequestError("The URL of the request cannot be parsed.")
    return RequestError(f"The request is not valid HTTP: {error}.")


async def _send_response(response: Response, _: Any, __: Any, send: Any) -> None:
    headers = [*response.headers, (b"content-length", b"%d" % len(response.content))]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.content})
