"""How reports come into a status: in time, in order, and beside others who write to it. In virtual time."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from skysail.base.timestamps import timestamp
from skysail.kinds.training.api.training_job import (
    TRAINING_JOB,
    LatestCheckpoint,
    Progress,
    TrainingJob,
    TrainingJobStatus,
)
from skysail.kinds.training.progress.report import InvalidReport, Report
from skysail.kinds.training.progress.status_writer import JobGone, StatusWriter, pause, recorded
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.resources import PERSISTENT_VOLUME_CLAIM
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from skysail.kube.client.errors import ReplyLost
from skysail.kube.client.transport import Reply
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time
from tests.unit.kinds.training.builders import NOW, ago

RESOURCE = TRAINING_JOB.resource
KEY = Key("default", "mnist")


def progress(percent: int) -> Report:
    return Report(progress=Progress(percent=percent))


def checkpoint(step: int | None, at: str = ago(0)) -> Report:
    return Report(checkpoint=LatestCheckpoint(path=f"/checkpoints/{step}", step=step, save_time=at))


class Patchy:
    """A connection whose replies to the first patches are lost on the way."""

    def __init__(self, api: ApiModel, lost: int = 0) -> None:
        self._api = api
        self.lost = lost
        self.refused = 0
        self.patches = 0

    async def send(self, request: Any) -> Any:
        if request.method == "PATCH" and self.refused:
            self.refused -= 1
            return Reply(status=422, body=b'{"reason": "Invalid", "message": "too long"}')
        reply = await self._api.send(request)
        if request.method == "PATCH":
            self.patches += 1
            if self.patches <= self.lost:
                raise ReplyLost("lost")
        return reply


class Harness:
    """Records on an API server, with a cache that hears of nothing but what its owner writes."""

    def __init__(self, lost: int = 0) -> None:
        self.world = World([RESOURCE])
        self.api = ApiModel(self.world)
        self.line = Patchy(self.api, lost)
        self.client = Client(self.line)
        self.jobs: Cache[TrainingJob] = Cache(RESOURCE, TrainingJob)
        self.records = StatusWriter(self.client, self.jobs, now=self.now, rng=random.Random(1))

    def now(self) -> Any:
        return NOW + timedelta(seconds=asyncio.get_running_loop().time())

    async def open(self) -> TrainingJob:
        spec = {"framework": "pytorch", "image": "i", "command": ["c"], "checkpointDir": "/checkpoints"}
        manifest = {"apiVersion": RESOURCE.api_version, "kind": RESOURCE.kind, "spec": spec}
        metadata = {"name": KEY.name, "namespace": KEY.namespace}
        job = await Client(self.api).create(RESOURCE, {**manifest, "metadata": metadata}, TrainingJob)
        self.jobs.put(job)
        return job

    async def elsewhere(self, status: dict[str, Any]) -> None:
        """Another replica writes, and our cache is not told."""
        live = await Client(self.api).get(RESOURCE, KEY.namespace, KEY.name, TrainingJob)
        await Client(self.api).patch_status(RESOURCE, live, status, TrainingJob)

    async def status(self) -> TrainingJobStatus:
        return (await Client(self.api).get(RESOURCE, KEY.namespace, KEY.name, TrainingJob)).status


def run_virtual(test: Any, **options: Any) -> Any:
    async def whole() -> Any:
        harness = Harness(**options)
        job = await harness.open()
        running = asyncio.create_task(harness.records.run())
        try:
            return await test(harness, job)
        finally:
            running.cancel()
            await asyncio.wait([running])

    return virtual_time.run(whole())


@pytest.mark.parametrize(
    ("status", "report", "seconds"),
    [
        (TrainingJobStatus(), progress(1), 0),
        (TrainingJobStatus(progress=Progress(percent=1)), progress(2), 0),
        (TrainingJobStatus(progress=Progress(last_updated_time=ago(0))), progress(2), 11),
        (TrainingJobStatus(progress=Progress(last_updated_time=ago(4))), progress(2), 7),
        (TrainingJobStatus(progress=Progress(last_updated_time=ago(11))), progress(2), 0),
        (TrainingJobStatus(progress=Progress(last_updated_time=ago(-3600))), progress(2), 0),
        (TrainingJobStatus(progress=Progress(last_updated_time=ago(0))), checkpoint(2), 0),
        (TrainingJobStatus(checkpoint=checkpoint(1, ago(1)).checkpoint), checkpoint(2), 10),
        (TrainingJobStatus(checkpoint=checkpoint(1, ago(1)).checkpoint), progress(2), 0),
    ],
)
def test_a_job_is_written_to_once_in_ten_seconds(status, report, seconds):
    assert pause(status, report, NOW) == seconds


def test_a_report_leaves_alone_what_it_does_not_tell():
    before = TrainingJobStatus(phase="Running", checkpoint=checkpoint(1).checkpoint)
    after = recorded(before, progress(7), NOW)
    assert after == msgspec.structs.replace(before, progress=Progress(percent=7, last_updated_time=timestamp(NOW)))


def test_the_first_report_is_written_at_once_and_the_last_of_many_in_time():
    async def test(office, job):
        for percent in range(10, 20):
            office.records.enqueue(job, progress(percent))
            await asyncio.sleep(0.5)
            job = office.jobs.get(KEY)
        assert (await office.status()).progress.percent == 10
        await asyncio.sleep(12)
        assert (await office.status()).progress.percent == 19
        assert office.line.patches == 2

    run_virtual(test)


def test_a_checkpoint_is_written_when_its_sender_is_answered():
    async def test(office, job):
        office.records.enqueue(job, progress(10))
        await asyncio.sleep(1)
        office.records.enqueue(office.jobs.get(KEY), progress(11))
        began = office.now()
        await office.records.write(office.jobs.get(KEY), checkpoint(120))
        assert (office.now() - began).total_seconds() < 1
        status = await office.status()
        assert (status.checkpoint.step, status.progress.percent) == (120, 11), "what waited goes with it"

    run_virtual(test)


def test_a_checkpoint_without_a_step_has_not_the_step_of_another():
    async def test(office, job):
        await office.records.write(job, checkpoint(120, ago(60)))
        await office.records.write(office.jobs.get(KEY), checkpoint(None))
        assert (await office.status()).checkpoint == checkpoint(None).checkpoint

    run_virtual(test)


def test_what_others_wrote_meanwhile_stays():
    async def test(office, job):
        await office.elsewhere({"phase": "Running", "progress": {"epoch": 4}})
        await office.records.write(job, checkpoint(1))
        status = await office.status()
        assert (status.phase, status.progress.epoch, status.checkpoint.step) == ("Running", 4, 1)

    run_virtual(test)


def test_a_write_whose_answer_was_lost_is_tried_again():
    async def test(office, job):
        await office.records.write(job, checkpoint(1))
        assert (await office.status()).checkpoint.step == 1

    run_virtual(test, lost=2)


@pytest.mark.parametrize("is_known", [True, False])
def test_who_reports_for_a_job_that_is_gone_hears_of_it(is_known):
    async def test(office, job):
        await Client(office.api).delete(RESOURCE, job, TrainingJob)
        if is_known:
            office.jobs.mark_deleted(job)
        with pytest.raises(JobGone):
            await office.records.write(job, checkpoint(1))

    run_virtual(test)


def test_a_job_of_the_same_name_hears_nothing_of_the_one_before():
    async def test(office, job):
        await office.records.write(job, checkpoint(1))
        await Client(office.api).delete(RESOURCE, job, TrainingJob)
        office.jobs.mark_deleted(job)
        office.records.enqueue(job, progress(50))
        new = await office.open()
        await office.records.write(new, checkpoint(2))
        assert (await office.status()).progress is None

    run_virtual(test)


def test_what_the_server_never_takes_stands_in_nobodys_way():
    async def test(office, job):
        office.line.refused = 1
        with pytest.raises(InvalidReport, match="rejects this report: too long"):
            await office.records.write(job, checkpoint(1))
        await office.records.wait_flushed(KEY)
        await office.records.write(job, checkpoint(2))
        assert (await office.status()).checkpoint.step == 2

    run_virtual(test)


def test_a_process_that_ends_writes_the_last_word_first():
    async def test(office, job):
        office.records.enqueue(job, progress(10))
        await asyncio.sleep(1)
        office.records.enqueue(office.jobs.get(KEY), progress(99))
        await office.records.flush()
        assert (await office.status()).progress.percent == 99

    run_virtual(test)


def test_who_waits_for_a_job_of_which_nothing_is_left_to_write_does_not_wait():
    async def test(office, job):
        await office.records.wait_flushed(KEY)
        office.records.enqueue(job, checkpoint(1))
        await office.records.wait_flushed(KEY)
        assert (await office.status()).checkpoint.step == 1

    run_virtual(test)


def test_a_recorded_checkpoint_has_a_pvc_that_outlives_the_job():
    async def test(office, job):
        owner = {"apiVersion": RESOURCE.api_version, "kind": RESOURCE.kind, "name": "mnist", "uid": job.metadata.uid}
        labels = {"trainingjob.ml.example.com/name": "mnist", "trainingjob.ml.example.com/uid": job.metadata.uid}
        metadata = {"name": "mnist-checkpoints", "namespace": KEY.namespace, "labels": labels}
        metadata["ownerReferences"] = [{**owner, "controller": True}]
        pvc = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": {}}
        client = Client(office.api)
        await client.create(PERSISTENT_VOLUME_CLAIM, pvc, Object)
        office.line.lost = 1
        await office.records.write(job, checkpoint(1))
        left = await client.get(PERSISTENT_VOLUME_CLAIM, KEY.namespace, "mnist-checkpoints", Object)
        assert left.metadata.owner_references == ()
        assert (await office.status()).checkpoint_volume.retained

    run_virtual(test)
