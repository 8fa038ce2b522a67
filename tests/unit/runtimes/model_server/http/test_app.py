"""What is answered, without a socket."""

from __future__ import annotations

import asyncio
import json
import math
from threading import Event
from typing import Any

import numpy as np
import pytest

from skysail.runtimes.model_server.http import request_body
from skysail.runtimes.model_server.http.app import Application, Limits, Place
from skysail.runtimes.model_server.inference.batcher import Batcher
from skysail.runtimes.model_server.inference.queue import QueueLimits
from skysail.runtimes.model_server.lifecycle import Lifecycle, Phase
from skysail.runtimes.model_server.metrics import Metrics
from skysail.runtimes.model_server.models import Signature
from skysail.runtimes.model_server.protocol.codecs import InferCodec, PredictCodec
from skysail.runtimes.model_server.protocol.input_validation import InputValidator
from skysail.runtimes.model_server.tensors import Spec

ANYTHING = Signature(inputs=(Spec(name="x", datatype="FP32", shape=()),), known=False)
ROW = json.dumps({"features": [[1, 2]]}).encode()


class Client:
    """One request, as a server would hand it on."""

    def __init__(self, *parts: bytes, headers: Any = (), leaves: bool = False) -> None:
        self.messages = [
            {"type": "http.request", "body": part, "more_body": place < len(parts) - 1 or leaves}
            for place, part in enumerate(parts)
        ]
        if leaves:
            self.messages.append({"type": "http.disconnect"})
        self.headers = list(headers)
        self.sent: list[Any] = []

    async def receive(self) -> Any:
        if not self.messages:
            await asyncio.get_running_loop().create_future()
        return self.messages.pop(0)

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def ask(self, app: Application, method: str = "POST", path: str = "/predict") -> Client:
        scope = {"type": "http", "method": method, "path": path, "headers": self.headers}
        await app(scope, self.receive, self.send)
        return self

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def told(self) -> Any:
        return json.loads(b"".join(message["body"] for message in self.sent[1:]))

    @property
    def answer_headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])


