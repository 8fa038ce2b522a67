"""What watches tell, from where, and how they end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from skysail.kube.api.resources import CONFIG_MAP
from skysail.kube.client.transport import Request
from tests.contract.api_dsl import WIDGET, Api, Object, config_map, version_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HOLD = "skysail.dev/hold"


async def a_watch_tells_what_happened_since(api: Api) -> None:
    since = await api.version(WIDGET)
    created = await api.widget()
    patched = (await api.merge(WIDGET, "one", {"spec": {"size": 2}})).ok
    await api.delete(WIDGET, "one")
    async with api.watch(WIDGET, resourceVersion=since) as events:
        first, second, third = [await anext(events) for _ in range(3)]
    assert (first["type"], first["object"]) == ("ADDED", created)
    assert (second["type"], second["object"]) == ("MODIFIED", patched)
    assert (third["type"], third["object"]["spec"]) == ("DELETED", {"size": 2})
    assert version_of(third["object"]) > version_of(patched)


async def a_watch_tells_what_happens_from_now_on(api: Api) -> None:
    await api.widget("before")
    async with api.watch(WIDGET, resourceVersion=await api.version(WIDGET)) as events:
        created = await api.widget("after")
        event = await anext(events)
    assert (event["type"], event["object"]) == ("ADDED", created)


async def a_watch_without_version_starts_with_what_is_there(api: Api) -> None:
    one, two = await api.widget("one"), await api.widget("two")
    async with api.watch(WIDGET) as events:
        first = [await anext(events), await anext(events)]
        third = await api.widget("three")
        last = await anext(events)
    assert sorted(event["object"]["metadata"]["name"] for event in first) == ["one", "two"]
    assert {event["type"] for event in first} == {"ADDED"}
    assert {version_of(event["object"]) for event in first} == {version_of(one), version_of(two)}
    assert last["object"] == third


async def two_watches_tell_the_same(api: Api) -> None:
    since = await api.version(WIDGET)
    async with (
        api.watch(WIDGET, resourceVersion=since) as left,
        api.watch(WIDGET, resourceVersion=since) as right,
    ):
        await api.widget()
        await api.merge(WIDGET, "one", {"spec": {"size": 2}})
        assert [await anext(left) for _ in range(2)] == [await anext(right) for _ in range(2)]


async def a_name_that_came_back_is_told_as_two_objects(api: Api) -> None:
    since = await api.version(WIDGET)
    before = await api.widget()
    await api.delete(WIDGET, "one")
    after = await api.widget()
    async with api.watch(WIDGET, resourceVersion=since) as events:
        told = [await anext(events) for _ in range(3)]
    assert [event["type"] for event in told] == ["ADDED", "DELETED", "ADDED"]
    uids = [event["object"]["metadata"]["uid"] for event in told]
    assert uids == [before["metadata"]["uid"], before["metadata"]["uid"], after["metadata"]["uid"]]


async def versions_in_a_watch_only_rise(api: Api) -> None:
    since = await api.version(WIDGET)
    for name in ("a", "b"):
        await api.widget(name)
        await api.merge(WIDGET, name, {"spec": {"size": 2}})
        await api.delete(WIDGET, name)
    async with api.watch(WIDGET, resourceVersion=since) as events:
        versions = [version_of((await anext(events))["object"]) for _ in range(6)]
    assert versions == sorted(set(versions))
    assert versions[0] > int(since)


async def a_write_that_changes_nothing_is_not_told(api: Api) -> None:
    created = await api.widget()
    async with api.watch(WIDGET, resourceVersion=created["metadata"]["resourceVersion"]) as events:
        await api.put(WIDGET, created)
        await api.merge(WIDGET, "one", {"spec": {"size": 1}})
        await api.merge(WIDGET, "one", {"spec": {"size": 2}})
        assert (await anext(events))["object"]["spec"] == {"size": 2}


async def a_dry_run_is_not_told(api: Api) -> None:
    async with api.watch(WIDGET, resourceVersion=await api.version(WIDGET)) as events:
        await api.create(WIDGET, {"metadata": {"name": "dry"}}, dryRun="All")
        await api.widget("real")
        assert (await anext(events))["object"]["metadata"]["name"] == "real"


async def a_held_end_is_told_twice(api: Api) -> None:
    created = await api.widget(finalizers=[HOLD])
    async with api.watch(WIDGET, resourceVersion=created["metadata"]["resourceVersion"]) as events:
        await api.delete(WIDGET, "one")
        await api.merge(WIDGET, "one", {"metadata": {"finalizers": None}})
        first, second = await anext(events), await anext(events)
    assert first["type"] == "MODIFIED"
    assert "deletionTimestamp" in first["object"]["metadata"]
    assert second["type"] == "DELETED"


async def what_leaves_a_selection_is_deleted_from_it(api: Api) -> None:
    await api.widget(labels={"colour": "blue"})
    since = await api.version(WIDGET)
    await api.merge(WIDGET, "one", {"metadata": {"labels": {"colour": "red"}}})
    await api.merge(WIDGET, "one", {"spec": {"size": 5}})
    await api.merge(WIDGET, "one", {"metadata": {"labels": {"colour": "blue"}}})
    async with api.watch(WIDGET, resourceVersion=since, labelSelector="colour=blue") as events:
        left, came = await anext(events), await anext(events)
    assert (left["type"], came["type"]) == ("DELETED", "ADDED")
    assert came["object"]["spec"] == {"size": 5}
    assert version_of(left["object"]) > int(since)


async def a_watch_of_one_name_tells_of_no_other(api: Api) -> None:
    since = await api.version(WIDGET)
    await api.widget("other")
    await api.widget("one")
    async with api.watch(WIDGET, resourceVersion=since, fieldSelector="metadata.name=one") as events:
        assert (await anext(events))["object"]["metadata"]["name"] == "one"


async def a_watch_in_a_namespace_tells_of_no_other(api: Api) -> None:
    since = await api.version(CONFIG_MAP)
    path = CONFIG_MAP.path("default")
    (await api.send("POST", path, config_map(f"other-{api.namespace}"))).ok  # noqa: B018 (asserts)
    await api.create(CONFIG_MAP, config_map("ours"))
    async with api.watch(CONFIG_MAP, resourceVersion=since) as events:
        names = []
        while "ours" not in names:
            names.append((await anext(events))["object"]["metadata"]["name"])
    assert f"other-{api.namespace}" not in names
    await api.send("DELETE", CONFIG_MAP.path("default", f"other-{api.namespace}"))


async def a_watch_tells_the_kind_of_built_in_objects(api: Api) -> None:
    since = await api.version(CONFIG_MAP)
    await api.create(CONFIG_MAP, config_map("one"))
    async with api.watch(CONFIG_MAP, resourceVersion=since, fieldSelector="metadata.name=one") as events:
        event = await anext(events)
    assert (event["object"]["apiVersion"], event["object"]["kind"]) == ("v1", "ConfigMap")


async def a_watch_from_too_long_ago_ends_with_410(api: Api) -> None:
    async with api.watch(WIDGET, resourceVersion="1") as events:
        (event,) = await _all(events)
    assert event["type"] == "ERROR"
    assert (event["object"]["kind"], event["object"]["code"]) == ("Status", 410)
    assert event["object"]["reason"] == "Expired"


async def a_watch_ends_when_its_time_is_over(api: Api) -> None:
    since = await api.version(WIDGET)
    async with api.watch(WIDGET, resourceVersion=since, timeoutSeconds="1") as events:
        assert await _all(events) == []


async def a_bookmark_tells_how_far_a_watch_came(api: Api) -> None:
    since = await api.version(WIDGET)
    created = await api.widget()
    bookmarks: list[Object] = []
    # One is due two seconds before the end, but a busy server may miss that; so several streams are asked, and again.
    while not bookmarks:
        streams = await asyncio.gather(*(_with_bookmarks(api, since, seconds) for seconds in (4, 5, 6, 7, 8)))
        assert all(added["object"] == created for stream in streams for added in stream[:1])
        bookmarks = [event for stream in streams for event in stream[1:]]
    assert {event["type"] for event in bookmarks} == {"BOOKMARK"}
    assert all(version_of(event["object"]) >= version_of(created) for event in bookmarks)


async def a_watch_of_an_unknown_kind_is_not_opened(api: Api) -> None:
    stream = await api.transport.open(
        Request(method="GET", path=f"/apis/{WIDGET.group}/v1/nothings", query={"watch": "true"})
    )
    async with stream:
        assert stream.status == 404


async def _with_bookmarks(api: Api, since: str, seconds: int) -> list[Object]:
    query = {"resourceVersion": since, "timeoutSeconds": str(seconds), "allowWatchBookmarks": "true"}
    async with api.watch(WIDGET, **query) as events:
        return await _all(events)


async def _all(events: AsyncIterator[Object]) -> list[Object]:
    return [event async for event in events]
