"""Predictor: from the body of a request to its answer, for both paths of the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Protocol
from urllib.parse import quote

from skysail.runtimes.model_server.errors import ClientDisconnected, ModelError, RequestError
from skysail.runtimes.model_server.inference.batcher import Batcher
from skysail.runtimes.model_server.inference.queue import InferenceResult
from skysail.runtimes.model_server.lifecycle import Lifecycle
from skysail.runtimes.model_server.metrics import Metrics
from skysail.runtimes.model_server.models import user_code
from skysail.runtimes.model_server.protocol import responses
from skysail.runtimes.model_server.protocol.codecs import Codec
from skysail.runtimes.model_server.protocol.input_validation import InferenceInput
from skysail.runtimes.model_server.protocol.responses import Response
from skysail.runtimes.model_server.tensors import Array

# Characters that paths contain unquoted, beside letters and digits.
_UNQUOTED = "/:@!$&'()*+,;="


class ResponseSink(Protocol):
    """Client of a request."""

    def has_left(self) -> bool: ...

    def reply(self, response: Response | None) -> None:
        """Send the answer.

        Called once, on the event loop. None: the client has disconnected, and nothing was computed.
        """


class Predictor:
    """Predictor. It accepts no request until `start` is called: before that, `form` returns None."""

    def __init__(self, lifecycle: Lifecycle, metrics: Metrics) -> None:
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._codecs: Mapping[str, Codec] = {}
        self._plain: Mapping[str, Codec] = {}
        self._batcher: Batcher | None = None
        self._has_worked: Callable[[InferenceInput], bool] = lambda _: False

    def start(
        self, codecs: Mapping[str, Codec], batcher: Batcher, has_worked: Callable[[InferenceInput], bool]
    ) -> None:
        """Start predictions. `codecs` are by path; `has_worked` tells whether the model accepted such input."""
        self._codecs = codecs
        self._plain = {quote(path, safe=_UNQUOTED): codec for path, codec in codecs.items()}
        self._batcher = batcher
        self._has_worked = has_worked
        self._lifecycle.watch(lambda: batcher.busy_seconds)

    @property
    def waiting(self) -> int:
        return self._batcher.waiting if self._batcher is not None else 0

    def codec_for(self, path: str) -> Codec | None:
        return self._codecs.get(path)

    def plain_form(self, url: str) -> Codec | None:
        """Return the form of an undecoded URL, or None for other spellings of a path."""
        return self._plain.get(url)

    def submit(self, codec: Codec, body: bytes, response_sink: ResponseSink) -> None:
        """Accept a request. The client gets its answer now or later."""
        pending_prediction = PendingPrediction(self, codec, response_sink)
        assert self._batcher is not None
        try:
            pending_prediction.work = codec.read(body)
            self._batcher.submit(pending_prediction)
        except RequestError as refusal:
            pending_prediction.reply(responses.error_response(refusal))

    def count(self, status: int, seconds: float) -> None:
        if self._lifecycle.is_counted:
            self._metrics.answered(status, seconds)

    def failure(self, inference_input: InferenceInput, error: ModelError) -> Response:
        status = 500 if self._has_worked(inference_input) else 400
        shapes = ", ".join(str(list(array.shape)) for array in inference_input.arrays)
        return responses.error_response(
            RequestError(f"The model failed with input of shape {shapes}: {error}.", status)
        )


class PendingPrediction:
    """Request that waits for the model."""

    __slots__ = ("_codec", "_predictor", "_response_sink", "has_left", "since", "work")

    work: InferenceInput

    def __init__(self, predictor: Predictor, codec: Codec, response_sink: ResponseSink) -> None:
        self._predictor = predictor
        self._codec = codec
        self._response_sink = response_sink
        self.has_left = response_sink.has_left
        self.since = perf_counter()

    def settle(self, outcome: InferenceResult) -> None:
        if isinstance(outcome, ClientDisconnected):
            self._response_sink.reply(None)
        elif isinstance(outcome, ModelError):
            self.reply(self._predictor.failure(self.work, outcome))
        else:
            self.reply(self._written(outcome))

    def _written(self, outputs: list[Array]) -> Response:
        """Encode the outputs. A model may return a type that JSON does not support."""
        try:
            return Response(200, user_code.call_user_code(self._codec.write, self.work, outputs))
        except ModelError as error:
            return self._predictor.failure(self.work, error)

    def reply(self, response: Response) -> None:
        self._predictor.count(response.status, perf_counter() - self.since)
        self._response_sink.reply(response)
