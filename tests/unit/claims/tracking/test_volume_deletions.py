"""Deletions of volumes at clouds: one call at a time, each with a result, and never another volume."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from skysail.claims.tracking.volume_deletions import VolumeDeletions
from skysail.cloud.checkpoint_volumes import volume_id
from skysail.cloud.errors import Gone, OutcomeUnknown, Rejected, Throttled, Unsupported
from skysail.core.actions import DeleteCloudVolume
from skysail.kinds.training.api.training_job import TRAINING_JOB
from tests.support import virtual_time
from tests.unit.claims.samples import CLOUD, NOW, ScriptedCloud
from tests.unit.kinds.training.builders import job

JOB = job()
UID, NAMESPACE = JOB.metadata.uid, JOB.metadata.namespace


class Harness:
    """One process with one cloud."""

    def __init__(self) -> None:
        self.cloud = ScriptedCloud()
        self.deletions = VolumeDeletions({CLOUD: self.cloud}, self.now)
        self.woken: list[str] = []
        self.deletions.on_finished = lambda key: self.woken.append(str(key))

    def now(self):
        return NOW + timedelta(seconds=asyncio.get_running_loop().time())

    async def delete(self, cloud: str = CLOUD):
        self.deletions.delete(DeleteCloudVolume(cloud, TRAINING_JOB.resource, JOB))
        await asyncio.sleep(1)
        return self.deletions.results(UID)[cloud]


@pytest.mark.parametrize(
    ("error", "problem", "is_final"),
    [
        (None, "", False),
        (Gone("It is gone."), "", False),
        (OutcomeUnknown("No answer."), "No answer.", False),
        (Throttled("Wait.", 5.0), "Wait.", False),
        (Rejected("Refused", "Never."), "Never.", True),
        (Unsupported("Not here."), "Not here.", True),
        (RuntimeError("a defect"), "The deletion failed: see the operator's log.", False),
    ],
)
def test_deletion_answer_becomes_a_result_and_wakes_the_job(error, problem, is_final):
    async def test() -> None:
        harness = Harness()
        harness.cloud.end_error = error
        result = await harness.delete()
        assert (result.problem, result.is_final) == (problem, is_final)
        assert harness.cloud.deleted_volumes == [(NAMESPACE, volume_id(NAMESPACE, UID))]
        assert harness.woken == [f"{NAMESPACE}/{JOB.metadata.name}"]

    virtual_time.run(test())


def test_deletion_in_progress_has_no_result_and_is_not_repeated():
    async def test() -> None:
        harness = Harness()
        harness.cloud.is_silent = True
        assert await harness.delete() is None
        assert await harness.delete() is None
        assert len(harness.cloud.deleted_volumes) == 1
        await harness.deletions.close()
        assert (harness.deletions.results(UID), harness.woken) == ({}, [])

    virtual_time.run(test())


def test_deletion_without_account_is_a_problem_that_may_pass():
    async def test() -> None:
        result = await Harness().delete("elsewhere")
        assert (result.problem, result.is_final) == ("Skysail has no account at elsewhere.", False)

    virtual_time.run(test())


@pytest.mark.parametrize("error", [OutcomeUnknown("No answer."), RuntimeError("a defect")])
def test_repeated_deletion_keeps_the_time_of_the_first_call(error):
    async def test() -> None:
        harness = Harness()
        harness.cloud.end_error = error
        first = await harness.delete()
        again = await harness.delete()
        assert (first.first_at, again.first_at) == (NOW, NOW)
        assert again.at == NOW + timedelta(seconds=1)

    virtual_time.run(test())


def test_results_are_forgotten_after_an_hour():
    async def test() -> None:
        harness = Harness()
        await harness.delete("elsewhere")
        await asyncio.sleep(3601)
        await harness.delete()
        assert list(harness.deletions.results(UID)) == [CLOUD]
        assert harness.deletions.results("another") == {}

    virtual_time.run(test())
