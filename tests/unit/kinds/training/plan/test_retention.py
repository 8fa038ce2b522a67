"""Whether the PVC of checkpoints outlives its TrainingJob, and what a later job of the same name does with it."""

from __future__ import annotations

import msgspec
import pytest

from skysail.core.actions import Delete, SetOwner
from skysail.kinds.training.api.training_job import CheckpointVolume, LatestCheckpoint
from skysail.kinds.training.children import naming
from skysail.kinds.training.children.spec_hash import attempt_spec_hash
from skysail.kinds.training.plan import retention
from skysail.kinds.training.plan.planner import plan
from skysail.kube.api.objects import Meta, Object, OwnerReference
from tests.unit.kinds.training.builders import ago, attempt, job, snapshot, status
from tests.unit.kinds.training.samples import UID

SAVED = LatestCheckpoint(path="/c/9", step=9, save_time=ago(60), claim_name="mnist-checkpoints")
LABELS = {"trainingjob.ml.example.com/name": "mnist", "trainingjob.ml.example.com/uid": UID}
OWNER = OwnerReference("ml.example.com/v1alpha1", "TrainingJob", "mnist", UID, controller=True)


def pvc(*owners: OwnerReference, name: str = "mnist-checkpoints", uid: str = UID, saved: str = "") -> Object:
    labels = {**LABELS, "trainingjob.ml.example.com/uid": uid}
    annotations = {"skysail.dev/newest-checkpoint": saved} if saved else {}
    meta = Meta(name, "ml-jobs", "pvc-uid", "5", labels=labels, annotations=annotations, owner_references=owners)
    return Object(meta)


def saved(phase: str, retain: str, *, retained: bool = False, **spec: object):
    volume = CheckpointVolume(claim_name="mnist-checkpoints", retained=True) if retained else None
    known = status(attempt(0, phase), phase=phase, checkpoint=SAVED, checkpoint_volume=volume, completion_time=ago(5))
    return job(status=known, checkpointDir="/c", checkpoint={"retain": retain}, **spec)


def planned(of, claim):
    return plan(msgspec.structs.replace(snapshot(of), checkpoint_pvc=claim))


@pytest.mark.parametrize(
    ("of", "claim", "owner"),
    [
        (saved("Failed", "Always"), pvc(OWNER), None),
        (saved("Failed", "OnFailure"), pvc(OWNER), None),
        (saved("Succeeded", "OnFailure", retained=True), pvc(), "mnist"),
        (saved("Failed", "Never", retained=True), pvc(), "mnist"),
    ],
)
def test_a_changed_retention_changes_the_owner_and_the_status(of, claim, owner):
    made = planned(of, claim)
    [changed] = [action for action in made.actions if isinstance(action, SetOwner)]
    assert (changed.owner.object.metadata.name if changed.owner else None) == owner
    assert made.status.checkpoint_volume.retained is (owner is None)


@pytest.mark.parametrize(
    ("of", "claim"),
    [
        (saved("Failed", "Always", retained=True), pvc()),
        (saved("Succeeded", "OnFailure"), pvc(OWNER)),
        (saved("Failed", "Never"), pvc(OWNER)),
        (saved("Failed", "Always"), None),
        (job(status=status(attempt(0, "Failed"), phase="Failed"), checkpointDir="/c"), pvc(OWNER)),
    ],
    ids=["retained", "goes after success", "goes", "deleted by a user", "no checkpoint"],
)
def test_a_settled_retention_writes_nothing(of, claim):
    assert not any(isinstance(action, SetOwner) for action in planned(of, claim).actions)


def test_the_owner_is_changed_before_the_ttl_deletes_the_job():
    of = saved("Succeeded", "OnFailure", retained=True, runPolicy={"ttlSecondsAfterFinished": 0})
    assert [type(action) for action in planned(of, pvc()).actions] == [SetOwner, Delete]


def test_a_pvc_of_another_job_is_never_given_an_owner():
    of = saved("Succeeded", "Never", retained=True)
    assert not any(isinstance(action, SetOwner) for action in planned(of, pvc(uid="another")).actions)


def test_a_new_job_of_the_same_name_starts_fresh_and_says_how_to_resume():
    of, old = job(checkpointDir="/c"), pvc(uid="another")
    made, fresh = planned(of, old), naming.fresh_checkpoints("mnist", UID)
    assert (made.actions, made.status.checkpoint_volume.claim_name) == ((), fresh)
    assert "spec.checkpoint.claimName: mnist-checkpoints" in made.events[0].message
    after = planned(msgspec.structs.replace(of, status=made.status), pvc(name=fresh, uid=UID))
    [created] = [action.manifest for action in after.actions if action.resource.kind == "PersistentVolumeClaim"]
    assert created["metadata"]["name"] == fresh
    assert fresh in str([action for action in after.actions if action.resource.kind == "Job"])


@pytest.mark.parametrize("claim", [pvc(OWNER), pvc(), None], ids=["own", "own, released", "absent"])
def test_a_job_keeps_the_usual_name_after_a_crash(claim):
    made = planned(job(checkpointDir="/c"), claim)
    names = [action.manifest["metadata"]["name"] for action in made.actions]
    assert "mnist-checkpoints" in names


def test_a_job_that_names_the_pvc_resumes_from_its_newest_checkpoint():
    text = msgspec.json.encode(SAVED).decode()
    of = job(checkpointDir="/c", checkpoint={"claimName": "old"})
    made = planned(of, pvc(name="old", uid="another", saved=text))
    assert made.status.attempts[0].resumed_from == msgspec.structs.replace(SAVED, claim_name="old")
    assert "RESUME_FROM" in str(made.actions)


@pytest.mark.parametrize("text", ["", "{", '{"path": "/elsewhere/9"}', '{"path": "/c/../etc"}', '{"path": 1}'])
def test_an_annotation_that_says_nothing_useful_is_ignored(text):
    of = job(checkpointDir="/c", checkpoint={"claimName": "old"})
    assert planned(of, pvc(name="old", saved=text)).status.checkpoint is None


def test_a_report_releases_the_pvc_and_writes_the_checkpoint_on_it():
    of = job(checkpointDir="/c")
    patch = retention.pvc_patch(of, pvc(OWNER), SAVED)["metadata"]
    assert (patch["ownerReferences"], patch["uid"], patch["resourceVersion"]) == ([], "pvc-uid", "5")
    assert '"step":9' in patch["annotations"]["skysail.dev/newest-checkpoint"]
    never = job(checkpointDir="/c", checkpoint={"retain": "Never"})
    assert "ownerReferences" not in retention.pvc_patch(never, pvc(OWNER), SAVED)["metadata"]
    mine = msgspec.structs.replace(pvc(), metadata=Meta("mine", "ml-jobs", "u", "5"))
    assert retention.pvc_patch(of, mine, SAVED) is None


def test_a_change_of_retention_starts_no_attempt():
    before, after = job(checkpointDir="/c", checkpoint={"size": "1Gi"}), saved("Failed", "Never")
    after = msgspec.structs.replace(
        after.spec, checkpoint=msgspec.structs.replace(before.spec.checkpoint, retain="Never")
    )
    assert attempt_spec_hash(before.spec) == attempt_spec_hash(after)
