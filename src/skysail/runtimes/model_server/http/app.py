"""Routes of the server. Predictions, probes and metrics are plain ASGI; FastAPI serves the documentation pages.

A FastAPI route costs several times more than a small model, and importing FastAPI is most of the startup without
PyTorch. So FastAPI is imported at the first request for one of its pages.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TypeAlias

import msgspec

from skysail.runtimes.model_server.errors import ClientDisconnected, RequestError
from skysail.runtimes.model_server.http import request_body
from skysail.runtimes.model_server.http.receive_limits import ReceiveBudget
from skysail.runtimes.model_server.http.request_body import Receive, Scope, Send
from skysail.runtimes.model_server.inference.batcher import Batcher
from skysail.runtimes.model_server.inference.predictor import Predictor
from skysail.runtimes.model_server.lifecycle import Lifecycle, Phase
from skysail.runtimes.model_server.metrics import Metrics
from skysail.runtimes.model_server.protocol import responses
from skysail.runtimes.model_server.protocol.codecs import Codec
from skysail.runtimes.model_server.protocol.input_validation import InferenceInput
from skysail.runtimes.model_server.protocol.responses import CLOSE, Response

Asgi: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

_TEXT = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
_READING = ("GET", "HEAD")
_NO_MORE = {"type": "http.response.body", "body": b"", "more_body": False}


class Place(msgspec.Struct, frozen=True):
    """Name and version of the model in paths."""

    name: str
    version: str

    def paths(self, last: str) -> list[str]:
        base = f"/v2/models/{self.name}"
        return [f"{base}{last}", *([f"{base}/versions/{self.version}{last}"] if self.version else [])]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of incoming requests: one body, all incomplete requests, and the time to receive one."""

    body_bytes: int
    receive_bytes: float = math.inf
    receive_seconds: float = 60.0


class Application:
    """ASGI application. It answers from the start; predictions get 503 until `serve` is called."""

    def __init__(
        self, place: Place, lifecycle: Lifecycle, metrics: Metrics, *, limits: Limits, pages: Callable[[], Asgi]
    ) -> None:
        self.body_limit = limits.body_bytes
        self.receive_budget = ReceiveBudget(most=limits.receive_bytes, seconds=limits.receive_seconds)
        self.predictor = Predictor(lifecycle, metrics)
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._place = place
        self._make_pages = pages
        self._pages: Asgi | None = None
        self._predictions = ("/predict", *place.paths("/infer"))
        self._facts: dict[str, Callable[[], Response]] = {
            "/v2/health/live": self._liveness,
            "/v2/health/ready": self._readiness,
            "/stats": lambda: responses.json_response(200, self._metrics.stats()),
            "/metrics": self._counts,
        } | dict.fromkeys(place.paths("/ready"), self._readiness)

    def serve(
        self, codecs: tuple[Codec, Codec], batcher: Batcher, has_worked: Callable[[InferenceInput], bool]
    ) -> None:
        """Start predictions.

        `codecs` are those of /predict and infer; `has_worked` tells whether the model accepted such input.
        """
        predict, infer = codecs
        paths = {"/predict": predict} | dict.fromkeys(self._place.paths("/infer"), infer)
        self.predictor.start(paths, batcher, has_worked)

    @property
    def sends_away(self) -> bool:
        """Return whether clients should open their next connection to another server."""
        return self._lifecycle.phase is Phase.DRAINING

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        if method == "POST" and path in self._predictions:
            return await self._predict(path, scope, receive, send)
        if path in self._predictions:
            return await self._send(send, responses.error_response(RequestError("Predictions need POST.", 405)))
        if method in _READING and path in self._facts:
            return await self._send(send, self._facts[path]())
        if self._pages is None:
            self._pages = await asyncio.to_thread(self._make_pages)
        # FastAPI has no HEAD routes; uvicorn drops the body of the answer.
        return await self._pages({**scope, "method": "GET"} if method == "HEAD" else scope, receive, send)

    async def _predict(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        began = perf_counter()
        try:
            body = await request_body.read(scope, receive, self.body_limit)
        except ClientDisconnected:
            return
        except request_body.TooLong as refusal:
            await self._send(send, responses.error_response(refusal, CLOSE), last=False)
            await request_body.drain(scope, receive)
            await send(_NO_MORE)
            self.predictor.count(refusal.status, perf_counter() - began)
            return
        response = await self._answer(path, body, receive)
        if response is not None:
            await self._send(send, response)

    async def _answer(self, path: str, body: bytes, receive: Receive) -> Response | None:
        """Return the answer, or None if the client has disconnected."""
        codec = self.predictor.codec_for(path)
        if codec is None:
            return responses.error_response(RequestError("The model is loading: retry soon.", 503, retry_after=1))
        client = _Waiting(receive)
        self.predictor.submit(codec, body, client)
        return await client.answer

    async def _send(self, send: Send, response: Response, *, last: bool = True) -> None:
        headers = [*response.headers, (b"content-length", b"%d" % len(response.content))]
        if self.sends_away:
            headers.append(CLOSE)
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": response.content, "more_body": not last})

    def _liveness(self) -> Response:
        live = self._lifecycle.is_live
        return responses.json_response(200 if live else 503, {"live": live})

    def _readiness(self) -> Response:
        ready = self._lifecycle.is_ready
        body = {
            "name": self._place.name,
            "ready": ready,
            "live": self._lifecycle.is_live,
            "phase": self._lifecycle.phase,
        }
        return responses.json_response(200 if ready else 503, body)

    def _counts(self) -> Response:
        page = self._metrics.page(waiting=self.predictor.waiting, ready=self._lifecycle.is_ready)
        return Response(200, page, (_TEXT,))


class _Waiting:
    """Client whose task waits for the answer."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.answer: asyncio.Future[Response | None] = asyncio.get_running_loop().create_future()

    def has_left(self) -> bool:
        return self.answer.cancelled() or request_body.has_left(self._receive)

    def reply(self, response: Response | None) -> None:
        if not self.answer.done():
            self.answer.set_result(response)
