"""Fast path for predictions: from uvicorn's parser to the predictor and back, without task, event and scope.

These cost several times more than a small model. Other requests (a body of unknown length or too long, `Expect`, a
connection that is closing or slow to read, pipelined requests) take uvicorn's normal path through the application.
"""

from __future__ import annotations

from typing import Any

from skysail.runtimes.model_server.errors import RequestError
from skysail.runtimes.model_server.http.connection import BODY, COMPLETE, Connection
from skysail.runtimes.model_server.protocol.codecs import Codec
from skysail.runtimes.model_server.protocol.responses import Response

_NOT_PLAIN = (b"transfer-encoding", b"expect", b"upgrade")


class FastPathConnection(Connection):
    """Connection with the fast path."""

    __slots__ = ("_codec", "_read", "_reading")

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._codec = self.application.predictor.plain_form
        self._reading: _Request | None = None
        self._read: _Request | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        request = self._read
        if request is not None:
            # Run outside of the parser, which would treat any error as the client's.
            self._read = None
            self.application.predictor.submit(request.form, request.whole(), request)

    def on_headers_complete(self) -> None:
        codec = self._codec(self.url.decode("latin-1"))
        if codec is not None and self._is_plain():
            self._reading = self.cycle = _Request(self, codec)  # type: ignore[assignment]  # has the attributes that uvicorn uses
            self.stage = BODY
        else:
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
            self.stage = COMPLETE
            if self.arrival is not None:
                self.forget_arrival()

    def refuse(self, refusal: RequestError) -> None:
        super().refuse(refusal)
        if self._reading is not None:
            self._reading.parts.clear()
            self._reading = None

    def has_lines(self) -> bool:
        return self._reading is None and super().has_lines()

    def is_prediction(self) -> bool:
        return self._reading is not None or super().is_prediction()

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
        return length is not None and length <= self.application.body_limit


class _NullEvent:
    """Replacement for the event that tells a uvicorn task about a disconnect."""

    def set(self) -> None: ...


class _Request:
    """Replacement for uvicorn's cycle: uvicorn sets `keep_alive` and `disconnected` and reads the others."""

    __slots__ = ("_connection", "disconnected", "form", "keep_alive", "parts", "response_complete")

    message_event = _NullEvent()
    response_started = False  # an answer is written in one piece

    def __init__(self, connection: FastPathConnection, codec: Codec) -> None:
        self._connection = connection
        self.form = codec
        self.parts: list[bytes] = []
        self.keep_alive = True
        self.disconnected = False
        self.response_complete = False

    def whole(self) -> bytes:
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)

    def has_left(self) -> bool:
        return self._connection.transport.is_closing()

    def reply(self, response: Response | None) -> None:
        self.response_complete = True
        connection = self._connection
        if response is None or connection.transport.is_closing():
            return
        keeps = self.keep_alive and not connection.application.sends_away
        connection.write(response, keeps=keeps)
        if not keeps:
            connection.transport.close()
        connection.on_response_complete()
