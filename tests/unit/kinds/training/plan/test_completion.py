"""Which ranks have done their work, and whether the job has."""

from __future__ import annotations

import pytest

from skysail.kinds.training.plan.completion import completed_ranks, has_succeeded, missing_ranks
from tests.unit.kinds.training.builders import ago, child, deleted, disruption, job, pod, snapshot

SAVED = {"phase": "Succeeded", "finished": ago(10)}
DRAINED = {"conditions": [disruption("EvictionByEvictionAPI", at=ago(15))]}
ELASTIC = {"elastic": {"min": 1, "max": 4}}


def run(of, *children):
    return snapshot(of, *children).run(0)


@pytest.mark.parametrize(("indexes", "found"), [("", set()), ("1", {1}), ("0,2-4", {0, 2, 3, 4}), ("0-1,7", {0, 1, 7})])
def test_a_rank_is_done_also_when_its_pod_is_gone(indexes, found):
    of = job(workers=8)
    assert completed_ranks(run(of, child(of, shows={"completedIndexes": indexes}))) == {
        ("worker", index) for index in found
    }


def test_only_ranks_that_are_not_done_miss_a_pod():
    of = job(workers=3)
    assert missing_ranks(of.spec, run(of, child(of, shows={"completedIndexes": "1"}), pod(0))) == {("worker", 2)}


def test_who_was_told_to_go_is_not_done_although_the_job_controller_counts_it():
    of = job()
    counted = child(of, shows={"completedIndexes": "1"})
    assert completed_ranks(run(of, counted, pod(1, metadata=deleted(15), **SAVED))) == set()
    assert completed_ranks(run(of, counted, pod(1, metadata=deleted(5), **SAVED))) == {("worker", 1)}


@pytest.mark.parametrize(
    ("spec", "index", "told", "has"),
    [
        ({}, 1, {}, True),
        ({}, 1, DRAINED, False),
        ({}, 1, {"metadata": deleted(15)}, False),
        ({}, 1, {"metadata": deleted(10)}, False),
        ({}, 1, {"metadata": deleted(9)}, True),
        ({"framework": "tensorflow"}, 0, DRAINED, False),
        ({"framework": "tensorflow"}, 1, DRAINED, True),
        (ELASTIC, 0, DRAINED, False),
        (ELASTIC, 1, DRAINED, True),
    ],
)
def test_success_needs_those_who_speak_for_the_job_to_have_ended_by_themselves(spec, index, told, has):
    of = job(**spec)
    other = pod(1 - index, **SAVED)
    assert has_succeeded(of.spec, run(of, child(of, end="Complete"), other, pod(index, **SAVED, **told))) is has


def test_where_the_pods_are_gone_the_job_controller_is_believed():
    of = job()
    assert has_succeeded(of.spec, run(of, child(of, end="Complete", shows={"completedIndexes": "0-1"})))
