from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from typer.testing import CliRunner

from skysail.base.errors import UserError
from skysail.base.names import Finalizer, LegacyFinalizer
from skysail.claims.limits.offload_policy import OFFLOAD_POLICY
from skysail.claims.types import CLOUD_INSTANCE, OwnerRef
from skysail.cli import main
from skysail.cli.clouds import draining
from skysail.kinds.modal_endpoints.types import MODAL_ENDPOINT
from skysail.kinds.training.api.training_job import TRAINING_JOB
from skysail.kube import leader_election
from skysail.kube.api.resources import LEASE, NODE, POD
from tests.simulation.ownership import Manager
from tests.simulation.writes import DeleteOptions, Write
from tests.support.served_api import serve
from tests.unit.claims import samples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from skysail.kube.api.resources import Resource
    from tests.support.served_api import Manifest, ServedApi

WRITE = Write(Manager("operator", "Update"))
STATUS = Write(Manager("operator", "Update", "status"))


class Operator:
    """The part of an operator that a drain needs: a lease, the end of pods, and the confirmed end of instances."""

    def __init__(self, api: ServedApi, *, stuck: bool = False) -> None:
        self._api = api
        self._stuck = stuck
        api.call(self._start)

    def _start(self) -> None:
        lease = {"metadata": {"name": leader_election.NAME, "namespace": "skysail-system"}, "spec": {}}
        self._api.world.create(self._api.world.kinds[LEASE], lease, WRITE)
        self._api.world.residents.append(self)
        self._renew(0)

    def _renew(self, number: int) -> None:
        kind = self._api.world.kinds[LEASE]
        live = self._api.world.get(kind, "skysail-system", leader_election.NAME)
        spec = {"holderIdentity": "me", "leaseTransitions": number}
        self._api.world.replace(kind, live, {**live, "spec": spec}, WRITE)
        asyncio.get_running_loop().call_later(0.2, self._renew, number + 1)

    def noticed(self, obj: Manifest, *, gone: bool) -> None:
        metadata = obj["metadata"]
        if gone or "deletionTimestamp" not in metadata:
            return
        later = asyncio.get_running_loop().call_soon
        if metadata["name"].startswith("pod-"):
            later(self._end_pod, metadata)
        elif metadata["name"].startswith("claim-") and not self._stuck:
            later(self._end_claim, metadata["name"])

    def _end_pod(self, metadata: Manifest) -> None:
        kind = self._api.world.kinds[POD]
        live = self._api.world.objects[POD].get((metadata["namespace"], metadata["name"]))
        if live is not None:
            self._api.world.delete(kind, live, DeleteOptions(grace_period_seconds=0), WRITE)

    def _end_claim(self, name: str) -> None:
        world, kind = self._api.world, self._api.world.kinds[CLOUD_INSTANCE.resource]
        live = world.objects[CLOUD_INSTANCE.resource].get(("", name))
        if live is None:
            return
        if live["status"]["state"] != "Terminated":
            usd = 1.25 if live["status"].get("instanceId") else 0.0
            status = {**live["status"], "state": "Terminated", "usdTotal": usd, "endTime": samples.ago(0)}
            world.replace(kind, live, {**live, "status": status}, STATUS)
            return
        metadata = {**live["metadata"], "finalizers": []}
        world.replace(kind, live, {**live, "metadata": metadata}, WRITE)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ServedApi]:
    with serve(tmp_path) as served:
        runtime = {"nodeInfo": {"containerRuntimeVersion": "modal://simulated"}}
        labels = {"type": "virtual-kubelet"}
        served.create(NODE, {"metadata": {"name": "modal.com", "labels": labels}, "spec": {}, "status": runtime})
        served.create(NODE, {"metadata": {"name": "ordinary"}, "spec": {}})
        yield served


def add_claim(api: ServedApi, name: str, state: str, **status: Any) -> None:
    owner = OwnerRef(kind="Pod", namespace="default", name=f"pod-{name}", uid=f"uid-{name}", container="main")
    made = msgspec.to_builtins(samples.claim(state, of=samples.spec(owner=owner, provider="modal"), **status))
    metadata = {"name": f"claim-{name}", "finalizers": [Finalizer.CLAIM]}
    api.create(CLOUD_INSTANCE.resource, {**made, "metadata": metadata})


