"""The account at Modal passes the suite of clouds, against the stand-in and through the vendor's SDK."""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from skysail.base.metrics import Metrics
from skysail.bridge.http_proxy import HttpProxy
from skysail.bridge.listeners import Listeners
from skysail.bridge.proxies import Proxies
from skysail.bridge.routes import Route
from skysail.bridge.traffic import Traffic
from skysail.cloud.account import GpuRequest
from skysail.cloud.http_address import HttpAccount
from skysail.cloud.modal.account import ModalAccount
from skysail.cloud.provider import Container
from tests.conformance.account_harness import AccountHarness
from tests.conformance.instances import (
    CloudConformance,
    Ends,
    Entering,
    Exits,
    Printing,
    Real,
    hear,
    with_container,
)
from tests.support.modal import stand_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from skysail.cloud.account import LaunchSpec

TOKEN_NAME = "Authorization"
CLUSTER = "0b7e5a70-1111-4222-8333-444455556666"


class GpuHarness(AccountHarness):
    """Orders a GPU, so that Modal runs the sandbox at its older back end."""

    def launch_spec(self, *arguments: Any, gpu: GpuRequest | None = None, **options: Any) -> LaunchSpec:
        return super().launch_spec(*arguments, gpu=gpu or GpuRequest("T4"), **options)


@asynccontextmanager
async def opened(folder: Path, harness_type: type[AccountHarness]) -> AsyncIterator[AccountHarness]:
    async with stand_in(folder) as service:
        token = {"token_id": service.credentials.token_id, "token_secret": service.credentials.token_secret}
        account = ModalAccount(token, cluster=CLUSTER, capacity_timeout=60.0)
        await account.offers()
        harness = harness_type(account)
        harness.cluster = CLUSTER
        try:
            yield harness
        finally:
            await account.close()


class Tunnels:
    """HTTP servers in sandboxes, by connect tokens."""

    async def test_http_server_answers_at_its_address_and_only_with_the_token(self, customer: AccountHarness):
        script = (
            "import http.server; s = http.server.HTTPServer(('0.0.0.0', 0), http.server.SimpleHTTPRequestHandler)\n"
            "print(s.server_port, flush=True); s.serve_forever()"
        )
        container = Container(name="main", image=customer.python_image, command=("python3", "-c", script))
        running = await customer.running(with_container(customer.launch_spec(), container))
        port = int(await hear(customer.cloud.output(running.id), "\n"))
        assert isinstance(customer.cloud, HttpAccount)
        address = await customer.cloud.http_address(running.id, port)
        assert (address.verifies, TOKEN_NAME in repr(address)) == (False, True)
        assert address.headers[0][1] not in repr(address)
        traffic = Traffic(Metrics(), max_connections=10, max_connections_per_route=10)
        proxy = HttpProxy(customer.cloud, traffic, idle_seconds=60.0, max_request_bytes=1000)
        names: Any = {"claim": "c", "provider": "modal", "account": "a", "instance": running.id, "namespace": "n"}
        with socket.create_server(("127.0.0.1", 0)) as free:
            number = free.getsockname()[1]
        listeners = Listeners("127.0.0.1", {"modal": Proxies(http=proxy)})
        await listeners.sync({number: Route(port=number, target_port=port, owner="o", **names)})
        try:
            async with aiohttp.ClientSession() as client:
                for _ in range(3):
                    async with client.get(f"http://127.0.0.1:{number}/") as reply:
                        assert reply.status == 200, await reply.text()
                async with client.get(address.url, ssl=False) as reply:
                    assert reply.status == 401
        finally:
            await listeners.close()
            await proxy.close()


class TestSandboxes(CloudConformance, Real, Entering, Tunnels):
    @pytest.fixture
    async def customer(self, tmp_path: Path) -> AsyncIterator[AccountHarness]:
        async with opened(tmp_path, AccountHarness) as harness:
            yield harness


class TestGpuSandboxes(Exits, Ends, Printing, Real, Entering, Tunnels):
    @pytest.fixture
    async def customer(self, tmp_path: Path) -> AsyncIterator[AccountHarness]:
        async with opened(tmp_path, GpuHarness) as harness:
            yield harness
