"""The reflector keeps a cache equal to the simulated server, whatever happens to its watches."""

import asyncio
import logging
import random

import msgspec
import pytest

from skysail.kube.api.objects import Meta, Object
from skysail.kube.api.resources import CONFIG_MAP, POD
from skysail.kube.cache.cache import Cache
from skysail.kube.cache.reflector import Reflector
from skysail.kube.client.client import Client
from skysail.kube.client.errors import ReplyLost, Unreachable
from skysail.kube.client.transport import Reply
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time


def manifest(name: str, **data: str) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default"},
        "data": data,
    }


class Harness:
    """A world, a cache of its ConfigMaps, and a transport between them that can be told to fail."""

    def __init__(self) -> None:
        self.world = World()
        self.transport = Faulty(ApiModel(self.world))
        self.user = Client(ApiModel(self.world))
        self.cache = Cache(CONFIG_MAP, Object)
        self.reflector = Reflector(Client(self.transport), self.cache, rng=random.Random(3))

    def truth(self) -> dict[tuple[str, str], str]:
        return {key: o["metadata"]["resourceVersion"] for key, o in self.world.objects[CONFIG_MAP].items()}

    def cached(self) -> dict[tuple[str, str], str]:
        return {(o.metadata.namespace, o.metadata.name): o.metadata.resource_version for o in self.cache.all()}

    async def create(self, *names: str) -> None:
        for name in names:
            await self.user.create(CONFIG_MAP, manifest(name), Object)

    async def delete(self, *names: str) -> None:
        for name in names:
            found = await self.user.get(CONFIG_MAP, "default", name, Object)
            await self.user.delete(CONFIG_MAP, found, Object)


class Faulty:
    def __init__(self, inner: ApiModel) -> None:
        self._inner = inner
        self.streams = []
        self.refuses = 0
        self.answers: list[Reply] = []

    async def send(self, request):
        if self.refuses:
            self.refuses -= 1
            raise Unreachable("refused")
        return self.answers.pop(0) if self.answers else await self._inner.send(request)

    async def open(self, request):
        if self.refuses:
            self.refuses -= 1
            raise Unreachable("refused")
        stream = Stream(await self._inner.open(request))
        self.streams.append(stream)
        return stream


class Stream:
    def __init__(self, inner) -> None:
        self._inner = inner
        self.is_cut = False
        self.is_silent = False
        self.is_short = False
        self.status = inner.status

    async def __aenter__(self):
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error):
        await self._inner.__aexit__(*error)

    async def __aiter__(self):
        if self.is_short:
            return
        async for chunk in self._inner:
            if self.is_silent:
                await asyncio.sleep(3600)
            if self.is_cut:
                raise ReplyLost("cut")
            yield chunk


def follow(script, *, expect_lists: int | None = None) -> Harness:
    """Run a reflector beside a script, and end with a cache that must equal the server."""

    async def main():
        harness = Harness()
        await harness.create("a", "b", "c")
        task = asyncio.create_task(harness.reflector.run())
        await harness.cache.synced.wait()
        await asyncio.sleep(1)
        await script(harness)
        await asyncio.sleep(400)
        assert harness.cached() == harness.truth()
        assert not task.done()
        task.cancel()
        return harness

    site = virtual_time.run(main())
    if expect_lists is not None:
        assert site.reflector.lists == expect_lists
    return site


def test_changes_are_followed_with_one_list():
    async def script(site):
        await site.create("d")
        await site.delete("a")
        await site.user.merge_patch(CONFIG_MAP, "default", "b", {"data": {"x": "1"}}, Object)

    follow(script, expect_lists=1)


def test_a_watch_that_ends_is_opened_again_where_it_was():
    async def script(site):
        await asyncio.sleep(2000)
        await site.create("d")

    assert follow(script, expect_lists=1).reflector.watches > 3


def test_a_broken_watch_is_opened_again():
    async def script(site):
        site.transport.streams[-1].is_cut = True
        await site.create("d")
        await site.delete("a")

    follow(script, expect_lists=1)


def test_deletes_during_an_outage_are_found_by_the_list_after_a_410():
    gone = []

    async def script(site):
        site.cache.subscribe(lambda old, new: gone.append(old.metadata.name) if new is None else None)
        site.transport.streams[-1].is_cut = True
        site.transport.refuses = 4
        await site.create("d")
        await site.delete("a", "b")
        site.world.compact()

    follow(script)
    assert sorted(gone) == ["a", "b"]


