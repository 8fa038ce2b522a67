import asyncio
import random

from skysail.base.names import Label
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import CONFIG_MAP, CRD, Resource
from skysail.kube.cache.cache import Cache
from skysail.kube.cache.discovery import Discovery
from skysail.kube.cache.informers import Informers
from skysail.kube.cache.reflector import ListObserver
from skysail.kube.client.client import Client
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time

WORKLOAD = Resource("kueue.x-k8s.io", "v1beta1", "workloads", "Workload")


def definition(labels: dict | None = None, version: str = WORKLOAD.version) -> dict:
    return {
        "apiVersion": CRD.api_version,
        "kind": CRD.kind,
        "metadata": {"name": WORKLOAD.crd_name, "labels": labels or {}},
        "spec": {
            "group": WORKLOAD.group,
            "scope": "Namespaced",
            "names": {"plural": WORKLOAD.plural, "kind": WORKLOAD.kind},
            "versions": [{"name": version, "served": True, "storage": True, "subresources": {"status": {}}}],
        },
    }


class Harness:
    def __init__(self, wanted=lambda _: True, namespaces: tuple[str, ...] = ()) -> None:
        self.user = Client(ApiModel(World()))
        self.cache = Cache(WORKLOAD, Object)
        self.informers = Informers(self.user, namespaces=namespaces, list_observer=ListObserver(), rng=random.Random(5))
        self.informers.add(self.cache, wanted)

    async def define(self, **options) -> Object:
        return await self.user.create(CRD, definition(**options), Object)

    async def make(self, name: str, namespace: str = "default") -> None:
        metadata = {"name": name, "namespace": namespace}
        manifest = {"apiVersion": WORKLOAD.api_version, "kind": WORKLOAD.kind, "metadata": metadata}
        await self.user.create(WORKLOAD, manifest, Object)


def run(script, **options):
    async def main():
        harness = Harness(**options)
        task = asyncio.create_task(harness.informers.run())
        await harness.informers.discovery.cache.synced.wait()
        result = await script(harness)
        assert not task.done()
        task.cancel()
        return result

    return virtual_time.run(main())


def test_discovery_kind_installed_later_is_watched_until_it_is_removed():
    async def script(site):
        absent = list(site.informers.waiting_for), len(list(site.informers.caches))
        crd = await site.define()
        await asyncio.sleep(2)
        await site.make("one")
        await asyncio.sleep(1)
        present = len(site.cache), len(list(site.informers.caches))
        await site.user.delete(CRD, crd, Object)
        await asyncio.sleep(2)
        gone = len(site.cache), len(list(site.informers.caches))
        await site.define()
        await asyncio.sleep(2)
        await site.make("two")
        await asyncio.sleep(1)
        return absent, present, gone, [o.metadata.name for o in site.cache.all()]

    assert run(script) == (([], 1), (1, 2), (0, 1), ["two"])


def test_another_version_of_the_kind_is_not_ours_to_watch():
    async def script(site):
        await site.define(version="v9")
        await asyncio.sleep(2)
        return len(list(site.informers.caches))

    assert run(script) == 1


def test_a_definition_that_is_not_wanted_is_left_alone_until_it_is():
    async def script(site):
        await site.define()
        await asyncio.sleep(2)
        before = len(list(site.informers.caches))
        patch = {"metadata": {"labels": {Label.MANAGED_BY: "skysail"}}}
        await site.user.merge_patch(CRD, "", WORKLOAD.crd_name, patch, Object)
        await asyncio.sleep(2)
        return before, len(list(site.informers.caches))

    def is_ours(definition):
        return (definition.metadata.labels or {}).get(Label.MANAGED_BY) == "skysail"

    assert run(script, wanted=is_ours) == (1, 2)


def test_only_the_named_namespaces_are_listed():
    async def script(site):
        await site.define()
        await asyncio.sleep(2)
        await site.make("seen", "default")
        await site.make("unseen", "kube-system")
        await asyncio.sleep(2)
        return [o.metadata.name for o in site.cache.all()]

    assert run(script, namespaces=("default",)) == ["seen"]


def test_an_audit_finds_what_a_watch_lost_and_has_it_listed_again():
    async def script(site):
        await site.define()
        await asyncio.sleep(2)
        await site.make("a")
        await site.make("b")
        await asyncio.sleep(1)
        clean = await site.informers.audit()
        # What a lying watch leaves behind: one object that is unknown, one that never was.
        lost, *_ = site.cache.all()
        site.cache.remove(lost)
        found = await site.informers.audit()
        await asyncio.sleep(5)
        return [f.differs for f in clean], [(f.kind, f.missing, f.extra) for f in found if f.differs], len(site.cache)

    assert run(script) == ([False, False], [(WORKLOAD.crd_name, 1, 0)], 2)


def test_a_kind_that_every_cluster_serves_is_watched_without_a_definition():
    async def main():
        harness = Harness(namespaces=("default",))
        cache = Cache(CONFIG_MAP, Object, selector={"labelSelector": "ours"})
        harness.informers.add_built_in(cache)
        task = asyncio.create_task(harness.informers.run())
        await cache.synced.wait()
        for name, namespace, labels in (
            ("a", "default", {"ours": "1"}),
            ("b", "default", {}),
            ("c", "kube-system", {}),
        ):
            metadata = {"name": name, "namespace": namespace, "labels": labels}
            await harness.user.create(CONFIG_MAP, {"metadata": metadata}, Object)
        await asyncio.sleep(1)
        task.cancel()
        return [o.metadata.name for o in cache.all()], cache in list(harness.informers.caches)

    assert virtual_time.run(main()) == (["a"], True)


def test_whether_a_kind_is_served_is_unknown_before_the_definitions_are_listed():
    assert Discovery().serves(WORKLOAD) is None

    async def script(site):
        serves = site.informers.discovery.serves
        absent = serves(WORKLOAD)
        crd = await site.define(version="v1")
        await asyncio.sleep(2)
        in_another_version = serves(WORKLOAD)
        await site.user.delete(CRD, crd, Object)
        await site.define()
        await asyncio.sleep(2)
        return absent, in_another_version, serves(WORKLOAD)

    assert run(script) == (False, False, True)