def add_pod(api: ServedApi, name: str, node: str = "modal.com", owner: str = "") -> None:
    references = [{"apiVersion": "apps/v1", "kind": owner, "name": "x", "uid": "x", "controller": True}]
    metadata = {"name": f"pod-{name}", "namespace": "default", **({"ownerReferences": references} if owner else {})}
    api.create(POD, {"metadata": metadata, "spec": {"nodeName": node, "containers": [{"name": "main", "image": "i"}]}})


def run(api: ServedApi, *arguments: str, code: int = 0) -> str:
    command = ["drain", "--kubeconfig", str(api.kubeconfig), *arguments]
    done = CliRunner().invoke(main.application(), command, catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.stdout


def names(api: ServedApi, resource: Resource) -> list[str]:
    return sorted(row["metadata"]["name"] for row in api.objects(resource))


def test_drain_ends_all_instances_and_reports_their_cost(api):
    Operator(api)
    add_claim(api, "a", "Running")
    add_claim(api, "old", "Terminated")
    add_claim(api, "new", "Claimed")
    add_pod(api, "a")
    add_pod(api, "elsewhere", node="ordinary")
    add_pod(api, "agent", owner="DaemonSet")
    lines = run(api, "--yes", "--timeout", "30").splitlines()
    assert lines[0] == "Ended 1 instances for 1.2500 USD, deleted 1 pods."
    assert lines[2].split() == ["modal", "default/pod/pod-a", "i-1", "1.2500"]
    assert "Nothing is left at the clouds." in lines
    assert lines[-1].endswith("kubectl delete offloadpolicy skysail-drain && kubectl uncordon modal.com")
    assert names(api, CLOUD_INSTANCE.resource) == []
    assert names(api, POD) == ["pod-agent", "pod-elsewhere"]


def test_drain_stops_launches_by_a_policy_and_a_cordon(api):
    Operator(api)
    run(api, "--yes")
    (policy,) = api.objects(OFFLOAD_POLICY.resource)
    assert policy["spec"] == {"namespaceSelector": {}, "providers": ["modal", "runpod"], "maxInstances": 0}
    nodes = {row["metadata"]["name"]: row.get("spec", {}).get("unschedulable") for row in api.objects(NODE)}
    assert nodes == {"modal.com": True, "ordinary": None}
    run(api, "--yes")  # a second drain changes nothing
    assert len(api.objects(OFFLOAD_POLICY.resource)) == 1


def test_drain_timeout_names_what_is_left_and_fails(api):
    Operator(api, stuck=True)
    add_claim(api, "a", "Running")
    add_claim(api, "new", "Claimed")
    shown = json.loads(run(api, "--yes", "--timeout", "1", "-o", "json", code=1))
    assert [row["claim"] for row in shown["left"]] == ["claim-a", "claim-new"]
    assert shown["left"][0]["instance"] == "i-1"
    assert shown["left"][1]["message"] == "State Claimed. It has no instance and costs nothing."
    assert shown["ended"] == []


def test_drain_removes_finalizers_of_other_kinds_when_nothing_is_left(api):
    Operator(api)
    own = {"name": "e", "namespace": "default", "finalizers": [Finalizer.REMOTE, "example.com/other"]}
    api.create(MODAL_ENDPOINT.resource, {"metadata": own, "spec": {}})
    legacy = {"name": "t", "namespace": "default", "finalizers": [LegacyFinalizer.TRAINING_JOB]}
    api.create(TRAINING_JOB.resource, {"metadata": legacy, "spec": {}})
    shown = json.loads(run(api, "--yes", "-o", "json"))
    assert sorted(shown["finalizers"]) == ["ModalEndpoint default/e", "TrainingJob default/t"]
    assert api.objects(MODAL_ENDPOINT.resource)[0]["metadata"]["finalizers"] == ["example.com/other"]
    assert not api.objects(TRAINING_JOB.resource)[0]["metadata"].get("finalizers")


def add_training(api: ServedApi, name: str, *finalizers: str) -> None:
    metadata = {"name": name, "namespace": "default", "finalizers": list(finalizers)}
    api.create(TRAINING_JOB.resource, {"metadata": metadata, "spec": {}})


def kept_finalizers(api: ServedApi) -> dict[str, list[str]]:
    return {
        row["metadata"]["name"]: row["metadata"].get("finalizers", []) for row in api.objects(TRAINING_JOB.resource)
    }


def test_drain_leaves_volumes_at_clouds_to_an_operator_that_runs(api):
    Operator(api)
    add_training(api, "deleted", LegacyFinalizer.TRAINING_JOB, Finalizer.CLOUD_VOLUME)
    add_training(api, "runs", Finalizer.CLOUD_VOLUME)
    add_training(api, "plain")
    (deleted,) = [row for row in api.objects(TRAINING_JOB.resource) if row["metadata"]["name"] == "deleted"]
    api.call(lambda: api.world.delete(api.world.kinds[TRAINING_JOB.resource], deleted, DeleteOptions(), WRITE))
    shown = json.loads(run(api, "--yes", "-o", "json"))
    volume = [Finalizer.CLOUD_VOLUME.value]
    assert kept_finalizers(api) == {"deleted": volume, "runs": volume, "plain": []}
    assert shown["finalizers"] == ["TrainingJob default/deleted"]
    (note,) = shown["notes"]
    assert note.startswith("2 TrainingJobs keep the finalizer skysail.dev/cloud-volume")
    assert note.endswith("run `skysail clean-up` after you have uninstalled it: default/deleted, default/runs.")


def test_drain_without_operator_releases_volumes_at_clouds_and_says_so(api, monkeypatch):
    monkeypatch.setattr(draining, "_RENEWAL_SECONDS", 0.1)
    add_training(api, "t", Finalizer.CLOUD_VOLUME)
    shown = json.loads(run(api, "--yes", "-o", "json"))
    assert kept_finalizers(api) == {"t": []}
    assert shown["finalizers"] == ["TrainingJob default/t"]
    assert shown["notes"][-1] == "Released 1 TrainingJobs: delete their volumes at clouds yourself: default/t."


def test_drain_without_right_to_the_lease_leaves_volumes_at_clouds(api):
    add_training(api, "t", Finalizer.CLOUD_VOLUME)
    api.forbidden = {"leases"}
    run(api, "--yes")
    assert kept_finalizers(api) == {"t": [Finalizer.CLOUD_VOLUME.value]}


def test_drain_without_operator_releases_only_claims_without_instance(api, monkeypatch):
    monkeypatch.setattr(draining, "_RENEWAL_SECONDS", 0.1)
    for name, state in (("a", "Running"), ("b", "Unknown"), ("c", "Claimed"), ("d", "Terminated")):
        add_claim(api, name, state)
    add_pod(api, "a")
    shown = json.loads(run(api, "--yes", "-o", "json", code=1))
    assert [row["claim"] for row in shown["left"]] == ["claim-a", "claim-b"]
    assert names(api, CLOUD_INSTANCE.resource) == ["claim-a", "claim-b"]
    assert names(api, POD) == ["pod-a"]
    (note,) = shown["notes"]
    assert "only an operator can terminate instances" in note
    assert names(api, OFFLOAD_POLICY.resource) == ["skysail-drain"]


def test_drain_orphans_are_a_problem(api):
    Operator(api)
    condition = {"type": "NoOrphanedInstances", "status": "False", "reason": "x", "message": "1 instance runs."}
    labels = {"type": "virtual-kubelet"}
    api.create(NODE, {"metadata": {"name": "runpod", "labels": labels}, "status": {"conditions": [condition]}})
    assert "runpod: 1 instance runs." in run(api, "--yes", code=1)


def test_drain_without_terminal_and_yes_changes_nothing(api):
    Operator(api)
    add_claim(api, "a", "Running")
    add_pod(api, "a")
    before = len(api.writes)
    with pytest.raises(UserError, match="confirm with --yes"):
        run(api)
    assert len(api.writes) == before


@pytest.mark.parametrize("missing", ["nodes", "cloudinstances", "offloadpolicies"])
def test_drain_without_right_says_so(api, missing):
    Operator(api)
    api.forbidden = {missing}
    with pytest.raises(UserError, match="You are not allowed"):
        run(api, "--yes")


def test_drain_without_right_to_the_lease_goes_on(api):
    Operator(api)
    add_claim(api, "a", "Running")
    api.forbidden = {"leases"}
    assert "Ended 1 instances" in run(api, "--yes")


def test_drain_names_are_the_claims_that_are_left(api):
    Operator(api, stuck=True)
    add_claim(api, "a", "Running")
    assert run(api, "--yes", "--timeout", "1", "-o", "name", code=1) == "cloudinstance.skysail.dev/claim-a\n"
