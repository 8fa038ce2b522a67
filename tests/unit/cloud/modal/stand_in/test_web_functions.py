"""Web Functions of the stand-in: the unmodified SDK deploys them from a lone file, and its entry point runs them."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import ssl
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import modal
import pytest
from modal.exception import ResourceExhaustedError

from skysail.cloud.modal.stand_in.faults import Fault
from skysail.cloud.simulated import billing
from tests.support.modal import PYTHON_IMAGE, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.modal import StandInHarness

SHIM = Path(__file__).parents[4] / "support" / "modal_web_shim.py"
TAGS = {"claim": "c1", "cluster": "k1"}


async def test_web_function_answers_at_an_address_that_survives_deploys(cloud: StandInHarness):
    first, url = await deploy(cloud, env={"VALUE": "one"})
    async with session(cloud) as http:
        got = await fetch(http, url, "/a%20b?x=1", data=b"z" * 900_000)
        assert (got["method"], got["path"], got["query"]) == ("POST", "/a%20b", "x=1")
        assert (got["length"], got["value"]) == (900_000, "one")
        second, again = await deploy(cloud, env={"VALUE": "two"})
        assert (second.app_id, again) == (first.app_id, url)
        assert (await fetch(http, url))["value"] == "two"
        async with http.get(f"{url}/stream") as reply:
            assert await reply.text() == "0\n1\n2\n"
        async with http.ws_connect(f"{url}/chat") as socket:
            await socket.send_str("hello")
            assert await socket.receive_str() == "echo hello"
        await first.stop.aio()
        async with http.get(url) as reply:
            assert reply.status == 404
    await eventually(lambda: billing.billable(cloud.ledger.rows) == ())
    assert (await cloud.provider.list()).pods == {}


async def test_web_function_scales_to_zero_and_up_without_a_deploy(cloud: StandInHarness):
    app, url = await deploy(cloud, scaledown_window=2)
    function = modal.Function.from_name("web", "web", client=await cloud.client())
    assert (await function.get_current_stats.aio()).num_total_runners == 0
    async with session(cloud) as http:
        await fetch(http, url)
        await until_runners(function, 1)
        await until_runners(function, 0)
        await function.autoscaler.update.aio(min_containers=2, max_containers=3)
        await until_runners(function, 2)
        tasks = {got["task"] for got in await asyncio.gather(*(fetch(http, url, "/slow?2") for _ in range(3)))}
        assert len(tasks) in {2, 3}
        await function.autoscaler.update.aio(min_containers=0, max_containers=1)
        await until_runners(function, 0)
    await app.stop.aio()


async def test_slow_request_is_redirected_to_its_result(cloud: StandInHarness):
    cloud.inject(Fault(rpc="WebRequest", kind="redirected", seconds=0.2, times=1))
    app, url = await deploy(cloud)
    async with session(cloud) as http:
        async with http.post(f"{url}/slow?1", data=b"abc", allow_redirects=False) as reply:
            assert reply.status == 303
            location = reply.headers["Location"]
        assert (await fetch(http, url, location))["length"] == 3
    await app.stop.aio()


async def test_proxy_auth_needs_a_token_of_the_workspace(cloud: StandInHarness):
    app, url = await deploy(cloud, webhook={"requires_proxy_auth": True})
    tokens = modal.Workspace.from_context(client=await cloud.client()).proxy_tokens
    token = await tokens.create.aio(name="bridge")
    headers = {"Modal-Key": token.token_id, "Modal-Secret": token.token_secret}
    async with session(cloud) as http:
        for wrong in ({}, {**headers, "Modal-Secret": "guess"}):
            async with http.get(url, headers=wrong) as reply:
                assert reply.status == 401
        assert (await fetch(http, url, headers=headers))["has_credentials"] is False
    assert [row.name for row in await tokens.list.aio()] == ["bridge"]
    await tokens.delete.aio(token.token_id)
    await app.stop.aio()


async def test_own_server_of_the_image_answers_by_its_port(cloud: StandInHarness):
    app, url = await deploy(cloud, function="serve")
    async with session(cloud) as http, http.get(url) as reply:
        assert reply.status == 200
        assert "Directory listing" in await reply.text()
    await app.stop.aio()


async def test_container_that_cannot_start_fails_its_requests(cloud: StandInHarness):
    app, url = await deploy(cloud, env={"BROKEN": "1"})
    async with session(cloud) as http, http.get(url) as reply:
        assert reply.status == 500
        assert "container failed to start" in await reply.text()
    await app.stop.aio()


async def test_request_of_a_lost_container_is_served_by_another_one(cloud: StandInHarness):
    app, url = await deploy(cloud)
    async with session(cloud) as http:
        slow = asyncio.create_task(fetch(http, url, "/slow?2"))
        (function,) = cloud.stand_in.web.functions.values()
        await eventually(lambda: any(container.calls for container in function.containers))
        lost = function.containers[0].spec.task_id
        await function.containers[0].kill()
        assert (await slow)["task"] != lost
        async with http.get(f"{url}/exit") as reply:
            assert reply.status == 500
    await app.stop.aio()


async def test_redeploy_under_load_fails_no_request(cloud: StandInHarness):
    app, url = await deploy(cloud, env={"VALUE": "0"}, max_inputs=10)
    values, is_done = [], asyncio.Event()

    async def call() -> None:
        while not is_done.is_set():
            values.append((await fetch(http, url))["value"])

    async with session(cloud) as http:
        callers = [asyncio.create_task(call()) for _ in range(4)]
        for number in range(3):
            await deploy(cloud, env={"VALUE": str(number)}, max_inputs=10)
            await eventually(lambda: str(number) in values)  # noqa: B023
        is_done.set()
        await asyncio.gather(*callers)
    assert set(values) == {"0", "1", "2"}
    await app.stop.aio()


@pytest.mark.parametrize("rpc", ["AppCreate", "AppPublish"])
async def test_quota_of_the_workspace_refuses_a_deploy(cloud: StandInHarness, rpc: str):
    cloud.inject(Fault(rpc=rpc, kind="exhausted"))
    with pytest.raises(ResourceExhaustedError):
        await deploy(cloud)


async def deploy(
    cloud: StandInHarness,
    *,
    function: str = "asgi",
    webhook: dict[str, Any] | None = None,
    max_inputs: int = 1,
    **wishes: Any,
) -> tuple[modal.App, str]:
    """Deploy one function of the lone file, as a long-running process does."""
    shim = load_shim()
    app = modal.App("web", tags=TAGS)
    image = modal.Image.from_registry(PYTHON_IMAGE)
    decorate = modal.asgi_app if function == "asgi" else modal.web_server
    arguments = () if function == "asgi" else (8000,)
    web = decorate(*arguments, label="web", **(webhook or {}))(getattr(shim, function))
    if max_inputs > 1:
        web = modal.concurrent(max_inputs=max_inputs)(web)
    made = app.function(name="web", image=image, timeout=600, **wishes)(web)
    await app.deploy.aio(client=await cloud.client())
    url = await made.get_web_url.aio()
    assert url is not None
    return app, url


def load_shim() -> Any:
    spec = importlib.util.spec_from_file_location("modal_web_shim", SHIM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["modal_web_shim"] = module
    spec.loader.exec_module(module)
    return module


@asynccontextmanager
async def session(cloud: StandInHarness) -> AsyncIterator[aiohttp.ClientSession]:
    context = ssl.create_default_context(cafile=str(cloud.ca))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as http:
        yield http


async def fetch(
    http: aiohttp.ClientSession, url: str, path: str = "/", *, data: bytes | None = None, **options: Any
) -> dict[str, Any]:
    from yarl import URL

    method = "GET" if data is None else "POST"
    async with http.request(method, URL(f"{url}{path}", encoded=True), data=data, **options) as reply:
        text = await reply.text()
        assert reply.status == 200, text
        found: dict[str, Any] = json.loads(text)
        return found


async def until_runners(function: modal.Function, count: int) -> None:
    async with asyncio.timeout(90):
        while (await function.get_current_stats.aio()).num_total_runners != count:  # noqa: ASYNC110 (a poll)
            await asyncio.sleep(0.1)
