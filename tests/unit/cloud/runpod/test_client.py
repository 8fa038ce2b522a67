"""The client answers every hostile answer with an error of `cloud.errors`, and creates nothing twice."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from skysail.cloud.errors import Gone, MachineRejected, NoCapacity, OutcomeUnknown, ProviderError, Rejected, Throttled
from skysail.cloud.runpod import api, client, event_stream
from skysail.cloud.runpod.client import Endpoint, InvalidEndpoint, RunPodClient
from skysail.cloud.runpod.rate_budget import RateBudget

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

BODY = api.CreatePod(name="p", image="i", gpu=api.GpuOrder(id="NVIDIA A40"))
POD = {"id": "abc", "status": "RUNNING", "cost": 0.44, "createdAt": "2026-06-01T12:00:00Z"}
PROBLEM = "application/problem+json"


@asynccontextmanager
async def serving(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]], key: str = "k"
) -> AsyncIterator[tuple[RunPodClient, list[web.Request]]]:
    requests: list[web.Request] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        requests.append(request)
        return await answer(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    opened = RunPodClient(Endpoint(f"http://127.0.0.1:{runner.addresses[0][1]}"), lambda: key)
    try:
        yield opened, requests
    finally:
        await opened.close()
        await runner.cleanup()


def fixed(status: int, body: bytes, content_type: str = "application/json", **headers: str):
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, body=body, content_type=content_type, headers=headers)

    return answer


def problem(status: int, detail: str, **headers: str):
    content = json.dumps({"title": "t", "status": status, "detail": detail}).encode()
    return fixed(status, content, PROBLEM, **headers)


async def outcome(opened: RunPodClient) -> tuple[str, ...]:
    """Names of the errors of all calls."""
    calls = (
        opened.create_pod(BODY),
        opened.delete_pod("abc"),
        opened.get_pod("abc"),
        opened.list_pods(),
        opened.gpu_types("SECURE"),
        opened.cpu_types(),
        opened.registries(),
        opened.billed("abc"),
        opened.exec("abc", api.ExecCommand(command=("true",))),
        anext(opened.logs("abc", since=0.0), None),
    )
    found = []
    for call in calls:
        opened.budget = RateBudget(asyncio.get_running_loop().time)  # a deferrable call would wait for the next window
        try:
            await call
        except ProviderError as error:
            found.append(type(error).__name__)
        else:
            found.append("")
    return tuple(found)


@pytest.mark.parametrize(
    ("answer", "want"),
    [
        (problem(400, "There are no longer any instances available with the requested specifications"), NoCapacity),
        (problem(400, "This machine does not have the resources to deploy your pod"), NoCapacity),
        (problem(400, "not enough disk space"), NoCapacity),
        (problem(400, "name is too long"), MachineRejected),
        (problem(401, "bad key"), Throttled),
        (problem(402, "no balance"), Throttled),
        (problem(403, "no access to this pool"), NoCapacity),
        (problem(404, "template not found"), Rejected),
        (problem(408, "timeout"), OutcomeUnknown),
        (problem(413, "too large"), Rejected),
        (problem(422, "unknown field"), Rejected),
        (problem(429, "slow down", **{"Retry-After": "7"}), Throttled),
        (problem(500, "oops"), OutcomeUnknown),
        (problem(503, "oops"), OutcomeUnknown),
        (fixed(403, b"<html>error code: 1010</html>", "text/html"), OutcomeUnknown),
        (fixed(400, b"<html>no instances</html>", "text/html"), OutcomeUnknown),
        (fixed(404, b"nginx", "text/plain"), OutcomeUnknown),
        (fixed(307, b"", Location="https://evil.test/"), OutcomeUnknown),
        (fixed(200, json.dumps(POD).encode()), OutcomeUnknown),
        (fixed(201, b""), OutcomeUnknown),
        (fixed(201, b'{"id": "abc"'), OutcomeUnknown),
        (fixed(201, b"[]"), OutcomeUnknown),
        (fixed(201, b"\xff\xfe"), OutcomeUnknown),
        (fixed(201, b"[" * 100_000), OutcomeUnknown),
        (fixed(201, json.dumps({**POD, "id": "../../pods"}).encode()), OutcomeUnknown),
        (fixed(201, json.dumps({**POD, "id": "a/b"}).encode()), OutcomeUnknown),
        (fixed(201, json.dumps({**POD, "id": "a" * 1000}).encode()), OutcomeUnknown),
        (fixed(201, json.dumps({**POD, "id": ""}).encode()), OutcomeUnknown),
        (fixed(201, json.dumps({**POD, "id": 7}).encode()), OutcomeUnknown),
        (fixed(201, json.dumps({**POD, "cost": "free"}).encode()), OutcomeUnknown),
        (fixed(201, json.dumps({**POD, "cost": -1}).encode()), OutcomeUnknown),
        (fixed(201, b'{"id": "abc", "status": "RUNNING", "cost": 1e999}'), OutcomeUnknown),
        (fixed(201, json.dumps({**POD, "status": 7}).encode()), OutcomeUnknown),
    ],
)
async def test_create_answer_means(answer, want):
    async with serving(answer) as (opened, requests):
        with pytest.raises(want) as caught:
            await opened.create_pod(BODY)
        assert type(caught.value) is want or issubclass(type(caught.value), want)
        assert len(requests) == 1, "a create is never repeated"


async def test_created_pod_is_returned_and_the_request_carries_key_and_agent():
    async with serving(fixed(201, json.dumps(POD).encode()), key="rpa_1") as (opened, requests):
        pod = await opened.create_pod(BODY)
    assert (pod.id, pod.cost, pod.created) == ("abc", 0.44, 1780315200.0)
    (request,) = requests
    assert request.headers["Authorization"] == "Bearer rpa_1"
    assert request.headers["User-Agent"].startswith("skysail/")
    assert request.path == "/v2/pods"


async def test_request_that_is_too_large_is_not_sent():
    async with serving(fixed(201, json.dumps(POD).encode())) as (opened, requests):
        with pytest.raises(Rejected, match="bytes"):
            await opened.create_pod(api.CreatePod(name="p", image="i", cmd=("x" * client.MAX_BODY_BYTES,)))
        assert requests == []


async def test_answer_that_is_too_large_is_cut(monkeypatch):
    monkeypatch.setattr(client, "_MAX_ANSWER_BYTES", 10_000)

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=201)
        await response.prepare(request)
        while True:
            await response.write(b" " * 65536)

    async with serving(endless) as (opened, _):
        with pytest.raises(OutcomeUnknown, match="more than"):
            await opened.create_pod(BODY)


async def test_answer_that_drips_ends_at_the_deadline(monkeypatch):
    monkeypatch.setattr(client, "_CREATE_SECONDS", 0.3)

    async def drips(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=201)
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.02)

    async with asyncio.timeout(60), serving(drips) as (opened, _):
        with pytest.raises(OutcomeUnknown):
            await opened.create_pod(BODY)


CALLS = {
    "list": (200, lambda opened: opened.list_pods()),
    "get": (200, lambda opened: opened.get_pod("abc")),
    "exec": (200, lambda opened: opened.exec("abc", api.ExecCommand(command=("true",)))),
    "catalogue": (200, lambda opened: opened.gpu_types("SECURE")),
    "error of a log": (500, lambda opened: anext(opened.logs("abc", since=0.0))),
}


@pytest.mark.parametrize("name", CALLS)
async def test_answer_of_any_call_that_is_too_large_is_cut(monkeypatch, name):
    monkeypatch.setattr(client, "_MAX_ANSWER_BYTES", 10_000)
    status, call = CALLS[name]

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        while True:
            await response.write(b" " * 65536)

    async with asyncio.timeout(5), serving(endless) as (opened, _):
        with pytest.raises(OutcomeUnknown, match="more than"):
            await call(opened)


@pytest.mark.parametrize("name", CALLS)
async def test_answer_of_any_call_that_drips_ends_at_the_deadline(monkeypatch, name):
    monkeypatch.setattr(client, "_CALL_SECONDS", 0.2)
    monkeypatch.setitem(RunPodClient._send.__kwdefaults__, "seconds", 0.2)
    status, call = CALLS[name]

    async def drips(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.02)

    async with asyncio.timeout(5), serving(drips) as (opened, _):
        with pytest.raises(OutcomeUnknown):
            await call(opened)


async def test_cut_connection_is_unknown_and_no_connection_is_throttled():
    async def cut(request: web.Request) -> web.Response:
        assert request.transport
        request.transport.abort()
        return web.Response()

    async with serving(cut) as (opened, _):
        assert set(await outcome(opened)) == {"OutcomeUnknown"}
    unreachable = RunPodClient(Endpoint("https://127.0.0.1:1"), lambda: "k")
    with pytest.raises(Throttled, match="cannot be reached"):
        await unreachable.create_pod(BODY)
    await unreachable.close()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
NAMES = ["pods", "gpus", "cpus", "registries", "records", "id", "status", "pagination", "exitCode", "cost", "env"]


@settings(max_examples=60, deadline=None)
@given(
    status=st.sampled_from([200, 201, 204, 301, 400, 401, 402, 403, 404, 409, 413, 418, 422, 429, 500, 502, 504]),
    body=st.binary(max_size=64)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(st.sampled_from(NAMES), JSON, max_size=5).map(lambda value: json.dumps(value).encode()),
    kind=st.sampled_from(["application/json", PROBLEM, "text/html", "text/event-stream"]),
    limit=st.sampled_from(['"minute";r=0;t=1', "garbage", '"minute";r=-1', ""]),
)
def test_any_answer_is_a_value_or_an_error_of_the_tree(status, body, kind, limit):
    async def check() -> None:
        async with serving(fixed(status, body, kind, RateLimit=limit)) as (opened, _):
            for name in await outcome(opened):
                assert name in {"", "Gone", "Rejected", "Throttled", "OutcomeUnknown", "NoCapacity", "MachineRejected"}

    asyncio.run(check())


@pytest.mark.parametrize("id_", ["", "a/b", "..", "a b", "a?b", "ü", "a" * 200])
async def test_id_that_is_none_is_never_sent(id_):
    async with serving(fixed(200, b"{}")) as (opened, requests):
        for call in (opened.delete_pod(id_), opened.get_pod(id_), opened.delete_registry(id_)):
            with pytest.raises(Gone):
                await call
        assert requests == []


async def test_list_follows_pages_and_is_incomplete_if_one_is_missing():
    async def pages(request: web.Request) -> web.Response:
        cursor = request.query.get("cursor", "")
        following = {"": "2", "2": "3", "3": ""}[cursor]
        page = {"hasNextPage": bool(following), "nextCursor": following}
        return web.json_response({"pods": [{**POD, "id": f"p{cursor}"}], "pagination": page})

    async with serving(pages) as (opened, requests):
        pods, is_complete = await opened.list_pods()
        assert ([pod.id for pod in pods], is_complete) == (["p", "p2", "p3"], True)
        assert len(requests) == 3
    same = fixed(200, json.dumps({"pods": [], "pagination": {"hasNextPage": True, "nextCursor": None}}).encode())
    async with serving(same) as (opened, _):
        assert await opened.list_pods() == ((), False)


async def test_one_malformed_pod_makes_the_list_incomplete_and_hides_no_other():
    rows = [POD, {"id": "x/y", "status": "RUNNING"}, {"id": 5}, "text", {**POD, "id": "def"}]
    async with serving(fixed(200, json.dumps({"pods": rows}).encode())) as (opened, _):
        pods, is_complete = await opened.list_pods()
    assert [pod.id for pod in pods] == ["abc", "def"]
    assert not is_complete


async def test_pod_of_an_unknown_status_is_listed_and_the_list_is_complete():
    rows = [POD, {**POD, "id": "def", "status": "DANCING"}]
    async with serving(fixed(200, json.dumps({"pods": rows}).encode())) as (opened, _):
        pods, is_complete = await opened.list_pods()
    assert [(pod.id, pod.status) for pod in pods] == [("abc", "RUNNING"), ("def", "DANCING")]
    assert is_complete


async def test_other_pod_than_requested_is_no_answer():
    async with serving(fixed(200, json.dumps(POD).encode())) as (opened, _):
        assert (await opened.get_pod("abc")).id == "abc"
        with pytest.raises(OutcomeUnknown, match="another pod"):
            await opened.get_pod("def")


@pytest.mark.parametrize(
    "bad",
    [
        b'{"line": "' + b"x" * (3 * 2**20) + b'", "ts": "2026-06-01T12:00:01Z"}',
        b'{"line": "' + b"x" * (3 * 2**19) + b'", "ts": "2026-06-01T12:00:01Z"}',
        b"{",
        b"\xff",
        b'{"line": "\\ud800", "ts": "2026-06-01T12:00:01Z"}',
    ],
)
async def test_bad_log_event_is_left_out_and_the_cursor_moves_on(bad):
    good = b'data: {"line": "good", "ts": "2026-06-01T12:00:02Z"}\n\n'
    stream = b"id: 1\r\ndata: " + bad + b"\r\n\r\nid: 2\n" + good
    async with serving(fixed(200, stream, "text/event-stream")) as (opened, _):
        events = [event async for event in opened.logs("abc", since=0.0)]
    assert [(event.id, event.line) for event in events] == [("1", event_stream.LEFT_OUT), ("2", "good")]


async def test_throttled_log_stream_lets_later_calls_wait():
    async with serving(problem(429, "slow down", **{"Retry-After": "7"})) as (opened, _):
        with pytest.raises(Throttled) as caught:
            await anext(opened.logs("abc", since=0.0))
        assert caught.value.retry_after == 7.0
        assert opened.budget._wait(0) > 0


async def test_log_event_without_time_or_with_an_invalid_id_keeps_its_line():
    rows = b'data: {"line": "a"}\n\nid: 1\ndata: {"line": "b"}\n\nid: \xff\ndata: {"line": "c", "ts": "x"}\n\n'
    async with serving(fixed(200, rows, "text/event-stream")) as (opened, _):
        events = [event async for event in opened.logs("abc", since=0.0)]
    # The first event has nothing to continue after.
    assert events == [api.LogEvent("1", "container", "b", 0.0), api.LogEvent("1", "container", "c", 0.0)]


async def test_error_texts_are_short_and_printable():
    async with serving(problem(422, "x\x1b[31m\n" * 1000)) as (opened, _):
        with pytest.raises(Rejected) as caught:
            await opened.create_pod(BODY)
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


async def test_error_of_a_log_stream_does_not_quote_the_key():
    async with serving(problem(422, "token canary-key"), key="canary-key") as (opened, _):
        with pytest.raises(Rejected, match=r"token \*\*\*\.$"):
            await anext(opened.logs("abc", since=0.0))


async def test_error_of_a_registry_quotes_neither_user_name_nor_password():
    body = api.CreateRegistry(name="r", username="canary-user", password="canary-password")
    async with serving(problem(422, "bad login canary-user:canary-password")) as (opened, _):
        with pytest.raises(Rejected, match=r"bad login \*\*\*:\*\*\*\.$"):
            await opened.create_registry(body)


@pytest.mark.parametrize("url", ["http://api.runpod.io", "ftp://x", "api.runpod.io", "http://10.0.0.1"])
def test_address_without_protection_is_refused(url):
    with pytest.raises(InvalidEndpoint, match="RUNPOD_API_BASE_URL"):
        Endpoint(url)


def test_address_with_a_login_is_refused_and_not_quoted():
    with pytest.raises(InvalidEndpoint, match="user name") as caught:
        Endpoint("https://canary-user:canary-password@api.runpod.io")
    assert "canary" not in str(caught.value)


async def test_missing_socket_folder_is_an_error_with_the_fix():
    with pytest.raises(InvalidEndpoint, match="skysail dev runpod"):
        RunPodClient(Endpoint("unix:/no/such/folder/runpod.sock"), lambda: "k")
