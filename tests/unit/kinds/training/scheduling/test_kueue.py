"""Kueue: what is asked of it, what its Workload says, and what it is told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skysail.kinds.training.scheduling import SCHEDULERS
from skysail.kinds.training.scheduling.gang_scheduler import PodPlacement, SchedulingFacts, fits, manifest
from skysail.kinds.training.scheduling.kueue import Workload
from skysail.kube.client.client import Client
from tests.unit.kinds.training.builders import CHIEF, NOW, ago, job
from tests.unit.kinds.training.test_reconciler import Server

KUEUE = SCHEDULERS["kueue"]
QUEUED = {"scheduling": {"gang": "kueue", "queue": "team"}}
SPOT = SchedulingFacts(flavors={"spot": PodPlacement(node_selector={"pool": "spot"}, tolerations=({"key": "spot"},))})
RESERVED = ("QuotaReserved", "True", "QuotaReserved", "")
ADMITTED = ("Admitted", "True", "Admitted", "")
EVICTED = ("Evicted", "True", "Preempted", "to make room")
READY = ("PodsReady", "True", "Started", "")
FULL = ("QuotaReserved", "False", "WaitingForQuota", "no room for 2 more")


def workload(*rows: tuple[str, str, str, str], active: bool = True, **status: Any) -> Workload:
    names = ("type", "status", "reason", "message")
    conditions = [{**dict(zip(names, row, strict=True)), "lastTransitionTime": ago(60)} for row in rows]
    spec = {"queueName": "team", "active": active}
    made = {"metadata": {"name": "mnist-gang", "generation": 3}, "spec": spec, "status": {"conditions": conditions}}
    made["status"] |= status
    return msgspec.convert(made, Workload)


def assigned(*flavors: str) -> dict[str, Any]:
    by_resource = {f"resource-{at}": flavor for at, flavor in enumerate(flavors)}
    return {"podSetAssignments": [{"name": "worker", "flavors": by_resource}]}


def told(action: Any) -> dict[str, tuple[str, str]]:
    return {row["type"]: (row["status"], row["reason"]) for row in action.fields["conditions"]}


def digest(**spec: Any) -> str:
    annotations: dict[str, str] = manifest(KUEUE, job(**spec), SchedulingFacts())["metadata"]["annotations"]
    return annotations["skysail.dev/gang-spec-hash"]


def test_a_workload_has_a_pod_set_for_each_role():
    asked = KUEUE.spec(job(**QUEUED, **CHIEF, gpuPerWorker=2), SchedulingFacts())
    assert [(row["name"], row["count"]) for row in asked["podSets"]] == [("chief", 1), ("worker", 2), ("ps", 1)]
    container = asked["podSets"][1]["template"]["spec"]["containers"][0]
    assert container["resources"]["requests"] == {"nvidia.com/gpu": "2"}
    assert asked["queueName"] == "team"


def test_without_a_queue_it_is_the_one_called_default():
    assert KUEUE.spec(job(scheduling={"gang": "kueue"}), SchedulingFacts())["queueName"] == "default"


def test_a_priority_is_told_as_class_and_value_where_the_class_exists():
    high = job(scheduling={"gang": "kueue", "priorityClass": "high"})
    asked = KUEUE.spec(high, SchedulingFacts(priority=1000))
    reference = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "high"}
    assert (asked["priorityClassRef"], asked["priority"]) == (reference, 1000)
    assert "priorityClassRef" not in KUEUE.spec(high, SchedulingFacts())


@pytest.mark.parametrize(
    ("change", "is_another"),
    [
        ({}, False),
        ({"image": "team/train:2"}, False),
        ({"hyperparameters": {"rate": 1}}, False),
        ({"args": ["--fast"]}, False),
        ({"runPolicy": {"backoffLimit": 1}}, False),
        ({"workers": 3}, True),
        ({"gpuPerWorker": 1}, True),
        ({"resources": {"requests": {"cpu": "2"}}}, True),
        ({"scheduling": {"gang": "kueue", "queue": "other"}}, True),
        ({"podTemplate": {"spec": {"nodeSelector": {"zone": "a"}}}}, True),
    ],
)
def test_a_workload_is_another_one_only_where_its_quota_is(change: dict[str, Any], is_another: bool):  # noqa: FBT001
    assert (digest(**QUEUED) != digest(**{**QUEUED, **change})) is is_another


def test_a_workload_that_was_made_for_something_else_does_not_fit():
    wanted = manifest(KUEUE, job(**QUEUED), SchedulingFacts())
    made = msgspec.convert({"metadata": wanted["metadata"]}, Workload)
    assert fits(made, wanted)
    assert not fits(made, manifest(KUEUE, job(**QUEUED, gpuPerWorker=4), SchedulingFacts()))
    assert not fits(workload(), wanted)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (workload(), "Kueue has not processed it yet"),
        (workload(FULL), "queue team (WaitingForQuota): no room for 2 more"),
        (workload(RESERVED), "Kueue is admitting the job"),
        (
            workload(RESERVED, admissionChecks=[{"name": "provision", "state": "Pending", "message": "nodes come"}]),
            "waits for admission checks: provision is Pending: nodes come.",
        ),
        (workload(RESERVED, ADMITTED, EVICTED), "Kueue evicted the job (Preempted): to make room"),
        (workload(FULL, EVICTED), "queue team (WaitingForQuota): no room for 2 more"),
        (workload(RESERVED, ADMITTED, active=False), "Set its spec.active to true"),
        (workload(RESERVED, ADMITTED, admission=assigned("gone")), "ResourceFlavor gone, which Kueue assigned"),
        (workload(("Finished", "True", "Failed", "")), "Delete the Workload"),
    ],
)
def test_what_a_job_waits_for_is_said_in_the_words_of_kueue(found: Workload, said: str):
    assert said in (KUEUE.pending_reason(found, SPOT) or "")


def test_an_admitted_job_waits_for_nothing():
    assert KUEUE.pending_reason(workload(RESERVED, ADMITTED, admission=assigned("spot")), SPOT) is None


def test_pods_are_placed_by_flavors_and_admission_checks():
    update = {"name": "worker", "nodeSelector": {"rack": "7"}, "annotations": {"request": "1"}, "labels": {"a": "b"}}
    found = workload(
        admission=assigned("spot", "spot"),
        admissionChecks=[{"name": "provision", "podSetUpdates": [update, {**update, "name": "ps"}]}],
    )
    pod_placement = KUEUE.placement(found, SPOT, "worker")
    assert pod_placement.node_selector == {"pool": "spot", "rack": "7"}
    assert pod_placement.tolerations == ({"key": "spot"},)
    assert (pod_placement.annotations, pod_placement.labels) == ({"request": "1"}, {"a": "b"})
    assert KUEUE.placement(found, SPOT, "chief") == PodPlacement(
        labels={}, annotations={}, node_selector={}, tolerations=()
    )


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (workload(RESERVED, ADMITTED), None),
        (workload(RESERVED, ADMITTED, EVICTED), "Kueue evicted the job (Preempted): to make room"),
        (workload(RESERVED, ADMITTED, active=False), "was deactivated"),
        (workload(FULL), "Kueue took back the admission"),
        (None, "was deleted"),
    ],
)
def test_pods_have_to_go_when_kueue_takes_their_place_back(found: Workload | None, said: str | None):
    why = KUEUE.eviction_reason(found)
    assert why == said or (said is not None and said in (why or ""))


@pytest.mark.parametrize(
    ("found", "requeued"),
    [
        (workload(RESERVED, ADMITTED), None),
        (workload(FULL, EVICTED), None),
        (workload(RESERVED, ADMITTED, EVICTED), ("True", "Preempted")),
        (
            workload(RESERVED, ADMITTED, ("Evicted", "True", "PodsReadyTimeout", "late")),
            ("False", "PodsReadyTimeout"),
        ),
    ],
)
def test_quota_is_given_back_once_and_only_after_an_eviction(found: Workload, requeued: tuple[str, str] | None):
    action = KUEUE.confirm_release(found, NOW)
    if requeued is None:
        assert action is None
        return
    rows = told(action)
    assert (rows["Requeued"], rows["QuotaReserved"][0], rows["Admitted"][0]) == (requeued, "False", "False")
    assert action.fields["admission"] is None


def test_pods_that_were_ready_are_not_when_the_quota_is_given_back():
    assert told(KUEUE.confirm_release(workload(RESERVED, ADMITTED, EVICTED, READY), NOW))["PodsReady"][0] == "False"


@pytest.mark.parametrize(
    ("found", "all_run", "said"),
    [
        (workload(RESERVED, ADMITTED), True, ("True", "Started")),
        (workload(RESERVED, ADMITTED, READY), True, None),
        (workload(RESERVED, ADMITTED), False, None),
        (workload(RESERVED, ADMITTED, READY), False, ("False", "WaitForRecovery")),
        (workload(FULL), True, None),
    ],
)
def test_kueue_is_told_when_all_pods_run_and_when_they_do_not(
    found: Workload,
    all_run: bool,  # noqa: FBT001
    said: tuple[str, str] | None,
):
    action = KUEUE.report_ready(found, NOW, all_run=all_run)
    assert (None if action is None else told(action)["PodsReady"]) == said


def test_conditions_of_others_stay_as_they_were():
    kept = KUEUE.report_ready(workload(RESERVED, ADMITTED), NOW, all_run=True).fields["conditions"][:2]
    assert kept == [
        {
            "type": type_,
            "status": "True",
            "reason": type_,
            # The definition of a Workload wants it, also where it is empty.
            "message": "",
            "lastTransitionTime": ago(60),
            "observedGeneration": 0,
        }
        for type_ in ("QuotaReserved", "Admitted")
    ]


def test_a_workload_is_finished_once():
    assert told(KUEUE.finish(workload(ADMITTED), NOW, "Failed")) == {
        "Admitted": ("True", "Admitted"),
        "Finished": ("True", "Failed"),
    }
    assert KUEUE.finish(workload(("Finished", "True", "Failed", "")), NOW, "Failed") is None


def test_pods_that_did_their_work_were_ready_although_nobody_saw_it():
    rows = told(KUEUE.finish(workload(ADMITTED), NOW, "Succeeded"))
    assert (rows["PodsReady"], rows["Finished"]) == (("True", "Started"), ("True", "Succeeded"))


async def test_what_a_workload_refers_to_is_read_and_what_is_missing_left_out():
    flavor = {"metadata": {"name": "spot"}, "spec": {"nodeLabels": {"pool": "spot"}}}
    server = Server(
        {
            "/apis/kueue.x-k8s.io/v1beta2/resourceflavors/spot": flavor,
            "/apis/scheduling.k8s.io/v1/priorityclasses/high": {"metadata": {"name": "high"}, "value": 7},
        }
    )
    high = job(scheduling={"gang": "kueue", "priorityClass": "high"})
    scheduling_facts = await KUEUE.facts(Client(server), high, workload(admission=assigned("spot", "gone")))
    assert scheduling_facts == SchedulingFacts(
        priority=7, flavors={"spot": PodPlacement(node_selector={"pool": "spot"})}
    )
