"""Mock mode on the real control plane: no account, no program, and nobody takes an object for a real one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.clouds import NODES, claims, node_flags, until_nodes_are_ready
from tests.support.kubectl import TIMEOUT, apply, fresh_namespace, get, ok, pod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

MODAL = {"apiVersion": "modal-operator.io/v1alpha1", "metadata": {"name": "m"}}


@pytest.fixture(scope="module")
def mocked(cluster: Cluster) -> Iterator[Cluster]:
    cluster.start_operator("operator", flags=(*node_flags(cluster), "--mock-clouds"), restart=True)
    until_nodes_are_ready(cluster)
    cluster.until_asking()
    yield cluster
    cluster.end_operator()
    ok(cluster, "delete", "node", *NODES.values(), "--ignore-not-found")


def status(cluster: Cluster, namespace: str, what: str) -> dict[str, Any]:
    found: dict[str, Any] = get(cluster, namespace, what, "m").get("status", {})
    return found


def test_mock_mode_needs_no_account_and_every_object_says_so(mocked):
    with fresh_namespace(mocked) as namespace:
        gpu = pod("p", "sleep", "3600", container={"resources": {"limits": {"nvidia.com/gpu": 1}}})
        gpu["metadata"]["annotations"] = {"modal-operator.io/offload": "true"}
        job = {**MODAL, "kind": "ModalJob", "spec": {"image": "python:3", "command": ["true"]}}
        function = {**MODAL, "kind": "ModalFunction", "spec": {"image": "python:3", "handler": "app.handler"}}
        apply(mocked, namespace, gpu, job, function)
        ok(mocked, "wait", "modaljob/m", "-n", namespace, "--for=jsonpath={.status.phase}=Succeeded", TIMEOUT)
        mocked.until(lambda: "imageID" in json.dumps(get(mocked, namespace, "pod", "p")["status"]), "an imageID")
        shown = get(mocked, namespace, "pod", "p")
        assert shown["spec"]["nodeName"] == "modal.com"
        assert "/simulated-modal" in shown["status"]["containerStatuses"][0]["imageID"]
        assert status(mocked, namespace, "modaljob")["simulated"] is True
        mocked.until(lambda: status(mocked, namespace, "modalfunction").get("simulated") is True, "the function")
        owned = claims(mocked, namespace)
        assert owned
        assert {claim["spec"]["account"] for claim in owned} == {"mock"}
        assert all(
            claim["status"]["instanceId"].startswith("simulated-modal") for claim in owned if claim.get("status")
        )
        for name in NODES.values():
            runtime = get(mocked, "default", "node", name)["status"]["nodeInfo"]["containerRuntimeVersion"]
            assert runtime.endswith("://simulated")
        ok(mocked, "delete", "modaljobs,modalfunctions,pods", "--all", "-n", namespace, TIMEOUT)
        mocked.until(lambda: claims(mocked, namespace) == [], "the claims to end")
