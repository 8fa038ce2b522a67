"""Writes that follow from a placement: patch, condition, binding, and nothing in a steady state."""

import msgspec
import pytest
from msgspec.structs import replace

from skysail.base.names import Condition, EventReason
from skysail.claims.types import CloudInstance
from skysail.core.actions import Bind, Event, PatchMetadata, PatchStatus
from skysail.kinds.offload.objects import Job
from skysail.kinds.offload.plan import job_annotations, planner
from skysail.kinds.offload.plan.facts import placement_facts
from skysail.kinds.offload.plan.gangs import Owner
from skysail.kinds.offload.plan.snapshot import JobSnapshot, PodSnapshot
from tests.unit.kinds.offload.samples import NOW, gpu_pod, observation, pod, unschedulable

ASK = {"modal-operator.io/offload": "true"}


def plan(seen, **fields):
    facts = placement_facts(observation(seen, **fields))
    return planner.plan(PodSnapshot(object=seen, facts=facts, now=NOW))


def with_conditions(seen, *rows):
    return replace(seen, status=replace(seen.status, conditions=rows))


def refused_row(**fields):
    (action,) = plan(gpu_pod(annotations=ASK), policies=()).actions
    return {**action.fields["conditions"][-1], **fields}


def test_plan_allowed_pod_is_bound_with_price():
    made = plan(gpu_pod(annotations=ASK))
    (bind,) = made.actions
    assert isinstance(bind, Bind)
    assert (bind.node, bind.provider, bind.usd_per_hour) == ("modal.com", "modal", 0.59)
    assert [event.reason for event in made.events] == [EventReason.OFFLOADED]


def test_plan_pod_and_job_with_annotations_of_an_earlier_run_are_bound():
    stale = {"runpod.io/offloaded": "true", "runpod.io/pod-id": "old", "runpod.io/cost-per-hr": "9.99"}
    owner = Owner(kind="Job", name="a", annotations=stale)
    seen = gpu_pod(annotations={"runpod.io/offload": "true", **stale}, labels={"runpod.io/managed": "true"})
    (bind,) = plan(seen, owners=(owner,)).actions
    assert isinstance(bind, Bind)
    assert (bind.provider, bind.usd_per_hour) == ("runpod", 0.44)


def test_plan_pod_is_patched_before_it_is_bound():
    owner = Owner(kind="Job", name="a", annotations={"runpod.io/offload": "true"})
    (patch,) = plan(gpu_pod(), owners=(owner,)).actions
    assert isinstance(patch, PatchMetadata)
    assert (patch.labels, patch.annotations) == ({"runpod.io/managed": "true"}, {"runpod.io/offload": "true"})
    patched = gpu_pod(labels=patch.labels, annotations=patch.annotations)
    (bind,) = plan(patched, owners=(owner,)).actions
    assert isinstance(bind, Bind)


def test_plan_refused_pod_gets_condition_and_one_event():
    seen = with_conditions(gpu_pod(annotations=ASK), {"type": "Other", "status": "True", "lastProbeTime": None})
    made = plan(seen, policies=())
    (patch,) = made.actions
    assert isinstance(patch, PatchStatus)
    other, row = patch.fields["conditions"]
    assert other == {"type": "Other", "status": "True", "lastProbeTime": None}
    assert (row["type"], row["status"], row["reason"]) == (Condition.OFFLOAD, "False", "PolicyDenied")
    assert row["lastTransitionTime"] == "2026-01-01T12:00:00Z"
    assert [event.reason for event in made.events] == [EventReason.OFFLOAD_REFUSED]


def test_plan_refused_pod_with_condition_writes_nothing():
    made = plan(with_conditions(gpu_pod(annotations=ASK), refused_row()), policies=())
    assert (made.actions, made.events) == ((), ())


def test_plan_other_reason_keeps_transition_time():
    old = refused_row(reason="Other", lastTransitionTime="2025-01-01T00:00:00Z")
    (patch,) = plan(with_conditions(gpu_pod(annotations=ASK), old), policies=()).actions
    assert patch.fields["conditions"][0]["lastTransitionTime"] == "2025-01-01T00:00:00Z"


