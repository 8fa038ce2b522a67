"""The benchmark itself, at a tiny size: a figure is worth nothing if the work behind it was not done."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from bench.clients.measure import Figures, measure, percentile
from bench.clients.with_skysail import WithSkysail
from bench.replay.server import serve
from bench.replay.world import World
from bench.size import Size
from bench.workload import stored_job, stored_pod
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob
from skysail.kube.cache.reflector import ListObserver

SIZE = Size(jobs=20, pods=30, rate=1_000, seconds=0.05)


@pytest.fixture
def world() -> World:
    world = World()
    world.fill(SIZE)
    return world


@pytest.fixture
async def url(world: World) -> AsyncIterator[str]:
    runner, url = await serve(world)
    yield url
    await runner.cleanup()


async def test_skysail_syncs_writes_every_status_once_and_answers_every_event(world: World, url: str):
    figures = await run_skysail(url)
    running = [job_status(world, name)["replicas"] for name in world.jobs.names]
    assert running == [2] * 10 + [1] * 10
    assert (figures.steady.answered, figures.steady.events) == (50, 50)
    assert (figures.burst.answered, figures.burst.events) == (25, 25)
    assert figures.requests == {"list": 2, "watch": 2, "update status": 20}


async def run_skysail(url: str) -> Figures:
    contestant = WithSkysail(url, SIZE, ListObserver())
    try:
        return await measure(contestant, url, SIZE)
    finally:
        await contestant.stop()


def job_status(world: World, name: str) -> dict[str, int]:
    stored = world.jobs.get(name)
    assert stored is not None
    return msgspec.json.decode(stored)["status"]


def test_pages_together_are_the_whole_list(world: World):
    names: list[str] = []
    token = ""
    while True:
        page = msgspec.json.decode(world.pods.page(7, token))
        names += [item["metadata"]["name"] for item in page["items"]]
        token = page["metadata"]["continue"]
        if not token:
            break
    assert names == world.pods.names
    assert len(names) == 30


async def test_a_watch_begins_after_the_version_that_it_names(world: World):
    first, second = world.jobs.names[:2]
    world.jobs.change(first, lambda job: {**job, "status": {"phase": "Running"}})
    listed = world.version
    world.jobs.change(second, lambda job: {**job, "status": {"phase": "Running"}})
    with world.jobs.watch(listed) as watch:
        events = [msgspec.json.decode(line) for line in (await watch.take()).splitlines()]
    assert [event["object"]["metadata"]["name"] for event in events] == [second]


def test_a_change_without_effect_is_no_event(world: World):
    before = world.version
    world.jobs.change(world.jobs.names[0], lambda job: {**job, "status": {}})
    assert world.version == before


def test_objects_are_as_large_as_real_ones_and_valid():
    job, pod = msgspec.json.encode(stored_job(1)), msgspec.json.encode(stored_pod(1, jobs=10))
    assert 2_500 < len(job) < 3_000
    assert 6_000 < len(pod) < 7_000
    assert msgspec.json.decode(job, type=TrainingJob).metadata.name == "train-00001"
    owner = msgspec.json.decode(pod)["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["uid"]) == (TRAINING_JOB.resource.kind, stored_job(1)["metadata"]["uid"])


@pytest.mark.parametrize(("part", "value"), [(0.0, 1.0), (0.5, 3.0), (0.99, 4.0), (1.0, 4.0)])
def test_a_percentile_is_one_of_the_values(part: float, value: float):
    assert percentile([1.0, 2.0, 3.0, 4.0], part) == value
