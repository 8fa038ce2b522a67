"""What is answered to whom. Predictions, probes and metrics are plain ASGI; FastAPI has the pages that people look at.

A route of FastAPI costs several times what a small model does, and importing it most of a start without PyTorch. So it
is made when somebody asks for the first page of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from time import perf_counter
from typing import TypeAlias

import msgspec

from skysail.runtimes.fastapi_pytorch import bodies
from skysail.runtimes.fastapi_pytorch.batching import Batcher
from skysail.runtimes.fastapi_pytorch.bodies import Receive, Scope, Send
from skysail.runtimes.fastapi_pytorch.errors import Left, ModelError, Refused
from skysail.runtimes.fastapi_pytorch.intake import Work
from skysail.runtimes.fastapi_pytorch.life import Life, Phase
from skysail.runtimes.fastapi_pytorch.metrics import Metrics
from skysail.runtimes.fastapi_pytorch.requests import Form

Asgi: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

_JSON = (b"content-type", b"application/json")
_TEXT = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
_CLOSE = (b"connection", b"close")
_NO_MORE = {"type": "http.response.body", "body": b"", "more_body": False}


class Place(msgspec.Struct, frozen=True):
    """The model's name and version in paths."""

    name: str
    version: str

    def paths(self, last: str) -> list[str]:
        base = f"/v2/models/{self.name}"
        return [f"{base}{last}", *([f"{base}/versions/{self.version}{last}"] if self.version else [])]


class Answer(msgspec.Struct, frozen=True):
    status: int
    content: bytes
    headers: tuple[tuple[bytes, bytes], ...] = (_JSON,)


class Application:
    """Answers from the first moment on; about predictions it says that they come later, until `serve` is called."""

    def __init__(
        self, place: Place, life: Life, metrics: Metrics, *, body_limit: int, pages: Callable[[], Asgi]
    ) -> None:
        self._life = life
        self._metrics = metrics
        self._place = place
        self._body_limit = body_limit
        self._make_pages = pages
        self._pages: Asgi | None = None
        self._batcher: Batcher | None = None
        self._has_worked: Callable[[Work], bool] = lambda _: False
        self._forms: Mapping[str, Form | None] = dict.fromkeys(("/predict", *place.paths("/infer")))
        self._facts: dict[str, Callable[[], Answer]] = {
            "/v2/health/live": lambda: _json(200, {"live": True}),
            "/v2/health/ready": self._readiness,
            "/stats": lambda: _json(200, self._metrics.stats()),
            "/metrics": self._counts,
        } | dict.fromkeys(place.paths("/ready"), self._readiness)

    def serve(self, forms: tuple[Form, Form], batcher: Batcher, has_worked: Callable[[Work], bool]) -> None:
        """`forms` are those of /predict and of infer; `has_worked` tells whether the model ever took such input."""
        predict, infer = forms
        self._batcher = batcher
        self._has_worked = has_worked
        self._forms = {"/predict": predict} | dict.fromkeys(self._place.paths("/infer"), infer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        if method == "POST" and path in self._forms:
            return await self._predict(self._forms[path], scope, receive, send)
        if path in self._forms:
            return await self._send(send, _refusal(Refused("Predictions are asked for with POST.", 405)))
        if method == "GET" and path in self._facts:
            return await self._send(send, self._facts[path]())
        if self._pages is None:
            self._pages = await asyncio.to_thread(self._make_pages)
        return await self._pages(scope, receive, send)

    async def _predict(self, form: Form | None, scope: Scope, receive: Receive, send: Send) -> None:
        began = perf_counter()
        try:
            answer = await self._answer(form, scope, receive)
            await self._send(send, answer)
        except Left:
            return
        except bodies.TooLong as refusal:
            answer = _refusal(refusal, _CLOSE)
            await self._send(send, answer, last=False)
            await bodies.drain(scope, receive)
            await send(_NO_MORE)
        if self._life.counts:
            self._metrics.answered(answer.status, perf_counter() - began)

    async def _answer(self, form: Form | None, scope: Scope, receive: Receive) -> Answer:
        """Raises Left, and TooLong."""
        body = await bodies.read(scope, receive, self._body_limit)
        if form is None or self._batcher is None:
            return _refusal(Refused("The model is being loaded; try again soon.", 503, retry_after=1))
        try:
            work = form.read(body)
            outputs = await self._batcher.submit(work, partial(bodies.has_left, receive))
        except Refused as refusal:
            return _refusal(refusal)
        except ModelError as error:
            status = 500 if self._has_worked(work) else 400
            return _refusal(Refused(f"The model failed with input of the shape {_shapes(work)}: {error}.", status))
        return Answer(200, form.write(work, outputs))

    async def _send(self, send: Send, answer: Answer, *, last: bool = True) -> None:
        headers = [*answer.headers, (b"content-length", b"%d" % len(answer.content))]
        if self._life.phase is Phase.DRAINING:
            headers.append(_CLOSE)  # the client's next connection leads to another server
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.content, "more_body": not last})

    def _readiness(self) -> Answer:
        ready = self._life.is_ready
        told = {"name": self._place.name, "ready": ready, "live": True, "phase": self._life.phase}
        return _json(200 if ready else 503, told)

    def _counts(self) -> Answer:
        waiting = self._batcher.waiting if self._batcher is not None else 0
        return Answer(200, self._metrics.page(waiting=waiting, ready=self._life.is_ready), (_TEXT,))


def _json(status: int, content: object) -> Answer:
    return Answer(status, msgspec.json.encode(content))


def _refusal(refusal: Refused, *more: tuple[bytes, bytes]) -> Answer:
    retry = [(b"retry-after", b"%d" % refusal.retry_after)] if refusal.retry_after else []
    return Answer(refusal.status, msgspec.json.encode({"error": str(refusal)}), (_JSON, *retry, *more))


def _shapes(work: Work) -> str:
    return ", ".join(str(list(array.shape)) for array in work.arrays)
