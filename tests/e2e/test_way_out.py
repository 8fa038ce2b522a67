"""A real account in the local cluster: the service is outside its namespaces, and the egress proxy is the only way."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from skysail.cloud.simulated import billing
from skysail.local import addresses
from skysail.local.network import egress_proxy, host_side
from skysail.local.network.egress_policy import EgressPolicy
from tests.support import way_out
from tests.support.clouds import at, claims, let_go
from tests.support.kubectl import apply, fresh_namespace, ok, pod, until_phase
from tests.support.modal import CREDENTIALS, IMAGE, StandInHarness, stand_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

ALLOWED = (ip_network(way_out.OUTSIDE),)


@pytest.fixture(scope="module")
def outside(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StandInHarness, int]]:
    """A stand-in in the machine's own network, and the outer part of the egress proxy, which allows that address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    stack = contextlib.AsyncExitStack()

    async def begin() -> tuple[StandInHarness, int]:
        harness = await stack.enter_async_context(stand_in(tmp_path_factory.mktemp("modal")))
        path = Path(harness.url.removeprefix("unix://localhost"))
        proxy = asyncio.create_task(host_side.serve(cluster.control, [], EgressPolicy(exceptions=ALLOWED)))
        stack.callback(proxy.cancel)
        return harness, await stack.enter_async_context(way_out.forwarded(path))

    yield asyncio.run_coroutine_threadsafe(begin(), loop).result(60)
    asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(scope="module")
def node(cluster: Cluster, outside: tuple[StandInHarness, int]) -> Iterator[Cluster]:
    home = cluster.home
    flags = (
        f"--node-address={addresses.CLUSTER_IP}",
        f"--node-certificate={home.pki / 'node.crt'}",
        f"--node-key={home.pki / 'node.key'}",
        f"--data-dir={home.root / 'clouds'}",
    )
    env = {
        **egress_proxy.operator_env(),
        "MODAL_SERVER_URL": f"http://{way_out.OUTSIDE}:{outside[1]}",
        "MODAL_TOKEN_ID": CREDENTIALS.token_id,
        "MODAL_TOKEN_SECRET": CREDENTIALS.token_secret,
        "MODAL_CONFIG_PATH": "/nonexistent",
    }
    cluster.start_operator(flags=flags, env=env, restart=True)
    yield cluster
    cluster.stop("operator")
    ok(cluster, "delete", "node", "modal.com", "--ignore-not-found")


def test_pod_runs_at_a_service_outside_of_the_cluster(node, outside):
    """With a GPU, because the worker of the stand-in, which serves the output of the others, is on loopback."""
    node.until(lambda: node.get("/readyz/modal")[0] == 200, "Modal to be reached")
    nonce = secrets.token_hex(8)
    with fresh_namespace(node) as namespace:
        manifest = at("modal", pod("p", "sh", "-c", f"echo {nonce}; exit 37", container={"image": IMAGE}))
        manifest["metadata"]["annotations"] = {"modal-operator.io/gpu": "T4"}
        apply(node, namespace, manifest)
        shown = until_phase(node, namespace, "p", "Failed")
        end = shown["containerStatuses"][0]["state"]["terminated"]
        assert end["exitCode"] == 37, end
        assert ok(node, "logs", "p", "-n", namespace) == f"{nonce}\n"
        let_go(node, namespace)
        node.until(lambda: claims(node, namespace) == [], "the claims to be gone")
    assert billing.billable(outside[0].ledger.rows) == ()
    # The policy of pods holds for the operator, too.
    with node.dial(egress_proxy.OUTER_PORT) as connection:
        connection.sendall(b"CONNECT 127.0.0.6:22 HTTP/1.1\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 403")
