"""What lists show: order, selection, pages."""

from __future__ import annotations

import base64
import json

from skysail.kube.api.resources import CONFIG_MAP, POD
from tests.contract.api_dsl import WIDGET, Api, config_map, version_of

MINE = "mine=yes"
LABELS = {"mine": "yes"}


async def a_list_is_in_the_order_of_names(api: Api) -> None:
    for name in ("b", "c", "a"):
        await api.widget(name)
    found = (await api.list(WIDGET)).ok
    assert found["kind"] == "WidgetList"
    assert [item["metadata"]["name"] for item in found["items"]] == ["a", "b", "c"]


async def a_list_has_the_version_of_its_moment(api: Api) -> None:
    last = await api.widget()
    found = (await api.list(WIDGET)).ok
    assert int(found["metadata"]["resourceVersion"]) >= version_of(last)
    assert version_of(await api.widget("two")) > int(found["metadata"]["resourceVersion"])


async def an_empty_list_is_no_error(api: Api) -> None:
    assert (await api.list(WIDGET)).ok["items"] == []


async def custom_items_say_their_kind_and_built_in_ones_do_not(api: Api) -> None:
    await api.widget()
    await api.create(CONFIG_MAP, config_map("one", labels=LABELS))
    (custom,) = (await api.list(WIDGET)).ok["items"]
    (built_in,) = (await api.list(CONFIG_MAP, labelSelector=MINE)).ok["items"]
    assert (custom["apiVersion"], custom["kind"]) == (WIDGET.api_version, "Widget")
    assert not {"apiVersion", "kind"} & built_in.keys()


async def pages_show_each_object_once(api: Api) -> None:
    for number in range(7):
        await api.widget(f"w{number}")
    names, versions, query = [], set(), {"limit": "3"}
    for _ in range(3):
        page = (await api.list(WIDGET, **query)).ok
        names += [item["metadata"]["name"] for item in page["items"]]
        versions.add(page["metadata"]["resourceVersion"])
        query["continue"] = page["metadata"].get("continue", "")
    assert names == [f"w{number}" for number in range(7)]
    assert len(versions) == 1
    assert not query["continue"]


async def all_pages_show_the_same_moment(api: Api) -> None:
    for name in ("a", "b", "d"):
        await api.widget(name)
    first = (await api.list(WIDGET, limit="1")).ok
    await api.widget("c")
    await api.delete(WIDGET, "d")
    second = (await api.list(WIDGET, limit="5", **{"continue": first["metadata"]["continue"]})).ok
    assert [item["metadata"]["name"] for item in second["items"]] == ["b", "d"]


async def a_page_can_be_asked_for_twice(api: Api) -> None:
    for name in ("a", "b", "c"):
        await api.widget(name)
    first = (await api.list(WIDGET, limit="1")).ok
    query = {"limit": "1", "continue": first["metadata"]["continue"]}
    one, again = (await api.list(WIDGET, **query)).ok, (await api.list(WIDGET, **query)).ok
    assert one["items"] == again["items"]
    assert one["items"][0]["metadata"]["name"] == "b"


async def a_moment_that_is_forgotten_cannot_be_continued(api: Api) -> None:
    for name in ("a", "b", "c"):
        await api.widget(name)
    first = (await api.list(WIDGET, limit="1")).ok
    await api.compact()
    answer = await api.list(WIDGET, limit="1", **{"continue": _long_ago(first["metadata"]["continue"])})
    assert answer.is_refused(410, "Expired")


async def a_token_that_is_none_is_refused(api: Api) -> None:
    assert (await api.list(WIDGET, limit="1", **{"continue": "garbage"})).is_refused(400, "BadRequest")


async def labels_select(api: Api) -> None:
    await api.widget("blue", labels={"colour": "blue", "big": ""})
    await api.widget("red", labels={"colour": "red"})
    await api.widget("plain")
    for selector, expected in (
        ("colour=blue", ["blue"]),
        ("colour==red", ["red"]),
        ("colour!=blue", ["plain", "red"]),
        ("colour", ["blue", "red"]),
        ("!colour", ["plain"]),
        ("colour in (blue, red)", ["blue", "red"]),
        ("colour notin (blue)", ["plain", "red"]),
        ("colour=blue,big", ["blue"]),
        ("colour=red,big", []),
    ):
        found = (await api.list(WIDGET, labelSelector=selector)).ok
        assert [item["metadata"]["name"] for item in found["items"]] == expected, selector


async def a_name_selects(api: Api) -> None:
    await api.widget("a")
    await api.widget("b")
    found = (await api.list(WIDGET, fieldSelector="metadata.name=b")).ok
    assert [item["metadata"]["name"] for item in found["items"]] == ["b"]


async def a_node_selects_its_pods(api: Api) -> None:
    containers = [{"name": "main", "image": "example/none:1"}]
    # Of this case only: pods of a node that has been missing for a while are collected, whoever made them.
    some, other = (f"{which}-of-{api.namespace}" for which in ("some", "other"))
    for name, node in (("here", some), ("there", other)):
        spec = {"nodeName": node, "containers": containers}
        (await api.create(POD, {"metadata": {"name": name}, "spec": spec})).ok  # noqa: B018 (asserts)
    found = (await api.list(POD, fieldSelector=f"spec.nodeName={some}")).ok
    assert [item["metadata"]["name"] for item in found["items"]] == ["here"]
    for name in ("here", "there"):
        await api.delete(POD, name, {"gracePeriodSeconds": 0})


async def an_unknown_field_does_not_select(api: Api) -> None:
    assert (await api.list(WIDGET, fieldSelector="spec.size=1")).is_refused(400, "BadRequest")


async def a_list_over_all_namespaces_has_ours(api: Api) -> None:
    created = await api.widget()
    found = (await api.send("GET", WIDGET.path(), query={"fieldSelector": f"metadata.namespace={api.namespace}"})).ok
    assert [item["metadata"]["uid"] for item in found["items"]] == [created["metadata"]["uid"]]


async def metadata_can_be_listed_alone(api: Api) -> None:
    created = await api.widget()
    accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    found = (await api.list(WIDGET, accept=accept)).ok
    assert found["kind"] == "PartialObjectMetadataList"
    (item,) = found["items"]
    assert item["kind"] == "PartialObjectMetadata"
    assert item["metadata"] == created["metadata"]
    assert "spec" not in item


def _long_ago(token: str) -> str:
    """The same page, asked for at the first moment of the cluster."""
    position = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    return base64.urlsafe_b64encode(json.dumps({**position, "rv": 1}).encode()).decode().rstrip("=")
