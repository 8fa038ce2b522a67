"""What a create does, and what it refuses."""

from __future__ import annotations

from skysail.kube.api.resources import CONFIG_MAP, NAMESPACE
from tests.contract.api_dsl import WIDGET, Api, config_map, version_of, widget


async def a_new_object_has_uid_version_and_time(api: Api) -> None:
    metadata = (await api.widget())["metadata"]
    assert len(metadata["uid"]) == 36
    assert int(metadata["resourceVersion"]) > 0
    assert metadata["creationTimestamp"].endswith("Z")
    assert metadata["namespace"] == api.namespace


async def a_new_object_reads_back_as_created(api: Api) -> None:
    created = await api.widget(spec={"size": 3, "deep": {"list": [1, "two"]}}, labels={"app": "x"})
    assert (await api.get(WIDGET, "one")).ok == created
    assert created["spec"] == {"size": 3, "deep": {"list": [1, "two"]}}


async def a_new_custom_object_has_generation_one(api: Api) -> None:
    assert (await api.widget())["metadata"]["generation"] == 1


async def a_config_map_has_no_generation(api: Api) -> None:
    created = (await api.create(CONFIG_MAP, config_map("one", {"a": "1"}))).ok
    assert "generation" not in created["metadata"]


async def what_the_server_sets_cannot_be_chosen(api: Api) -> None:
    created = await api.widget(uid="mine", generation=7, creationTimestamp="2001-01-01T00:00:00Z")
    assert created["metadata"]["uid"] != "mine"
    assert created["metadata"]["generation"] == 1
    assert not created["metadata"]["creationTimestamp"].startswith("2001")


async def each_write_has_a_higher_version(api: Api) -> None:
    versions = [version_of(await api.widget(name)) for name in ("one", "two", "three")]
    assert versions == sorted(set(versions))


async def a_name_that_exists_is_refused(api: Api) -> None:
    await api.widget()
    answer = await api.create(WIDGET, widget())
    assert answer.is_refused(409, "AlreadyExists")
    assert answer.body["message"] == 'widgets.contract.skysail.dev "one" already exists'


async def a_missing_object_is_named_in_the_refusal(api: Api) -> None:
    answer = await api.get(WIDGET, "nobody")
    assert answer.is_refused(404, "NotFound")
    assert answer.body["message"] == 'widgets.contract.skysail.dev "nobody" not found'
    assert answer.body["details"] == {"name": "nobody", "group": WIDGET.group, "kind": "widgets"}
    assert answer.body["code"] == 404


async def an_unknown_kind_is_not_found(api: Api) -> None:
    answer = await api.send("GET", f"/apis/{WIDGET.group}/v1/nothings")
    assert answer.status == 404


async def a_namespace_must_exist(api: Api) -> None:
    answer = await api.create(WIDGET, widget(), namespace="no-such-namespace")
    assert answer.is_refused(404, "NotFound")
    assert answer.body["message"] == 'namespaces "no-such-namespace" not found'


async def body_and_path_must_name_one_namespace(api: Api) -> None:
    answer = await api.create(WIDGET, widget(namespace="default"))
    assert answer.is_refused(400, "BadRequest")


async def a_name_is_required(api: Api) -> None:
    answer = await api.create(WIDGET, {"metadata": {}, "spec": {}})
    assert answer.is_refused(422, "Invalid")


async def a_version_cannot_be_created(api: Api) -> None:
    answer = await api.create(WIDGET, widget(resourceVersion="5"))
    assert answer.status in {400, 500}
    assert "resourceVersion should not be set on objects to be created" in answer.body["message"]


async def generate_name_makes_different_names(api: Api) -> None:
    names = set()
    for _ in range(3):
        created = (await api.create(WIDGET, {"metadata": {"generateName": "some-"}, "spec": {}})).ok
        names.add(created["metadata"]["name"])
        assert created["metadata"]["generateName"] == "some-"
    assert len(names) == 3
    assert all(name.startswith("some-") and len(name) == len("some-") + 5 for name in names)


async def a_status_is_not_created_along(api: Api) -> None:
    created = (await api.create(WIDGET, {**widget(), "status": {"phase": "Forged"}})).ok
    assert "status" not in created


async def empty_metadata_is_not_stored(api: Api) -> None:
    created = await api.widget(labels={}, annotations={}, finalizers=[], ownerReferences=[])
    assert not {"labels", "annotations", "finalizers", "ownerReferences"} & created["metadata"].keys()


async def a_dry_run_creates_nothing(api: Api) -> None:
    answer = await api.create(WIDGET, widget(), dryRun="All")
    assert answer.status == 201
    assert len(answer.body["metadata"]["uid"]) == 36
    assert (await api.get(WIDGET, "one")).status == 404


async def a_dry_run_is_checked_like_the_real_thing(api: Api) -> None:
    await api.widget()
    assert (await api.create(WIDGET, widget(), dryRun="All")).is_refused(409, "AlreadyExists")


async def a_new_namespace_is_active_and_carries_its_name(api: Api) -> None:
    namespace = (await api.get(NAMESPACE, api.namespace)).ok
    assert namespace["status"]["phase"] == "Active"
    assert namespace["spec"]["finalizers"] == ["kubernetes"]
    assert namespace["metadata"]["labels"]["kubernetes.io/metadata.name"] == api.namespace


async def discovery_lists_a_served_kind_and_its_status(api: Api) -> None:
    path = f"/apis/{WIDGET.group}/v1"
    found = await api.until_page(path, lambda page: len(page.get("resources", ())) == 4)  # two, and their statuses
    rows = {row["name"]: (row["kind"], row["namespaced"]) for row in found["resources"]}
    assert rows["widgets"] == ("Widget", True)
    assert rows["gadgets"] == ("Gadget", False)
    assert "widgets/status" in rows


async def discovery_lists_a_served_group(api: Api) -> None:
    found = await api.until_page("/apis", lambda page: WIDGET.group in [row["name"] for row in page["groups"]])
    versions = {group["name"]: [row["version"] for row in group["versions"]] for group in found["groups"]}
    assert versions[WIDGET.group] == ["v1"]
    assert (await api.send("GET", "/apis/nothing.skysail.dev/v1")).status == 404
