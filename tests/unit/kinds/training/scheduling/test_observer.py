"""What is seen of a gang: present, absent or unknown, and the server's own word where it matters."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skysail.kinds.training.api.training_job import TRAINING_JOB
from skysail.kinds.training.caches import Caches
from skysail.kinds.training.scheduling.kueue import WORKLOAD, Workload
from skysail.kinds.training.scheduling.observer import GangObserver
from skysail.kube.client.client import Client
from tests.unit.kinds.training.builders import job
from tests.unit.kinds.training.samples import UID
from tests.unit.kinds.training.test_reconciler import Server

QUEUED = {"scheduling": {"gang": "kueue"}}
PATH = WORKLOAD.path("ml-jobs", "mnist-gang")


ADMITTED = {"type": "Admitted", "status": "True"}


def workload(owner: str = UID, *conditions: dict[str, str]) -> dict[str, Any]:
    reference = {"apiVersion": TRAINING_JOB.resource.api_version, "kind": "TrainingJob", "name": "mnist", "uid": owner}
    metadata = {"name": "mnist-gang", "namespace": "ml-jobs", "uid": "w", "resourceVersion": "5"}
    owned = {**metadata, "ownerReferences": [{**reference, "controller": True}]}
    return {"metadata": owned, "status": {"conditions": list(conditions)}}


def sight(*, serves: bool | None = True, listed: bool = True, **answers: Any) -> tuple[GangObserver, Caches, Server]:
    caches, server = Caches.create(), Server(answers)
    if listed:
        for cache in caches.gangs:
            cache.synced.set()
    return GangObserver(Client(server), caches.gangs, lambda _: serves), caches, server


@pytest.mark.parametrize(
    ("serves", "listed", "is_served"),
    [(None, False, None), (False, False, False), (True, False, None), (True, True, True)],
)
def test_a_kind_is_there_when_it_is_served_and_listed(serves: Any, listed: bool, is_served: bool | None):  # noqa: FBT001
    seen, _, _ = sight(serves=serves, listed=listed)
    assert seen.cached(job(**QUEUED)).is_served is is_served


async def test_a_workload_that_the_cache_has_is_believed_while_an_attempt_runs():
    seen, caches, server = sight()
    caches.gangs[0].put(msgspec.convert(workload(UID, ADMITTED), Workload))
    gang_state = seen.cached(job(**QUEUED))
    assert await seen.live(job(**QUEUED), gang_state, begins=False) == gang_state
    assert server.paths == []


@pytest.mark.parametrize("begins", [True, False])
async def test_a_workload_that_the_cache_lacks_is_looked_for(begins: bool):  # noqa: FBT001
    seen, _, _ = sight(**{PATH: workload()})
    gang_state = await seen.live(job(**QUEUED), seen.cached(job(**QUEUED)), begins=begins)
    assert (gang_state.object(WORKLOAD) is None, gang_state.is_gone) == (False, False)


@pytest.mark.parametrize("answers", [{}, {PATH: workload("another")}])
async def test_a_workload_is_gone_where_the_server_has_none_of_this_job(answers: dict[str, Any]):
    seen, _, _ = sight(**answers)
    gang_state = await seen.live(job(**QUEUED), seen.cached(job(**QUEUED)), begins=False)
    assert (gang_state.objects, gang_state.is_gone) == ((), True)


@pytest.mark.parametrize(("spec", "serves"), [({}, True), (QUEUED, False), (QUEUED, None)])
async def test_nobody_is_asked_where_there_is_nothing_to_ask(spec: dict[str, Any], serves: bool | None):  # noqa: FBT001
    seen, _, server = sight(serves=serves)
    await seen.live(job(**spec), seen.cached(job(**spec)), begins=True)
    assert server.paths == []


@pytest.mark.parametrize(("answers", "is_gone"), [({PATH: workload()}, False), ({}, True)])
async def test_before_an_attempt_ends_for_what_a_cache_says_the_server_is_asked(answers: dict[str, Any], is_gone: bool):  # noqa: FBT001
    """The cached Workload is not admitted: an attempt that has begun would have to end."""
    seen, caches, server = sight(**answers)
    caches.gangs[0].put(msgspec.convert(workload(), Workload))
    gang_state = await seen.live(job(**QUEUED), seen.cached(job(**QUEUED)), begins=False)
    assert (gang_state.is_gone, server.paths) == (is_gone, [PATH])


async def test_what_the_server_answered_is_known_to_the_next_plan():
    newer = workload()
    newer["metadata"] |= {"resourceVersion": "6", "labels": {"trainingjob.ml.example.com/uid": UID}}
    seen, caches, server = sight(**{PATH: newer})
    caches.gangs[0].put(msgspec.convert(workload(), Workload))
    await seen.live(job(**QUEUED), seen.cached(job(**QUEUED)), begins=True)
    assert [each.metadata.resource_version for each in caches.gangs[0].all()] == ["6"]
    server.answers.clear()
    await seen.live(job(**QUEUED), seen.cached(job(**QUEUED)), begins=True)
    assert caches.gangs[0].all() == []
