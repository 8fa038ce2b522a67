"""Where an attempt runs, what it costs, and which checkpoint it leaves behind."""

import msgspec
import pytest

from skysail.claims.types import CloudInstance
from skysail.kinds.training.api.training_job import Attempt, LatestCheckpoint, TrainingJobStatus
from skysail.kinds.training.children.progress_endpoint import TrainingConfig
from skysail.kinds.training.plan import cloud_placement
from skysail.kinds.training.snapshot import AttemptState, Snapshot
from tests.unit.kinds.training.builders import NOW, job, pod

CLOUDS = TrainingConfig(cloud_nodes={"modal.com": "modal"})
HERE = LatestCheckpoint(path="/c/3", claim_name="mnist-checkpoints")
THERE = LatestCheckpoint(path="/c/3", provider="modal")


def at(node: str) -> AttemptState:
    placed = pod(0, "Running")
    return AttemptState(
        0, pods=(msgspec.structs.replace(placed, spec=msgspec.structs.replace(placed.spec, node_name=node)),)
    )


def claim(state: str, **status) -> CloudInstance:
    spec = {"provider": "modal", "owner": {"kind": "Pod", "name": "p", "uid": "u"}}
    return msgspec.convert(
        {"metadata": {"name": f"c-{state}"}, "spec": spec, "status": {"state": state, **status}}, CloudInstance
    )


def snapshot(*claims: CloudInstance) -> Snapshot:
    return Snapshot(object=job(), now=NOW, config=CLOUDS, claims=claims)


@pytest.mark.parametrize(("node", "expected"), [("modal.com", "modal"), ("worker-1", "cluster"), ("", None)])
def test_record_place_of_attempt(node, expected):
    before = TrainingJobStatus(attempts=(Attempt(number=0),))
    after = cloud_placement.record(snapshot(), at(node), before)
    assert after.attempts[-1].provider == expected
    assert (after.cloud.provider if after.cloud else None) == ("modal" if expected == "modal" else None)


def test_record_price_and_cost():
    before = TrainingJobStatus(attempts=(Attempt(number=0, usd_total=1.0), Attempt(number=1)))
    running = cloud_placement.record(snapshot(claim("Running", usdPerHour=0.59)), at("modal.com"), before)
    assert (running.cloud.usd_per_hour, running.cloud.usd_total, running.cloud.node) == (0.59, 1.0, "modal.com")
    ended = cloud_placement.record(
        snapshot(claim("Terminated", usdPerHour=0.59, usdTotal=0.5)), at("modal.com"), running
    )
    assert (ended.cloud.usd_per_hour, ended.cloud.usd_total, ended.attempts[-1].usd_total) == (None, 1.5, 0.5)
    assert cloud_placement.record(snapshot(), at("modal.com"), ended).attempts[-1].usd_total == 0.5


@pytest.mark.parametrize(
    ("node", "checkpoint", "is_left"),
    [
        ("modal.com", HERE, True),
        ("worker-1", THERE, True),
        ("modal.com", THERE, False),
        ("worker-1", HERE, False),
        ("modal.com", None, False),
        ("", HERE, False),
    ],
)
def test_a_checkpoint_elsewhere_is_left_behind_and_that_is_said_once(node, checkpoint, is_left):
    before = TrainingJobStatus(attempts=(Attempt(number=0, resumed_from=checkpoint),), checkpoint=checkpoint)
    after = cloud_placement.record(snapshot(), at(node), before)
    notes = cloud_placement.events(before, after)
    assert [note.reason for note in notes] == (["CheckpointLeftBehind"] if is_left else [])
    assert (after.attempts[-1].resumed_from is None) == (is_left or checkpoint is None)
    assert cloud_placement.events(after, after) == ()
