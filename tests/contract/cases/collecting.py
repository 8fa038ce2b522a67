"""Who goes with whom: garbage collection by owner, and the end of a namespace."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING

from skysail.kube.api.resources import CONFIG_MAP, JOB, NAMESPACE
from tests.contract.api_dsl import GADGET, WIDGET, Api, Object, config_map, owned_by, widget

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HOLD = "skysail.dev/hold"


async def children_go_with_their_owner(api: Api) -> None:
    owner = await api.widget("owner")
    await _child(api, "first", owned_by(owner))
    await _child(api, "second", owned_by(owner))
    await api.delete(WIDGET, "owner")
    await api.until_gone(CONFIG_MAP, "first")
    await api.until_gone(CONFIG_MAP, "second")


async def grandchildren_go_too(api: Api) -> None:
    owner = await api.widget("owner")
    middle = await api.widget("middle", ownerReferences=owned_by(owner))
    await _child(api, "leaf", owned_by(middle))
    await api.delete(WIDGET, "owner")
    await api.until_gone(CONFIG_MAP, "leaf")


async def a_child_of_nobody_goes(api: Api) -> None:
    owner = await api.widget("owner")
    await _child(api, "stray", [{**owned_by(owner)[0], "uid": str(uuid.uuid4())}])
    await api.until_gone(CONFIG_MAP, "stray")
    assert (await api.get(WIDGET, "owner")).status == 200


async def a_child_of_the_one_before_goes(api: Api) -> None:
    before = await api.widget("owner")
    await api.delete(WIDGET, "owner", {"propagationPolicy": "Background"})
    await api.widget("owner")
    await _child(api, "late", owned_by(before))
    await api.until_gone(CONFIG_MAP, "late")


async def a_second_owner_keeps_a_child(api: Api) -> None:
    first, second = await api.widget("first"), await api.widget("second")
    await _child(api, "shared", owned_by(first) + owned_by(second))
    await api.delete(WIDGET, "first")
    await api.until(CONFIG_MAP, "shared", lambda obj: _owners(obj) == ["second"])


async def orphaned_children_stay_without_owner(api: Api) -> None:
    owner = await api.widget("owner")
    await _known_child(api, owned_by(owner))
    await api.delete(WIDGET, "owner", {"propagationPolicy": "Orphan"})
    await api.until_gone(WIDGET, "owner")
    assert _owners((await api.get(CONFIG_MAP, "child")).ok) == []


async def a_job_orphans_its_children_unless_told_otherwise(api: Api) -> None:
    job = await _job(api)
    await _known_child(api, owned_by(job))
    await api.delete(JOB, "one")
    await api.until_gone(JOB, "one")
    assert _owners((await api.get(CONFIG_MAP, "child")).ok) == []


async def a_job_takes_its_children_along_when_told_so(api: Api) -> None:
    job = await _job(api)
    await _child(api, "child", owned_by(job))
    await api.delete(JOB, "one", {"propagationPolicy": "Background"})
    await api.until_gone(CONFIG_MAP, "child")


async def in_the_foreground_an_owner_waits_for_blocking_children(api: Api) -> None:
    owner = await api.widget("owner")
    await _known_child(api, owned_by(owner, blockOwnerDeletion=True), finalizers=[HOLD])
    await api.delete(WIDGET, "owner", {"propagationPolicy": "Foreground"})
    await api.until(CONFIG_MAP, "child", lambda obj: obj is not None and "deletionTimestamp" in obj["metadata"])
    waiting = (await api.get(WIDGET, "owner")).ok
    assert waiting["metadata"]["finalizers"] == ["foregroundDeletion"]
    await api.merge(CONFIG_MAP, "child", {"metadata": {"finalizers": None}})
    await api.until_gone(WIDGET, "owner")


async def a_namespaced_owner_cannot_own_cluster_wide(api: Api) -> None:
    owner = await api.widget("owner")
    name = api.namespace
    (await api.create(GADGET, {"metadata": {"name": name, "ownerReferences": owned_by(owner)}})).ok  # noqa: B018 (asserts)
    await _child(api, "child", owned_by(owner))
    await api.delete(WIDGET, "owner")
    await api.until_gone(CONFIG_MAP, "child")
    assert (await api.get(GADGET, name)).status == 200
    await api.delete(GADGET, name)


async def a_cluster_wide_owner_owns_in_namespaces(api: Api) -> None:
    owner = (await api.create(GADGET, {"metadata": {"name": api.namespace}})).ok
    await _child(api, "child", owned_by(owner))
    await api.delete(GADGET, api.namespace)
    await api.until_gone(CONFIG_MAP, "child")


async def a_child_of_an_owner_in_another_namespace_goes(api: Api) -> None:
    owner = await api.widget("owner")
    async with _elsewhere(api) as other:
        await _child(other, "foreign", owned_by(owner, controller=True))
        await other.until_gone(CONFIG_MAP, "foreign")
    assert (await api.get(WIDGET, "owner")).status == 200


async def a_child_whose_owner_nobody_can_look_up_stays(api: Api) -> None:
    """So anybody can have an object, in a namespace of their own, that names the UID of an object of others."""
    owner = await api.widget("owner")
    async with _elsewhere(api) as other:
        unknown = {**owned_by(owner, controller=True)[0], "apiVersion": "example.com/v1", "kind": "Unknown"}
        await _child(other, "foreign", [unknown])
        await _child(other, "stray", [{**owned_by(owner)[0], "uid": str(uuid.uuid4())}])
        await other.until_gone(CONFIG_MAP, "stray")
        found = (await other.get(CONFIG_MAP, "foreign")).ok
        assert found["metadata"]["ownerReferences"][0]["uid"] == owner["metadata"]["uid"]


async def a_namespace_takes_everything_along(api: Api) -> None:
    await api.widget()
    await _child(api, "child", [])
    ending = (await api.delete(NAMESPACE, api.namespace)).ok
    assert ending["status"]["phase"] == "Terminating"
    await api.until_gone(WIDGET, "one")
    await api.until_gone(CONFIG_MAP, "child")
    await api.until_gone(NAMESPACE, api.namespace)


async def a_namespace_waits_for_finalizers(api: Api) -> None:
    await api.widget(finalizers=[HOLD])
    await api.delete(NAMESPACE, api.namespace)
    await api.until(WIDGET, "one", lambda obj: obj is not None and "deletionTimestamp" in obj["metadata"])
    assert (await api.get(NAMESPACE, api.namespace)).ok["status"]["phase"] == "Terminating"
    await _release(api)
    await api.until_gone(NAMESPACE, api.namespace)


async def nothing_new_is_made_in_an_ending_namespace(api: Api) -> None:
    await api.widget(finalizers=[HOLD])
    await api.delete(NAMESPACE, api.namespace)
    for answer in (await api.create(WIDGET, widget("two")), await api.apply(WIDGET, widget("two"), "me")):
        assert answer.is_refused(403, "Forbidden")
        assert "because it is being terminated" in answer.body["message"]
        assert "NamespaceTerminating" in [cause["reason"] for cause in answer.body["details"]["causes"]]
    await _release(api)


async def what_is_in_an_ending_namespace_can_be_changed(api: Api) -> None:
    await api.widget(finalizers=[HOLD])
    await api.delete(NAMESPACE, api.namespace)
    changed = (await api.merge(WIDGET, "one", {"metadata": {"labels": {"a": "b"}}})).ok
    assert changed["metadata"]["labels"] == {"a": "b"}
    await _release(api)


@contextlib.asynccontextmanager
async def _elsewhere(api: Api) -> AsyncIterator[Api]:
    """A second namespace, as long as it is entered."""
    name = f"{api.namespace}-elsewhere"
    (await api.create(NAMESPACE, {"metadata": {"name": name}})).ok  # noqa: B018 (asserts)
    try:
        yield Api(api.transport, name, api.compact)
    finally:
        await api.delete(NAMESPACE, name)


async def _child(api: Api, name: str, owners: list[Object], **metadata: object) -> Object:
    child: Object = (await api.create(CONFIG_MAP, config_map(name, {"a": "1"}, ownerReferences=owners, **metadata))).ok
    return child


async def _known_child(api: Api, owners: list[Object], **metadata: object) -> None:
    """One of which the collector knows: it hears of children and of owners by different ways.

    It has heard of it when it takes one that came later and is nobody's.
    """
    await _child(api, "child", owners, **metadata)
    await _child(api, "later", [{**owners[0], "uid": str(uuid.uuid4()), "blockOwnerDeletion": False}])
    await api.until_gone(CONFIG_MAP, "later")


async def _job(api: Api) -> Object:
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "example/none:1"}]}
    job: Object = (
        await api.create(JOB, {"metadata": {"name": "one"}, "spec": {"suspend": True, "template": {"spec": pod}}})
    ).ok
    return job


async def _release(api: Api) -> None:
    await api.merge(WIDGET, "one", {"metadata": {"finalizers": None}})


def _owners(obj: Object | None) -> list[str]:
    return [row["name"] for row in obj["metadata"].get("ownerReferences", [])] if obj else []