def test_plan_allowed_pod_turns_condition_before_it_is_bound():
    (patch,) = plan(with_conditions(gpu_pod(annotations=ASK), refused_row())).actions
    assert isinstance(patch, PatchStatus)
    assert patch.fields["conditions"][0]["status"] == "True"
    (bind,) = plan(with_conditions(gpu_pod(annotations=ASK), patch.fields["conditions"][0])).actions
    assert isinstance(bind, Bind)


def test_plan_gang_has_event_of_its_own():
    made = plan(gpu_pod(annotations=ASK, labels={"scheduling.x-k8s.io/pod-group": "g"}))
    assert [event.reason for event in made.events] == [EventReason.GANG_NOT_OFFLOADED]


def test_plan_condition_is_removed_when_pod_no_longer_asks():
    (patch,) = plan(with_conditions(pod(), refused_row(), {"type": "Other", "status": "True"})).actions
    assert patch.fields["conditions"] == [{"type": "Other", "status": "True"}]


def test_plan_pod_that_asks_for_nothing_writes_nothing():
    assert plan(pod()).actions == ()


def test_plan_wait_writes_nothing_and_comes_back():
    made = plan(gpu_pod(annotations=ASK), owners=None)
    assert made.actions == ()
    assert made.requeue_after == 5.0


def test_on_rejected_reports_event_only():
    event = Event("ReconcileFailed", "No.", warning=True)
    assert planner.on_rejected(event).events == (event,)


def job(**annotations):
    return msgspec.convert({"metadata": {"name": "j", "namespace": "team", "annotations": annotations}}, Job)


def claim(name, **status):
    spec = {"provider": "runpod", "owner": {"kind": "Pod", "name": "p", "uid": "u", "namespace": "team"}}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec, "status": status}, CloudInstance)


def annotate(present, *claims):
    actions = job_annotations.plan(JobSnapshot(object=job(**present), claims=claims)).actions
    return actions[0].annotations if actions else {}


def test_job_annotations_of_several_claims_are_lists():
    found = annotate({}, claim("a", instanceId="i1", usdPerHour=0.44), claim("b", instanceId="i2", usdPerHour=0.49))
    assert found == {
        "runpod.io/offloaded": "true",
        "runpod.io/pod-id": "i1,i2",
        "runpod.io/cost-per-hr": "0.440000,0.490000",
    }
    assert (
        annotate(found, claim("a", instanceId="i1", usdPerHour=0.44), claim("b", instanceId="i2", usdPerHour=0.49))
        == {}
    )


def test_job_annotations_of_unlaunched_claim_say_offloaded_only():
    assert annotate({}, claim("a", state="Launching")) == {"runpod.io/offloaded": "true"}


def test_job_annotations_of_an_earlier_run_are_replaced():
    stale = {"runpod.io/offloaded": "true", "runpod.io/pod-id": "old", "runpod.io/cost-per-hr": "9.990000"}
    assert annotate(stale, claim("a", instanceId="i1", usdPerHour=0.44)) == {
        "runpod.io/pod-id": "i1",
        "runpod.io/cost-per-hr": "0.440000",
    }


def test_job_annotations_stay_after_the_last_claim():
    assert annotate({"runpod.io/pod-id": "i1"}) == {}


@pytest.mark.parametrize(
    ("kinds", "status", "is_read_again"),
    [
        (("PyTorchJob",), unschedulable(), True),
        (("Job", "TrainingJob"), unschedulable(), True),
        (("PyTorchJob",), {}, False),
        # Changes of Jobs are watched, and Deployments ask by the template of their pods.
        (("Job",), unschedulable(), False),
        (("ReplicaSet", "Deployment"), unschedulable(), False),
    ],
)
def test_plan_owners_that_may_ask_later_are_read_again(kinds, status, is_read_again):
    owners = tuple(Owner(kind=kind, name="x") for kind in kinds)
    made = plan(pod(status=status), owners=owners)
    assert made.actions == ()
    assert (made.requeue_after is not None) is is_read_again
