"""Which checkpoint an attempt is said to have begun at, whenever that is written down."""

from __future__ import annotations

import msgspec
import pytest

from skysail.kinds.training.api.training_job import LatestCheckpoint
from skysail.kinds.training.children.manifests import build_children
from skysail.kinds.training.plan.planner import plan
from tests.unit.kinds.training.builders import ago, attempt, child, job, pod, snapshot, status

OLD, NEW = (LatestCheckpoint(path=f"/checkpoints/{step}", step=step, save_time=ago(60)) for step in (1, 2))
ANNOTATION = "skysail.dev/resumed-from"


def named(claim):
    return msgspec.structs.replace(NEW, claim_name=claim)


def began_at(of, *seen):
    return plan(snapshot(of, *seen)).status.attempts[-1].resumed_from


def rendered(of, resume):
    [(_, manifest)] = build_children(of, 1, resume).jobs
    return manifest["metadata"].get("annotations", {})


def test_a_new_attempt_begins_at_the_newest_checkpoint():
    of = job(checkpointDir="/checkpoints", status=status(attempt(0, "Suspended"), checkpoint=NEW))
    assert began_at(of) == NEW


@pytest.mark.parametrize("resume", [None, OLD])
def test_a_checkpoint_that_came_after_the_jobs_were_made_is_not_where_they_began(resume):
    of = job(checkpointDir="/checkpoints", status=status(attempt(0, "Suspended"), checkpoint=NEW))
    made = child(of, number=1, annotations=rendered(of, resume))
    assert began_at(of, made, pod(0, number=1), pod(1, number=1)) == resume


@pytest.mark.parametrize(
    "written",
    ["", "null", "x", "{}", '{"x":' + "[" * 100_000 + "]" * 100_000 + "}", "\ud800"],
    ids=["empty", "null", "no JSON", "no path", "nested", "not UTF-8"],
)
def test_a_forged_checkpoint_of_a_job_counts_as_none(written):
    of = job(checkpointDir="/checkpoints", status=status(attempt(0, "Suspended"), checkpoint=NEW))
    assert began_at(of, child(of, number=1, annotations={ANNOTATION: written}), pod(0, number=1)) is None


HERE = {"checkpointDir": "/checkpoints"}
MOVED = [
    ("the folder was changed", {"checkpointDir": "/elsewhere"}, NEW),
    ("the folder was removed", {}, NEW),
    ("another claim is named", {**HERE, "checkpoint": {"claimName": "other"}}, named("mnist-checkpoints")),
    ("no claim is named any more", HERE, named("other")),
]


@pytest.mark.parametrize(("spec", "known"), [row[1:] for row in MOVED], ids=[row[0] for row in MOVED])
def test_nobody_is_sent_to_a_checkpoint_that_is_not_mounted(spec, known):
    of = job(status=status(attempt(0, "SpecChanged"), checkpoint=known), **spec)
    assert began_at(of) is None
    assert not any("RESUME_FROM" in str(action) for action in plan(snapshot(of)).actions)


@pytest.mark.parametrize(
    ("spec", "known"),
    [(HERE, named("mnist-checkpoints")), ({**HERE, "checkpoint": {"claimName": "other"}}, named("other"))],
)
def test_a_checkpoint_on_the_claim_that_is_mounted_is_resumed_from(spec, known):
    of = job(status=status(attempt(0, "Suspended"), checkpoint=known), **spec)
    assert began_at(of) == known


@pytest.mark.parametrize("text", ["", "{", "7", '{"path": 7}'])
def test_an_annotation_that_somebody_spoiled_is_no_checkpoint(text):
    of = job(checkpointDir="/checkpoints", status=status(checkpoint=NEW))
    assert began_at(of, child(of, annotations={ANNOTATION: text})) is None