def test_a_silent_watch_is_found_by_its_silence():
    async def script(site):
        site.transport.streams[-1].is_silent = True
        await site.create("d")

    assert follow(script, expect_lists=1).reflector.watches > 1


def test_a_server_that_is_away_for_long_is_asked_with_growing_pauses():
    async def script(site):
        site.transport.streams[-1].is_cut = True
        site.transport.refuses = 12
        await site.create("d")

    follow(script)


def test_lists_are_read_in_chunks():
    async def script(site):
        await site.create(*(f"n{i}" for i in range(1200)))
        site.reflector.relist()

    follow(script, expect_lists=2)


def test_streams_that_end_at_once_do_not_make_a_hot_loop():
    class Closing(Faulty):
        async def open(self, request):
            stream = await super().open(request)
            stream.is_short = True
            return stream

    async def main():
        harness = Harness()
        harness.reflector = Reflector(Client(Closing(ApiModel(harness.world))), harness.cache, rng=random.Random(3))
        task = asyncio.create_task(harness.reflector.run())
        await asyncio.sleep(60)
        task.cancel()
        return harness.reflector.watches

    assert virtual_time.run(main()) < 30


def test_streams_that_brought_something_are_opened_again_without_growing_pauses():
    async def script(site):
        for number in range(12):
            await site.create(f"x{number}")
            site.transport.streams[-1].is_cut = True
            await site.create(f"y{number}")
            await asyncio.sleep(5)
            assert site.cached() == site.truth()

    follow(script)


def test_a_relist_that_fails_is_made_all_the_same():
    async def script(site):
        lost, *_ = site.cache.all()
        site.cache.mark_deleted(lost)
        site.transport.refuses = 2
        site.reflector.relist()

    async def main():
        harness = Harness()
        await harness.create("a", "b")
        task = asyncio.create_task(harness.reflector.run())
        await harness.cache.synced.wait()
        await script(harness)
        await asyncio.sleep(100)
        task.cancel()
        return harness.cached() == harness.truth()

    assert virtual_time.run(main())


def test_a_list_without_a_version_is_the_servers_fault_and_not_the_end():
    async def main():
        harness = Harness()
        await harness.create("a")
        harness.transport.answers = [Reply(status=200, body=b'{"metadata": {}, "items": []}')]
        task = asyncio.create_task(harness.reflector.run())
        await harness.cache.synced.wait()
        task.cancel()
        return harness.cached() == harness.truth()

    assert virtual_time.run(main())


@pytest.mark.parametrize("code", [403, 404, 500])
def test_a_refused_list_is_tried_again(code):
    async def main():
        harness = Harness()
        await harness.create("a")
        harness.transport.answers = [Reply(status=code, body=b"{}")] * 3
        task = asyncio.create_task(harness.reflector.run())
        await harness.cache.synced.wait()
        task.cancel()
        return harness.cached() == harness.truth()

    assert virtual_time.run(main())


class Strict(msgspec.Struct, frozen=True):
    flavour: str


class Dessert(Object, frozen=True):
    spec: Strict


def test_one_object_that_cannot_be_read_does_not_hide_the_others(caplog):
    def dessert(name: str, spec: dict) -> dict:
        return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}

    async def main():
        world = World()
        user = Client(ApiModel(world))
        await user.create(POD, dessert("good", {"flavour": "lemon"}), Object)
        await user.create(POD, dessert("bad", {"flavour": 3}), Object)
        cache = Cache(POD, Dessert)
        task = asyncio.create_task(Reflector(Client(ApiModel(world)), cache, rng=random.Random(1)).run())
        await cache.synced.wait()
        await asyncio.sleep(1)
        await user.create(POD, dessert("worse", {}), Object)
        await user.create(POD, dessert("better", {"flavour": "plum"}), Object)
        await asyncio.sleep(1)
        task.cancel()
        return sorted(o.metadata.name for o in cache.all())

    with caplog.at_level(logging.WARNING):
        assert virtual_time.run(main()) == ["better", "good"]
    said = {record.object for record in caplog.records if hasattr(record, "object")}
    assert said == {"default/bad", "default/worse"}


def test_meta_reads_what_the_server_writes():
    raw = b'{"name":"a","ownerReferences":[{"apiVersion":"v1","kind":"K","name":"o","uid":"u","controller":true}]}'
    assert msgspec.json.decode(raw, type=Meta).controller.uid == "u"
