"""Effects on the simulated API server: what is left alone, and what waits for its children."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from skysail.base.names import Label
from skysail.claims.types import CloudInstanceStatus
from skysail.core.actions import (
    Apply,
    Bind,
    Create,
    Delete,
    LaunchInstance,
    Owner,
    PatchMetadata,
    PatchSpec,
    PatchStatus,
    SetFinalizers,
    SetOwner,
    TerminateInstance,
)
from skysail.core.drift import DriftDetector
from skysail.core.errors import Stale
from skysail.core.executor import CacheRegistry, CrossNamespace, Executor, NameConflict, complete_manifest
from skysail.core.fence import AlwaysLeader, Fenced
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.resources import CONFIG_MAP, POD, SECRET
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from skysail.kube.client.errors import Conflict, Forbidden
from tests.contract.api_dsl import Api, config_map, owned_by
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time
from tests.unit.claims.samples import launch_spec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


ROOT = (CONFIG_MAP, Key("default", "owner"))


class Harness:
    """A executor, and a user who looks at what it does."""

    def __init__(self, *caches: Cache[Any]) -> None:
        transport = ApiModel(World())
        self.client = Client(transport)
        self.executor = Executor(self.client, CacheRegistry(*caches), AlwaysLeader())
        self.api = Api(transport, "default", _nothing)

    async def owner(self) -> Owner:
        (await self.api.create(CONFIG_MAP, config_map("owner"))).ok  # noqa: B018 (asserts)
        return Owner(CONFIG_MAP, await self.client.get(CONFIG_MAP, "default", "owner", Object))

    async def apply(self, owner: Owner, value: str, *, only_once: bool) -> None:
        await self.perform(Apply(CONFIG_MAP, _child(value), owner, only_if_absent=only_once))

    async def create(self, owner: Owner, value: str) -> None:
        await self.perform(Create(CONFIG_MAP, _child(value), owner))

    async def edit(self, **data: str) -> None:
        (await self.api.merge(CONFIG_MAP, "child", {"data": data})).ok  # noqa: B018 (asserts)

    async def perform(self, action: Any) -> None:
        await self.executor.execute(ROOT, action)


def _child(value: str) -> dict[str, Any]:
    metadata = {"name": "child", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"value": value}}


def run_virtual(test: Callable[[Harness], Awaitable[None]]) -> None:
    async def told() -> None:
        await test(Harness())

    virtual_time.run(told())


def test_every_effect_is_one_line_of_the_log(caplog):
    caplog.set_level("INFO")
    ended = []

    async def test(stage):
        owner = await stage.owner()

        async def written(*_, **__):
            return owner.object

        stage.client.replace = written
        stage.executor.clouds = SimpleNamespace(launch=lambda _: None, terminate=ended.append)
        await stage.create(owner, "first")
        launching = LaunchInstance(
            "modal", CONFIG_MAP, owner.object, launch_spec(), CloudInstanceStatus(state="Launching")
        )
        await stage.perform(launching)
        await stage.perform(TerminateInstance("modal", "sb-1", 0.0))
        assert stage.executor.effects == len(lines())

    def lines():
        return [record for record in caplog.records if hasattr(record, "effect")]

    run_virtual(test)
    assert [record.effect for record in lines()] == list(range(1, len(lines()) + 1))
    launch, end = lines()[-2:]
    assert (launch.message, launch.object, launch.provider, launch.size) == ("launch", "default/owner", "modal", 1)
    assert (end.message, end.provider, end.instance) == ("end", "modal", "sb-1")
    assert len(ended) == 1


def test_what_is_applied_only_once_stays_as_it_is():
    async def test(stage):
        owner = await stage.owner()
        await stage.apply(owner, "first", only_once=True)
        await stage.apply(owner, "second", only_once=True)
        assert (await stage.api.get(CONFIG_MAP, "child")).ok["data"] == {"value": "first"}
        await stage.apply(owner, "third", only_once=False)
        assert (await stage.api.get(CONFIG_MAP, "child")).ok["data"] == {"value": "third"}

    run_virtual(test)


@pytest.mark.parametrize("whose", ["ours", "another's"])
def test_executor_unknown_to_cache_creates_blindly_and_keeps_an_existing_object(whose):
    async def test():
        harness = Harness(Cache(CONFIG_MAP, Object))
        owner = await harness.owner()
        await harness.create(owner, "first")
        if whose == "another's":
            unowned = {"metadata": {"ownerReferences": None}}
            (await harness.api.merge(CONFIG_MAP, "child", unowned)).ok  # noqa: B018 (asserts)
        late = Executor(harness.client, CacheRegistry(Cache(CONFIG_MAP, Object)), AlwaysLeader())
        harness.executor = late
        with contextlib.nullcontext() if whose == "ours" else pytest.raises(NameConflict):
            await harness.create(owner, "second")
        assert (await harness.api.get(CONFIG_MAP, "child")).ok["data"] == {"value": "first"}

    virtual_time.run(test())


@pytest.mark.parametrize("whose", ["ours", "another's"])
def test_create_without_owner_uses_only_an_object_that_skysail_created(whose):
    async def test():
        harness = Harness(Cache(CONFIG_MAP, Object))
        await harness.perform(Create(CONFIG_MAP, _child("first"), None))
        created = (await harness.api.get(CONFIG_MAP, "child")).ok
        assert "ownerReferences" not in created["metadata"]
        assert created["metadata"]["labels"] == {Label.MANAGED_BY: "skysail"}
        if whose == "another's":
            unlabelled = {"metadata": {"labels": None}}
            (await harness.api.merge(CONFIG_MAP, "child", unlabelled)).ok  # noqa: B018 (asserts)
        harness.executor = Executor(harness.client, CacheRegistry(Cache(CONFIG_MAP, Object)), AlwaysLeader())
        with (
            contextlib.nullcontext() if whose == "ours" else pytest.raises(NameConflict, match="not created by Skysail")
        ):
            await harness.perform(Create(CONFIG_MAP, _child("second"), None))
        assert (await harness.api.get(CONFIG_MAP, "child")).ok["data"] == {"value": "first"}

    virtual_time.run(test())


@pytest.mark.parametrize("is_there", [True, False])
def test_a_quota_that_is_used_up_by_this_very_child_is_no_refusal(is_there):
    """The API server asks the quota before it looks whether the name is taken."""

    async def test():
        harness = Harness(Cache(CONFIG_MAP, Object))
        owner = await harness.owner()
        if is_there:
            await harness.create(owner, "first")
        harness.executor = Executor(harness.client, CacheRegistry(Cache(CONFIG_MAP, Object)), AlwaysLeader())

        async def create(*_, **__):
            raise Forbidden(403, "Forbidden", "exceeded quota: jobs")

        harness.client.create = create
        with contextlib.nullcontext() if is_there else pytest.raises(Forbidden):
            await harness.create(owner, "first")

    virtual_time.run(test())


def test_labels_that_somebody_took_away_come_back():
    async def test(stage):
        owner = await stage.owner()
        await stage.apply(owner, "first", only_once=False)
        made = (await stage.api.get(CONFIG_MAP, "child")).ok
        for value in (None, "mine"):
            patch = {"metadata": {"labels": {Label.MANAGED_BY: value}}}
            (await stage.api.merge(CONFIG_MAP, "child", patch)).ok  # noqa: B018 (asserts)
            await stage.apply(owner, "first", only_once=False)
            assert (await stage.api.get(CONFIG_MAP, "child")).ok["metadata"]["labels"] == made["metadata"]["labels"]
        effects = stage.executor.effects
        await stage.apply(owner, "first", only_once=False)
        assert stage.executor.effects == effects

    run_virtual(test)


def test_what_somebody_changed_of_a_child_is_put_back_and_told():
    async def test(stage):
        owner = await stage.owner()
        kept = Apply(CONFIG_MAP, _child("ours"), owner, enforce=True)
        await stage.perform(kept)
        assert stage.executor.pop_events(ROOT) == []
        await stage.edit(value="theirs", more="is theirs")
        await stage.perform(kept)
        # What we do not speak of is not ours.
        assert (await stage.api.get(CONFIG_MAP, "child")).ok["data"] == {"value": "ours", "more": "is theirs"}
        (note,) = stage.executor.pop_events(ROOT)
        assert note.message == "ConfigMap child was modified and has been restored. Edit ConfigMap owner instead."
        assert stage.executor.pop_events(ROOT) == []

    run_virtual(test)


def test_a_child_is_left_alone_where_nothing_of_ours_was_changed():
    async def test(stage):
        owner = await stage.owner()
        for is_kept, theirs in ((True, {"more": "is theirs"}), (False, {"value": "theirs"})):
            kept = Apply(CONFIG_MAP, _child("ours"), owner, enforce=is_kept)
            await stage.perform(kept)
            await stage.edit(**theirs)
            effects = stage.executor.effects
            await stage.perform(kept)
            assert (stage.executor.effects, stage.executor.pop_events(ROOT)) == (effects, [])

    run_virtual(test)


def test_whoever_changes_a_child_again_and_again_is_not_fought():
    async def test(stage):
        owner = await stage.owner()
        kept = Apply(CONFIG_MAP, _child("ours"), owner, enforce=True)
        await stage.perform(kept)
        for pause, is_back in ((0, True), (60, False), (300, True), (500, False), (200, True), (1000, False)):
            await stage.edit(value="theirs")
            await asyncio.sleep(pause)
            await stage.perform(kept)
            found = (await stage.api.get(CONFIG_MAP, "child")).ok["data"]["value"]
            assert (found == "ours") is is_back

    run_virtual(test)


def test_a_child_that_is_newer_than_the_cache_is_not_taken_for_changed():
    """Another leader has applied it since: its word is waited for."""

    async def test(stage):
        owner = await stage.owner()
        await stage.perform(Apply(CONFIG_MAP, _child("old"), owner, enforce=True))
        known = await stage.client.get(CONFIG_MAP, "default", "child", Object)
        await stage.perform(Apply(CONFIG_MAP, _child("new"), owner, enforce=True))
        with pytest.raises(Stale):
            await DriftDetector(stage.client).needs_correction(
                CONFIG_MAP, known, complete_manifest(_child("old"), owner)
            )

    run_virtual(test)


@pytest.mark.parametrize("refusal", [Forbidden, Conflict])
def test_what_could_not_be_put_back_is_not_said_to_be(refusal):
    async def test(stage):
        owner = await stage.owner()
        kept = Apply(CONFIG_MAP, _child("ours"), owner, enforce=True)
        await stage.perform(kept)
        await stage.edit(value="theirs")
        apply = stage.client.apply

        async def refused(*args, dry_run=False, **options):
            if dry_run and refusal is not Forbidden:
                return await apply(*args, dry_run=True, **options)
            raise refusal(400, "No", "not now")

        stage.client.apply = refused
        with contextlib.suppress(Conflict):
            await stage.perform(kept)
        assert stage.executor.pop_events(ROOT) == []
        stage.client.apply = apply
        if refusal is Conflict:
            await stage.perform(kept)
            assert (await stage.api.get(CONFIG_MAP, "child")).ok["data"] == {"value": "ours"}

    run_virtual(test)


def test_what_the_server_writes_otherwise_is_not_taken_for_a_change(monkeypatch):
    """It is asked what applying would change, where something looks other than it was told."""

    async def test(stage):
        owner = await stage.owner()
        kept = Apply(CONFIG_MAP, _child(""), owner, enforce=True)
        await stage.perform(kept)
        stored = (await stage.api.get(CONFIG_MAP, "child")).ok

        async def written_otherwise(*_args, **_options):
            return {**stored, "data": {}}

        monkeypatch.setattr(stage.client, "apply", written_otherwise)
        monkeypatch.setattr(stage.client, "get", written_otherwise)
        known = msgspec.convert({"metadata": {"name": "child", "uid": "u", "resourceVersion": "9"}}, Object)
        manifest = {**_child("1000m"), "metadata": stored["metadata"]}
        assert not await DriftDetector(stage.client).needs_correction(CONFIG_MAP, known, manifest)

    run_virtual(test)


def test_what_is_deleted_after_its_children_is_there_as_long_as_they_are():
    async def test(stage):
        owner = await stage.owner()
        references = owned_by((await stage.api.get(CONFIG_MAP, "owner")).ok, blockOwnerDeletion=True)
        metadata = {"name": "child", "ownerReferences": references, "finalizers": ["example.com/wait"]}
        (await stage.api.create(SECRET, {"metadata": metadata})).ok  # noqa: B018 (asserts)
        await stage.perform(Delete(CONFIG_MAP, owner.object, foreground=True))
        await stage.api.until(SECRET, "child", lambda child: "deletionTimestamp" in child["metadata"])
        assert "deletionTimestamp" in (await stage.api.get(CONFIG_MAP, "owner")).ok["metadata"]
        (await stage.api.merge(SECRET, "child", {"metadata": {"finalizers": []}})).ok  # noqa: B018 (asserts)
        await stage.api.until_gone(CONFIG_MAP, "owner")

    run_virtual(test)


@pytest.mark.parametrize(
    "verb", ["apply", "create", "delete", "patch", "patch status", "patch metadata", "bind", "finalizers"]
)
def test_nothing_is_written_in_another_namespace_than_the_one_of_the_root(verb):
    async def test(stage):
        owner = await stage.owner()
        metadata = {"name": "child", "namespace": "elsewhere", "uid": "u", "resourceVersion": "1"}
        foreign = msgspec.convert({"metadata": metadata}, Object)
        manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "child", "namespace": "elsewhere"}}
        action = {
            "apply": Apply(CONFIG_MAP, manifest, owner),
            "create": Create(CONFIG_MAP, manifest, owner),
            "delete": Delete(CONFIG_MAP, foreign),
            "patch": PatchSpec(CONFIG_MAP, foreign, {}),
            "patch status": PatchStatus(CONFIG_MAP, foreign, {}),
            "patch metadata": PatchMetadata(resource=CONFIG_MAP, object=foreign),
            "bind": Bind(resource=POD, object=foreign, node="n"),
            "finalizers": SetFinalizers(CONFIG_MAP, foreign, ()),
        }[verb]
        with pytest.raises(CrossNamespace, match="namespace elsewhere was planned for ConfigMap default/owner"):
            await stage.perform(action)
        assert stage.executor.effects == 0

    run_virtual(test)


def test_a_status_is_changed_only_where_it_is_as_it_was_seen():
    async def test(stage):
        (await stage.api.create(POD, {"metadata": {"name": "told"}, "spec": {}})).ok  # noqa: B018 (asserts)
        seen = await stage.client.get(POD, "default", "told", Object)
        await stage.perform(PatchStatus(POD, seen, {"reason": "Told", "phase": None}))
        status = (await stage.api.get(POD, "told")).ok["status"]
        assert status == {"reason": "Told"}
        with pytest.raises(Conflict):
            await stage.perform(PatchStatus(POD, seen, {"reason": "ToldAgain"}))
        assert (await stage.api.get(POD, "told")).ok["status"] == status

    run_virtual(test)


def test_a_part_of_a_spec_is_changed_and_nothing_else_of_it():
    async def test(stage):
        spec = {"activeDeadlineSeconds": 5, "nodeSelector": {"zone": "a"}}
        (await stage.api.create(POD, {"metadata": {"name": "scaled"}, "spec": spec})).ok  # noqa: B018 (asserts)
        seen = await stage.client.get(POD, "default", "scaled", Object)
        await stage.perform(PatchSpec(POD, seen, {"activeDeadlineSeconds": 3}))
        assert (await stage.api.get(POD, "scaled")).ok["spec"] == {**spec, "activeDeadlineSeconds": 3}
        with pytest.raises(Conflict):
            await stage.perform(PatchSpec(POD, seen, {"activeDeadlineSeconds": 1}))

    run_virtual(test)


def test_a_child_of_one_that_had_the_name_before_is_waited_for():
    """Its owner is gone, so it goes by itself: nobody has to rename anything."""

    async def test(stage):
        before = await stage.owner()
        await stage.apply(before, "first", only_once=False)
        renewed = msgspec.structs.replace(before.object.metadata, uid="another")
        after = Owner(CONFIG_MAP, msgspec.structs.replace(before.object, metadata=renewed))
        with pytest.raises(Stale):
            await stage.apply(after, "second", only_once=False)

    run_virtual(test)


async def _nothing() -> None: ...


def test_a_cloud_is_not_called_for_a_claim_that_has_changed_meanwhile():
    """The write went through; then the watch told of its deletion, and only then the answer came."""

    async def test():
        claims = Cache(CONFIG_MAP, Object)
        harness = Harness(claims)
        claim = (await harness.owner()).object
        written, newer = (msgspec.structs.replace(claim.metadata, resource_version=each) for each in ("8000", "9000"))
        called = []

        async def late(*_, **__):
            claims.put(msgspec.structs.replace(claim, metadata=newer))
            return msgspec.structs.replace(claim, metadata=written)

        harness.client.replace = late
        harness.executor.clouds = SimpleNamespace(launch=called.append)
        with pytest.raises(Fenced):
            await harness.perform(
                LaunchInstance("cloud", CONFIG_MAP, claim, launch_spec(), CloudInstanceStatus(state="Launching"))
            )
        assert called == []

    virtual_time.run(test())


def test_bind_pod_gets_node_once_and_leaves_cache():
    async def test():
        cache = Cache(POD, Object, selector={"fieldSelector": "spec.nodeName="})
        harness = Harness(cache)
        (await harness.api.create(POD, {"metadata": {"name": "p"}, "spec": {"restartPolicy": "Never"}})).ok  # noqa: B018 (asserts)
        seen = await harness.client.get(POD, "default", "p", Object)
        cache.put(seen)
        await harness.perform(Bind(resource=POD, object=seen, node="n1"))
        assert (await harness.api.get(POD, "p")).ok["spec"]["nodeName"] == "n1"
        assert cache.get(seen.metadata.key) is None
        with pytest.raises(Conflict):
            await harness.perform(Bind(resource=POD, object=seen, node="n2"))
        assert (await harness.api.get(POD, "p")).ok["spec"]["nodeName"] == "n1"

    virtual_time.run(test())


def test_bind_changed_pod_is_not_bound():
    async def test(stage):
        (await stage.api.create(POD, {"metadata": {"name": "p"}, "spec": {"restartPolicy": "Never"}})).ok  # noqa: B018 (asserts)
        seen = await stage.client.get(POD, "default", "p", Object)
        (await stage.api.merge(POD, "p", {"metadata": {"labels": {"new": "one"}}})).ok  # noqa: B018 (asserts)
        with pytest.raises(Conflict):
            await stage.perform(Bind(resource=POD, object=seen, node="n1"))
        assert "nodeName" not in (await stage.api.get(POD, "p")).ok["spec"]

    run_virtual(test)


def test_patch_metadata_adds_and_keeps_others():
    async def test(stage):
        metadata = {"name": "p", "labels": {"a": "1"}, "annotations": {"b": "2"}}
        (await stage.api.create(POD, {"metadata": metadata, "spec": {"restartPolicy": "Never"}})).ok  # noqa: B018 (asserts)
        seen = await stage.client.get(POD, "default", "p", Object)
        await stage.perform(PatchMetadata(resource=POD, object=seen, labels={"c": "3"}, annotations={"d": "4"}))
        patched = (await stage.api.get(POD, "p")).ok["metadata"]
        assert patched["labels"] == {"a": "1", "c": "3"}
        assert patched["annotations"] == {"b": "2", "d": "4"}
        with pytest.raises(Conflict):
            await stage.perform(PatchMetadata(resource=POD, object=seen, labels={"e": "5"}))

    run_virtual(test)


def test_an_object_that_was_released_from_its_owner_is_neither_a_conflict_nor_created_again() -> None:
    async def test() -> None:
        harness = Harness()
        owner = await harness.owner()
        manifest = {**config_map("child"), "apiVersion": "v1", "kind": "ConfigMap"}
        manifest["metadata"] = {"name": "child", "namespace": "default", "labels": {"of": owner.object.metadata.uid}}
        await harness.executor.execute(ROOT, Create(CONFIG_MAP, manifest, owner))
        child = await harness.client.get(CONFIG_MAP, "default", "child", Object)
        await harness.executor.execute(ROOT, SetOwner(CONFIG_MAP, child, None))
        child = await harness.client.get(CONFIG_MAP, "default", "child", Object)
        assert child.metadata.owner_references == ()
        assert await harness.executor.execute(ROOT, Create(CONFIG_MAP, manifest, owner, may_be_released=True)) is None
        with pytest.raises(NameConflict):
            await harness.executor.execute(ROOT, Create(CONFIG_MAP, manifest, owner))
        await harness.executor.execute(ROOT, SetOwner(CONFIG_MAP, child, owner))
        child = await harness.client.get(CONFIG_MAP, "default", "child", Object)
        assert child.metadata.is_controlled_by(owner.object.metadata)

    virtual_time.run(test())
