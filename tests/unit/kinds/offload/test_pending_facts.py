"""Whether a Job runs in the cluster is read from its pods. A failed read is an unknown fact."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skysail.kinds.offload.pending_facts import PendingFacts
from skysail.kube.client.errors import KubeError
from tests.unit.kinds.offload.samples import NODES


class PodList:
    """A client with these pods as every answer."""

    def __init__(self, *pods: dict[str, Any], body: bytes | None = None) -> None:
        self.body = msgspec.json.encode({"items": pods}) if body is None else body
        self.calls: list[tuple[str, dict[str, str]]] = []
        self.is_down = False

    async def list_page(self, _resource: Any, namespace: str, query: dict[str, str]) -> bytes:
        self.calls.append((namespace, query))
        if self.is_down:
            raise KubeError("timeout")
        return self.body


def pod(node: str = "", phase: str = "Running") -> dict[str, Any]:
    return {"spec": {"nodeName": node} if node else {}, "status": {"phase": phase}}


def facts(client: PodList, clock: Any = lambda: 0.0) -> PendingFacts:
    return PendingFacts(client, NODES, clock)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pods", "want"),
    [
        ([], False),
        ([pod("node-1")], True),
        ([pod("node-1", "Pending")], True),
        ([pod(phase="Pending")], False),
        ([pod("node-1", "Succeeded"), pod("node-1", "Failed")], False),
        ([pod("runpod-virtual-node"), pod("modal.com")], False),
        ([pod("runpod-virtual-node"), pod(phase="Pending"), pod("node-1")], True),
    ],
    ids=["no pod", "runs", "starts", "has no node", "finished", "at clouds", "one of three"],
)
async def test_runs_in_cluster_needs_an_unfinished_pod_on_an_ordinary_node(pods, want):
    assert await facts(PodList(*pods)).runs_in_cluster("team", "uid-1") is want


async def test_runs_in_cluster_reads_the_pods_of_the_job_only():
    client = PodList()
    await facts(client).runs_in_cluster("team", "uid-1")
    assert client.calls == [("team", {"labelSelector": "batch.kubernetes.io/controller-uid=uid-1"})]


@pytest.mark.parametrize("body", [b"<html>", b'{"items": [{"spec": 1}]}'])
async def test_runs_in_cluster_with_an_undecodable_answer_is_unknown(body):
    assert await facts(PodList(body=body)).runs_in_cluster("team", "uid-1") is None


async def test_runs_in_cluster_after_a_failed_read_is_read_again_and_then_remembered():
    client, now = PodList(pod("node-1")), [0.0]
    found = facts(client, lambda: now[0])
    client.is_down = True
    assert await found.runs_in_cluster("team", "uid-1") is None
    client.is_down = False
    assert await found.runs_in_cluster("team", "uid-1") is True
    client.body = PodList().body
    assert await found.runs_in_cluster("team", "uid-1") is True
    now[0] = 6.0
    assert await found.runs_in_cluster("team", "uid-1") is False


async def test_runs_in_cluster_beyond_the_request_limit_is_unknown():
    client = PodList(pod("node-1"))
    found = facts(client)
    answers = [await found.runs_in_cluster("team", f"uid-{number}") for number in range(60)]
    assert answers[:50] == [True] * 50
    assert answers[-1] is None
