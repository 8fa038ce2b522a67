"""Pending reasons of pods."""

from __future__ import annotations

import msgspec
import pytest

from skysail.base.names import Reason
from skysail.core import pod_pending
from skysail.core.pod_pending import PendingReason
from skysail.kube.api.workloads import Pod

UNSCHEDULED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes: cpu."}
REFUSED = {
    "type": "skysail.dev/Offload",
    "status": "False",
    "reason": "PolicyDenied",
    "message": "No OffloadPolicy allows modal: create one.",
}


def pod(*conditions: dict[str, str], node: str = "", selector: dict[str, str] | None = None) -> Pod:
    spec = {"nodeSelector": selector or {}, **({"nodeName": node} if node else {})}
    return msgspec.convert({"metadata": {"name": "p"}, "spec": spec, "status": {"conditions": conditions}}, Pod)


def test_pending_reason_refusal_of_a_cloud_comes_before_that_of_the_scheduler():
    found = pod_pending.pending_reason(pod(UNSCHEDULED, REFUSED), "Server p")
    assert found == PendingReason(
        Reason.POLICY_DENIED,
        "Server p: No OffloadPolicy allows modal: create one. Server p fits on no node: 0/1 nodes: cpu. Lower its"
        " requests, or free capacity.",
    )


@pytest.mark.parametrize(
    ("rows", "selector"),
    [
        ((), {}),
        (({**UNSCHEDULED, "reason": "SchedulingGated"},), {}),
        ((UNSCHEDULED,), {"kubernetes.io/hostname": "modal.com"}),
        ((UNSCHEDULED,), {"type": "virtual-kubelet"}),
    ],
)
def test_pending_reason_refusal_of_a_pod_that_the_cluster_cannot_run_is_alone(rows, selector):
    found = pod_pending.pending_reason(pod(*rows, REFUSED, selector=selector), "Server p")
    assert found == PendingReason(Reason.POLICY_DENIED, "Server p: No OffloadPolicy allows modal: create one.")


@pytest.mark.parametrize("row", [{**REFUSED, "status": "True"}, None])
def test_pending_reason_without_refusal_is_that_of_the_scheduler(row):
    found = pod_pending.pending_reason(pod(UNSCHEDULED, *([row] if row else [])), "Server p")
    assert found is not None
    assert found.message.startswith("Server p fits on no node: 0/1 nodes: cpu.")


def test_pending_reason_refusal_of_a_pod_that_has_a_node_now_is_over():
    assert pod_pending.pending_reason(pod(REFUSED, node="modal.com"), "Server p") is None


@pytest.mark.parametrize(
    ("waiting", "reason"),
    [
        ("BudgetExhausted", Reason.BUDGET_EXHAUSTED),
        ("CloudUnreachable", Reason.CLOUD_UNREACHABLE),
        ("NoCapacity", Reason.NO_CAPACITY),
        ("Throttled", Reason.THROTTLED),
        ("PolicyDenied", Reason.POLICY_DENIED),
        ("Launching", Reason.STARTING),
    ],
)
def test_pending_reason_of_a_launch_is_named(waiting: str, reason: Reason):
    row = {"name": "main", "state": {"waiting": {"reason": waiting, "message": "Because: do this."}}}
    found = {"metadata": {"name": "p"}, "spec": {"nodeName": "modal.com"}, "status": {"containerStatuses": [row]}}
    pending = pod_pending.pending_reason(msgspec.convert(found, Pod), "Pod p")
    assert pending is not None
    assert pending.reason == reason
    assert pending.message.startswith("Pod p does not start: ")
    assert pending.message.endswith("Because: do this.")