class Harness:
    def __init__(
        self,
        run: Any,
        *,
        worked: bool = False,
        body_limit: int = 1000,
        receive_bytes: float = math.inf,
        version: str = "v1",
    ) -> None:
        self.life = Lifecycle(hung=60, dead=300)
        self.now = 0.0
        self.metrics = Metrics(lambda: 0.0, {})
        limits = Limits(body_bytes=body_limit, receive_bytes=receive_bytes)
        self.app = Application(Place("net", version), self.life, self.metrics, limits=limits, pages=lambda: self._page)
        self.batcher = Batcher(run, QueueLimits(batch_rows=8, queue_rows=8), self.metrics, clock=lambda: self.now)
        self.worked = worked

    def open(self) -> None:
        validator = InputValidator(ANYTHING, 9)
        forms = PredictCodec(ANYTHING, validator), InferCodec("net", "v1", ANYTHING, validator)
        self.app.serve(forms, self.batcher, lambda _: self.worked)
        self.life.phase = Phase.SERVING

    async def _page(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


def double(arrays: Any) -> Any:
    return [arrays[0] * 2]


def fail(_: Any) -> Any:
    raise ValueError("mat1 and mat2 shapes cannot be multiplied")


async def test_before_the_model_is_there_it_says_so():
    harness = Harness(double)
    client = await Client(ROW).ask(harness.app)
    assert (client.status, client.answer_headers[b"retry-after"]) == (503, b"1")
    assert client.told == {"error": "The model is loading: retry soon."}
    ready = await Client().ask(harness.app, "GET", "/v2/health/ready")
    assert (ready.status, ready.told["ready"]) == (503, False)
    assert (await Client().ask(harness.app, "GET", "/v2/health/live")).status == 200


@pytest.mark.parametrize("parts", [(ROW,), (ROW[:5], ROW[5:]), (ROW[:5], b"", ROW[5:])])
async def test_a_body_may_come_in_parts(parts):
    harness = Harness(double)
    harness.open()
    client = await Client(*parts).ask(harness.app)
    assert (client.status, client.told) == (200, {"predictions": [[2, 4]]})


async def test_a_model_that_hangs_gets_nothing_more_and_is_given_up_at_last():
    entered, released = Event(), Event()

    def hang(arrays: Any) -> Any:
        entered.set()
        assert released.wait(60)
        return arrays

    harness = Harness(hang)
    harness.open()

    async def probes() -> list[int]:
        return [(await Client().ask(harness.app, "GET", f"/v2/health/{name}")).status for name in ("ready", "live")]

    asked = asyncio.create_task(Client(ROW).ask(harness.app))
    await asyncio.to_thread(entered.wait, 60)
    found = []
    for harness.now in (59, 60, 299, 300):
        found.append(await probes())
    assert found == [[200, 200], [503, 200], [503, 200], [503, 503]]
    released.set()
    assert (await asked).status == 200
    assert await probes() == [200, 200]


@pytest.mark.parametrize("path", ["/v2/health/ready", "/v2/models/net/ready", "/v2/models/net/versions/v1/ready"])
async def test_probes_follow_the_life_of_the_server(path):
    harness = Harness(double)
    harness.open()
    assert (await Client().ask(harness.app, "GET", path)).told["ready"] is True
    harness.life.phase = Phase.DRAINING
    client = await Client().ask(harness.app, "GET", path)
    assert (client.status, client.told["ready"]) == (503, False)


async def test_who_is_answered_while_it_drains_is_sent_elsewhere_next_time():
    harness = Harness(double)
    harness.open()
    harness.life.phase = Phase.DRAINING
    client = await Client(ROW).ask(harness.app)
    assert (client.status, client.answer_headers[b"connection"]) == (200, b"close")


@pytest.mark.parametrize(("worked", "status"), [(True, 500), (False, 400)])
async def test_whose_mistake_it_is_when_the_model_fails(worked, status):
    harness = Harness(fail, worked=worked)
    harness.open()
    client = await Client(ROW).ask(harness.app)
    assert client.status == status
    sentence = "The model failed with input of shape [1, 2]: mat1 and mat2 shapes cannot be multiplied."
    assert client.told == {"error": sentence}


@pytest.mark.parametrize("headers", [[(b"content-length", b"2000")], []])
async def test_a_body_that_is_too_long_is_refused_and_read_on_for_a_moment(headers):
    harness = Harness(double, body_limit=100)
    harness.open()
    client = await Client(b"x" * 90, b"x" * 90, b"x" * 90, headers=headers).ask(harness.app)
    assert (client.status, client.answer_headers[b"connection"]) == (413, b"close")
    assert "longer than 100 bytes" in client.told["error"]
    assert client.messages == []
    assert [message.get("more_body") for message in client.sent] == [None, True, False]


async def test_who_asks_before_sending_is_not_waited_for():
    harness = Harness(double, body_limit=100)
    harness.open()
    headers = [(b"content-length", b"2000"), (b"expect", b"100-continue")]
    client = await Client(b"x", headers=headers).ask(harness.app)
    assert client.status == 413
    assert len(client.messages) == 1


async def test_who_leaves_while_sending_is_not_answered():
    harness = Harness(double)
    harness.open()
    assert (await Client(ROW[:5], leaves=True).ask(harness.app)).sent == []


async def test_whether_somebody_has_left_is_seen_without_waiting():
    gone, there = Client(leaves=True), Client()
    assert request_body.has_left(gone.receive)
    assert not request_body.has_left(there.receive)


async def test_overload_is_refused_with_a_time_to_come_back():
    harness = Harness(lambda arrays: [np.zeros((len(arrays[0]), 1))])
    harness.open()
    body = json.dumps({"features": [[1, 2]] * 8}).encode()
    clients = [Client(body) for _ in range(3)]
    await asyncio.gather(*(client.ask(harness.app) for client in clients))
    statuses = sorted(client.status for client in clients)
    assert statuses == [200, 503, 503]
    assert {client.answer_headers.get(b"retry-after") for client in clients} == {None, b"1"}


async def test_requests_are_counted_once_they_are_those_of_clients():
    harness = Harness(double)
    harness.open()
    harness.life.phase = Phase.WARMING
    await Client(ROW).ask(harness.app)
    assert sum(harness.metrics.stats().requests) == 0
    harness.life.phase = Phase.SERVING
    await Client(ROW).ask(harness.app)
    await Client(b"{").ask(harness.app)
    stats = (await Client().ask(harness.app, "GET", "/stats")).told
    assert (sum(stats["requests"]), sum(stats["failed"])) == (2, 1)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/predict", 405),
        ("HEAD", "/predict", 405),
        ("HEAD", "/v2/health/live", 200),
        ("HEAD", "/metrics", 200),
        ("GET", "/docs", 299),
        ("POST", "/v2/models/other/infer", 299),
        ("PUT", "/metrics", 299),
    ],
)
async def test_what_is_asked_in_another_way(method, path, status):
    harness = Harness(double)
    harness.open()
    assert (await Client().ask(harness.app, method, path)).status == status
