"""Predictor: from the body of a request to its answer, for both paths of the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Protocol
from urllib.parse import quote

from skysail.runtimes.model_server.errors import Left, ModelError, Refused
from skysail.runtimes.model_server.inference.batcher import Batcher
from skysail.runtimes.model_server.inference.queue import Outcome
from skysail.runtimes.model_server.lifecycle import Life
from skysail.runtimes.model_server.metrics import Metrics
from skysail.runtimes.model_server.models import user_code
from skysail.runtimes.model_server.protocol import responses
from skysail.runtimes.model_server.protocol.codecs import Form
from skysail.runtimes.model_server.protocol.input_validation import Work
from skysail.runtimes.model_server.protocol.responses import Answer
from skysail.runtimes.model_server.tensors import Array

# Characters that paths contain unquoted, beside letters and digits.
_UNQUOTED = "/:@!$&'()*+,;="


class Client(Protocol):
    """Client of a request."""

    def has_left(self) -> bool: ...

    def reply(self, answer: Answer | None) -> None:
        """Send the answer.

        Called once, on the event loop. None: the client has disconnected, and nothing was computed.
        """


class Desk:
    """Predictor. It accepts no request until `open` is called: before that, `form` returns None."""

    def __init__(self, life: Life, metrics: Metrics) -> None:
        self._life = life
        self._metrics = metrics
        self._forms: Mapping[str, Form] = {}
        self._plain: Mapping[str, Form] = {}
        self._batcher: Batcher | None = None
        self._has_worked: Callable[[Work], bool] = lambda _: False

    def open(self, forms: Mapping[str, Form], batcher: Batcher, has_worked: Callable[[Work], bool]) -> None:
        """Start predictions. `forms` are by path; `has_worked` tells whether the model accepted such input."""
        self._forms = forms
        self._plain = {quote(path, safe=_UNQUOTED): form for path, form in forms.items()}
        self._batcher = batcher
        self._has_worked = has_worked
        self._life.watch(lambda: batcher.busy_seconds)

    @property
    def waiting(self) -> int:
        return self._batcher.waiting if self._batcher is not None else 0

    def form(self, path: str) -> Form | None:
        return self._forms.get(path)

    def plain_form(self, url: str) -> Form | None:
        """Return the form of an undecoded URL, or None for other spellings of a path."""
        return self._plain.get(url)

    def take(self, form: Form, body: bytes, client: Client) -> None:
        """Accept a request. The client gets its answer now or later."""
        question = Question(self, form, client)
        assert self._batcher is not None
        try:
            question.work = form.read(body)
            self._batcher.submit(question)
        except Refused as refusal:
            question.reply(responses.of_refusal(refusal))

    def count(self, status: int, seconds: float) -> None:
        if self._life.counts:
            self._metrics.answered(status, seconds)

    def failure(self, work: Work, error: ModelError) -> Answer:
        status = 500 if self._has_worked(work) else 400
        shapes = ", ".join(str(list(array.shape)) for array in work.arrays)
        return responses.of_refusal(Refused(f"The model failed with input of shape {shapes}: {error}.", status))


class Question:
    """Request that waits for the model."""

    __slots__ = ("_client", "_desk", "_form", "has_left", "since", "work")

    work: Work

    def __init__(self, desk: Desk, form: Form, client: Client) -> None:
        self._desk = desk
        self._form = form
        self._client = client
        self.has_left = client.has_left
        self.since = perf_counter()

    def settle(self, outcome: Outcome) -> None:
        if isinstance(outcome, Left):
            self._client.reply(None)
        elif isinstance(outcome, ModelError):
            self.reply(self._desk.failure(self.work, outcome))
        else:
            self.reply(self._written(outcome))

    def _written(self, outputs: list[Array]) -> Answer:
        """Encode the outputs. A model may return a type that JSON does not support."""
        try:
            return Answer(200, user_code.call(self._form.write, self.work, outputs))
        except ModelError as error:
            return self._desk.failure(self.work, error)

    def reply(self, answer: Answer) -> None:
        self._desk.count(answer.status, perf_counter() - self.since)
        self._client.reply(answer)
