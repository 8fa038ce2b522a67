"""The caches of a process, and who fills them."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from skysail.kube.api.objects import Object
from skysail.kube.api.resources import JOB, NAMESPACE
from skysail.kube.cache.cache import Cache
from skysail.kube.cache.gc_tuning import GcTuner
from skysail.kube.cache.informers import Informers
from skysail.kube.client.client import Client
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time

if TYPE_CHECKING:
    from skysail.kube.api.resources import Resource


def test_two_engines_hold_their_own_objects_of_one_kind() -> None:
    virtual_time.run(_two_of_one_kind())


async def _two_of_one_kind() -> None:
    api = ApiModel(World(), "user")
    client = Client(api)
    await _make(client, NAMESPACE, "n", {})
    for name, label in (("a", "left"), ("b", "right")):
        await _make(client, JOB, name, {label: "1"})
    left, right = (Cache(JOB, Object, selector={"labelSelector": label}) for label in ("left", "right"))
    informers = Informers(client, namespaces=(), list_observer=GcTuner(), rng=random.Random(0))
    for cache in (left, right):
        informers.add_built_in(cache)
    running = asyncio.get_running_loop().create_task(informers.run())
    await asyncio.gather(left.synced.wait(), right.synced.wait())
    assert [_names(cache) for cache in (left, right)] == [["a"], ["b"]]
    assert (len(informers.reflectors[JOB.crd_name]), informers.waiting_for) == (2, [])
    # What one of them has wrong is found, and told anew to that one, although both are of one kind.
    left.mark_deleted(left.all()[0])
    assert [audit_result.differs for audit_result in await informers.audit() if audit_result.kind == JOB.crd_name] == [
        True,
        False,
    ]
    await asyncio.sleep(1)
    assert [_names(cache) for cache in (left, right)] == [["a"], ["b"]]
    running.cancel()


async def _make(client: Client, resource: Resource, name: str, labels: dict[str, str]) -> None:
    metadata = {"name": name, "labels": labels, **({"namespace": "n"} if resource.namespaced else {})}
    await client.create(resource, {"metadata": metadata}, Object)


def _names(cache: Cache[Object]) -> list[str]:
    return [each.metadata.name for each in cache.all()]
