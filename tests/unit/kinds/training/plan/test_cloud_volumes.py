"""Volumes at clouds: the finalizer, the order of a deletion, and what is said of volumes that stay."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from skysail.base.names import Finalizer, LegacyFinalizer
from skysail.cloud.checkpoint_volumes import VolumeDeletion
from skysail.core.actions import Delete, DeleteCloudVolume, SetFinalizers
from skysail.kinds.training.api.training_job import LatestCheckpoint
from skysail.kinds.training.children.progress_endpoint import TrainingConfig
from skysail.kinds.training.plan.planner import plan
from tests.unit.kinds.training.builders import NOW, ago, attempt, child, job, pod, snapshot, status

CONFIG = TrainingConfig(cloud_nodes={"modal.com": "modal", "runpod": "runpod"}, deletable_volumes=frozenset({"modal"}))
NO_ACCOUNT = TrainingConfig(cloud_nodes=CONFIG.cloud_nodes, missing_accounts=frozenset({"modal"}))
OURS = Finalizer.CLOUD_VOLUME.value
SAVED = LatestCheckpoint(path="/c/9", provider="modal")
DONE = VolumeDeletion(first_at=NOW, at=NOW)


def of(retain: str = "Never", *, finalizers=(OURS,), going: float | None = None, phase="Running", clouds=(), **spec):
    known = status(attempt(0), phase=phase, cloud_volumes=clouds, checkpoint=spec.pop("saved", None))
    if phase == "Succeeded":
        known = msgspec.structs.replace(known, completion_time=ago(5))
    metadata = {"finalizers": finalizers, "deletion_timestamp": None if going is None else ago(going)}
    return job(metadata=metadata, status=known, **{"checkpointDir": "/c", "checkpoint": {"retain": retain}, **spec})


def planned(job_, *children, deletions=None, config=CONFIG, **known):
    return plan(snapshot(job_, *children, config=config, volume_deletions=deletions or {}, **known))


def failed(seconds_ago: float, *, first: float | None = None, **more):
    """Return a call that had no success so many seconds ago. The first one began `first` seconds ago."""
    at, first_at = (NOW - timedelta(seconds=each) for each in (seconds_ago, seconds_ago if first is None else first))
    return {"modal": VolumeDeletion(first_at=first_at, at=at, problem="No answer.", **more)}


def at(node: str, phase: str = "Running", **metadata):
    placed = pod(0, phase, metadata=metadata)
    return msgspec.structs.replace(placed, spec=msgspec.structs.replace(placed.spec, node_name=node))


def finalizers(made) -> list[tuple[str, ...]]:
    return [action.finalizers for action in made.actions if isinstance(action, SetFinalizers)]


@pytest.mark.parametrize(
    "new",
    [
        job(checkpointDir="/c", checkpoint={"retain": "Never"}),
        job(checkpointDir="/c", checkpoint={"retain": "OnFailure"}),
    ],
)
def test_finalizer_comes_before_the_first_attempt(new):
    made = planned(new)
    assert (finalizers(made), len(made.actions), made.status, made.requeue_after) == ([(OURS,)], 1, None, 0.0)


@pytest.mark.parametrize(
    ("new", "config"),
    [
        (job(checkpointDir="/c"), CONFIG),
        (job(checkpointDir="/c", checkpoint={"retain": "Always"}), CONFIG),
        (job(checkpoint={"retain": "Never"}), CONFIG),
        (job(checkpointDir="/c", checkpoint={"retain": "Never", "claimName": "mine"}), CONFIG),
        (job(checkpointDir="/c", checkpoint={"retain": "Never"}), TrainingConfig()),
        (job(checkpointDir="/c", checkpoint={"retain": "Never"}, managedBy="example.com/other"), CONFIG),
    ],
    ids=["default", "Always", "no directory", "a PVC of the user", "no cloud", "another controller"],
)
def test_finalizer_is_not_added_where_no_volume_is_deleted(new, config):
    assert finalizers(planned(new, config=config)) == []


@pytest.mark.parametrize(
    "changed",
    [
        of("Always", clouds=("modal",)),
        of("Never", phase="Succeeded"),
        of("Never", phase="Succeeded", clouds=("runpod",)),
    ],
    ids=["Always", "never at a cloud", "only at a cloud that keeps it"],
)
def test_finalizer_goes_when_nothing_is_left_to_delete(changed):
    assert finalizers(planned(changed)) == [()]


@pytest.mark.parametrize(
    "known",
    [of("Never", clouds=("modal",)), of("OnFailure", phase="Succeeded", clouds=("modal", "runpod")), of("Never")],
    ids=["runs there", "succeeded there", "not there yet"],
)
def test_finalizer_stays_while_the_account_of_a_cloud_is_missing(known):
    made = planned(known, config=NO_ACCOUNT)
    assert finalizers(made) == []
    assert not [row for row in made.status.conditions if "modal" in row.message and row.type == "CloudVolumeRetained"]
    assert not [event for event in made.events if "modal" in event.message]


def test_missing_account_adds_no_finalizer():
    made = planned(of("Never", finalizers=(), clouds=("modal",)), config=NO_ACCOUNT)
    assert (finalizers(made), [event.reason for event in made.events]) == ([], ["CloudVolumeRetained"])


@pytest.mark.parametrize(
    "changed",
    [of("Always", clouds=("modal",)), of("Never", phase="Succeeded"), of(phase="Succeeded", clouds=("runpod",))],
    ids=["Always", "never at a cloud", "only at another cloud"],
)
def test_missing_account_keeps_no_finalizer_that_deletes_nothing(changed):
    assert finalizers(planned(changed, config=NO_ACCOUNT)) == [()]


def test_clouds_of_all_pods_are_recorded_once():
    made = planned(of(clouds=("modal",)), at("modal.com"), at("runpod"))
    assert made.status.cloud_volumes == ("modal", "runpod")
    again = planned(of(clouds=("modal", "runpod")), at("runpod"))
    assert again.status.cloud_volumes == ("modal", "runpod")
    assert planned(of("Always", finalizers=()), at("modal.com")).status.cloud_volumes == ("modal",)


@pytest.mark.parametrize(("retain", "is_said"), [("Never", True), ("OnFailure", True), ("Always", False)])
def test_volume_that_a_cloud_keeps_is_said_once_by_condition_and_event(retain, is_said):
    placed = of(retain, finalizers=(OURS,) if is_said else ())
    made = planned(placed, at("runpod"))
    said = [row.message for row in made.status.conditions if row.type == "CloudVolumeRetained"]
    assert [event.message for event in made.events if event.reason == "CloudVolumeRetained"] == said
    assert len(said) == is_said
    again = planned(msgspec.structs.replace(placed, status=made.status), at("runpod"))
    assert not [event for event in again.events if event.reason == "CloudVolumeRetained"]
    assert not is_said or "runpod" in said[0]


def test_condition_goes_when_the_spec_keeps_the_volume():
    made = planned(of("Never"), at("runpod"))
    settled = planned(msgspec.structs.replace(of("Always", finalizers=()), status=made.status), at("runpod"))
    assert "CloudVolumeRetained" not in {row.type for row in settled.status.conditions}


def test_deletion_ends_the_pods_before_it_calls_the_cloud():
    going = of(going=5)
    made = planned(going, child(going), at("modal.com"))
    [ended] = made.actions
    assert (isinstance(ended, Delete), ended.foreground) == (True, True)
    assert made.status.cloud_volumes == ("modal",)
    leaving = child(going, deletionTimestamp=ago(1))
    assert planned(of(going=5, clouds=("modal",)), leaving).actions == ()


def test_deletion_calls_each_cloud_once_waits_and_then_lets_the_job_go():
    going = of(going=5, clouds=("modal",), finalizers=(OURS, LegacyFinalizer.TRAINING_JOB.value, "example.com/other"))
    [call] = planned(going).actions
    assert (type(call), call.cloud, call.object) == (DeleteCloudVolume, "modal", going)
    assert planned(going, deletions={"modal": None}).actions == ()
    made = planned(going, deletions={"modal": DONE})
    assert finalizers(made) == [("example.com/other",)]
    assert [event.reason for event in made.events] == ["CloudVolumeDeleted"]


def test_deletion_that_failed_is_repeated_after_a_pause_and_given_up_after_minutes():
    going = of(going=60, clouds=("modal",))
    assert planned(going, deletions=failed(1)).actions == ()
    assert [type(action) for action in planned(going, deletions=failed(11)).actions] == [DeleteCloudVolume]
    for made in (
        planned(of(going=601, clouds=("modal",)), deletions=failed(1, first=600)),
        planned(going, deletions=failed(1, is_final=True)),
    ):
        assert finalizers(made) == [()]
        [event] = made.events
        assert (event.reason, event.warning) == ("CloudVolumeRetained", True)
        assert "No answer." in event.message


@pytest.mark.parametrize(
    ("kept", "is_kept"),
    [
        (of("OnFailure", going=5, clouds=("modal",), saved=SAVED), True),
        (of("OnFailure", going=5, clouds=("modal",), phase="Failed", saved=SAVED), True),
        (of("Always", going=5, clouds=("modal",)), True),
        (of("OnFailure", going=5, clouds=("modal",), phase="Failed"), False),
        (of("OnFailure", going=5, clouds=("modal",), phase="Succeeded", saved=SAVED), False),
        (of("Never", going=5, clouds=("modal",), saved=SAVED), False),
    ],
    ids=["unfinished", "failed", "Always", "failed without a checkpoint", "succeeded", "Never"],
)
def test_deletion_keeps_what_the_spec_keeps(kept, is_kept):
    made = planned(kept)
    assert [type(action) for action in made.actions] == [SetFinalizers if is_kept else DeleteCloudVolume]


def test_deletion_that_orphans_the_children_keeps_the_volume():
    going = of(going=5, clouds=("modal",), finalizers=(OURS, "orphan"))
    made = planned(going, child(going), at("modal.com"))
    assert (finalizers(made), len(made.actions)) == ([("orphan",)], 1)
    assert "Its pods still use it." in made.events[0].message


def test_deletion_does_not_wait_for_ever_for_a_pod_that_does_not_end():
    lost = at("modal.com", deletionTimestamp=ago(599))
    assert finalizers(planned(of(going=2000, clouds=("modal",)), lost)) == []
    lost = at("modal.com", deletionTimestamp=ago(601))
    assert finalizers(planned(of(going=2000, clouds=("modal",)), lost)) == [()]


def test_deletion_while_the_operator_was_away_begins_with_the_end_of_the_jobs():
    going = of(going=3600, clouds=("modal",))
    made = planned(going, child(going), at("modal.com"))
    assert ([type(action) for action in made.actions], made.events) == ([Delete], ())
    asked = child(going, deletionTimestamp=ago(599))
    assert planned(going, asked, at("modal.com")).actions == ()
    asked = child(going, deletionTimestamp=ago(601))
    assert finalizers(planned(going, asked, at("modal.com"))) == [()]


def test_deletion_while_the_operator_was_away_gives_pods_at_clouds_time_to_end():
    going = of(going=3600, clouds=("modal",))
    children = child(going, deletionTimestamp=ago(3600)), at("modal.com", deletionTimestamp=ago(3600))
    assert planned(going, *children, started_at=NOW - timedelta(seconds=599)).actions == ()
    assert finalizers(planned(going, *children, started_at=NOW - timedelta(seconds=601))) == [()]


def test_deletion_while_the_operator_was_away_is_not_given_up_after_one_call():
    going = of(going=3600, clouds=("modal",))
    assert planned(going, deletions=failed(1)).actions == ()
    assert [type(action) for action in planned(going, deletions=failed(11, first=599)).actions] == [DeleteCloudVolume]
    assert finalizers(planned(going, deletions=failed(1, first=600))) == [()]


def test_deletion_without_our_finalizer_is_left_to_the_garbage_collector():
    assert planned(of(going=5, clouds=("modal",), finalizers=())).actions == ()


def test_deletion_does_not_wait_for_a_job_without_pods_that_a_foreign_child_keeps():
    going = of(going=90, clouds=("modal",))
    kept = child(going, deletionTimestamp=ago(61))
    assert [type(action) for action in planned(going, kept).actions] == [DeleteCloudVolume]
    assert planned(going, child(going, deletionTimestamp=ago(59))).actions == ()
