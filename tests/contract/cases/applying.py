"""What server-side apply does: who owns a field, and what becomes of fields that are no longer named."""

from __future__ import annotations

import uuid

from skysail.kube.api.resources import CONFIG_MAP, DEPLOYMENT
from tests.contract.api_dsl import WIDGET, Api, Object, config_map, version_of, widget


async def apply_creates_and_then_updates(api: Api) -> None:
    first = await api.apply(WIDGET, widget(spec={"a": 1}), "me")
    second = await api.apply(WIDGET, widget(spec={"a": 2}), "me")
    assert (first.status, second.status) == (201, 200)
    assert second.ok["spec"] == {"a": 2}
    assert (first.ok["metadata"]["generation"], second.ok["metadata"]["generation"]) == (1, 2)


async def a_field_that_is_no_longer_applied_is_removed(api: Api) -> None:
    await api.apply(WIDGET, widget(spec={"a": 1, "b": 1, "deep": {"x": 1, "y": 1}}, labels={"l": "1", "m": "1"}), "me")
    answer = await api.apply(WIDGET, widget(spec={"a": 1, "deep": {"x": 1}}, labels={"l": "1"}), "me")
    assert answer.ok["spec"] == {"a": 1, "deep": {"x": 1}}
    assert answer.ok["metadata"]["labels"] == {"l": "1"}


async def the_last_field_of_a_map_can_be_removed(api: Api) -> None:
    await api.apply(CONFIG_MAP, config_map("one", {"a": "1"}, labels={"l": "1"}), "me")
    answer = await api.apply(CONFIG_MAP, {"metadata": {"name": "one"}}, "me")
    assert "data" not in answer.ok
    assert "labels" not in answer.ok["metadata"]


async def a_map_that_becomes_empty_goes_too(api: Api) -> None:
    await api.apply(WIDGET, widget(spec={"a": {"b": {"c": 1}}, "d": 1}), "me")
    assert (await api.apply(WIDGET, widget(spec={"d": 1}), "me")).ok["spec"] == {"d": 1}
    assert "spec" not in (await api.apply(WIDGET, {"metadata": {"name": "one"}}, "me")).ok


async def an_owned_map_that_becomes_empty_is_null(api: Api) -> None:
    await api.apply(WIDGET, widget("mine", spec={"a": {"b": 1}, "c": 1}), "me")
    assert (await api.apply(WIDGET, widget("mine", spec={"a": {}, "c": 1}), "me")).ok["spec"] == {"a": None, "c": 1}
    await api.widget("theirs", spec={"a": {"b": 1}})
    await api.apply(WIDGET, widget("theirs", spec={"a": {"c": 1}}), "me")
    await api.merge(WIDGET, "theirs", {"spec": {"a": {"b": None}}})
    assert (await api.apply(WIDGET, {"metadata": {"name": "theirs"}}, "me")).ok["spec"] == {"a": None}


async def what_others_wrote_stays(api: Api) -> None:
    await api.apply(WIDGET, widget(spec={"mine": 1}), "me")
    await api.merge(
        WIDGET, "one", {"metadata": {"labels": {"theirs": "1"}}, "spec": {"theirs": 1}}, fieldManager="them"
    )
    answer = await api.apply(WIDGET, widget(spec={"mine": 2}), "me")
    assert answer.ok["spec"] == {"mine": 2, "theirs": 1}
    assert answer.ok["metadata"]["labels"] == {"theirs": "1"}


async def a_field_of_somebody_else_is_a_conflict(api: Api) -> None:
    await api.apply(WIDGET, widget(spec={"a": 1}), "them")
    answer = await api.apply(WIDGET, widget(spec={"a": 2}), "me")
    assert answer.is_refused(409, "Conflict")
    (cause,) = answer.body["details"]["causes"]
    assert cause["reason"] == "FieldManagerConflict"
    assert cause["field"] == ".spec.a"
    assert 'conflict with "them"' in cause["message"]
    assert (await api.get(WIDGET, "one")).ok["spec"] == {"a": 1}


async def force_takes_a_field_over(api: Api) -> None:
    await api.apply(WIDGET, widget(spec={"a": 1, "b": 1}), "them")
    taken = await api.apply(WIDGET, widget(spec={"a": 2}), "me", force="true")
    assert taken.ok["spec"] == {"a": 2, "b": 1}
    left = await api.apply(WIDGET, widget(spec={"b": 1}), "them")
    assert left.ok["spec"] == {"a": 2, "b": 1}
    assert (await api.apply(WIDGET, widget(spec={"a": 1, "b": 1}), "them")).is_refused(409, "Conflict")


async def one_value_can_have_two_owners(api: Api) -> None:
    await api.apply(WIDGET, widget(spec={"a": 1}), "them")
    await api.apply(WIDGET, widget(spec={"a": 1}), "me")
    assert (await api.apply(WIDGET, widget(spec={"mine": 1}), "me")).ok["spec"] == {"a": 1, "mine": 1}
    assert (await api.apply(WIDGET, widget(spec={"b": 1}), "them")).ok["spec"] == {"mine": 1, "b": 1}


async def a_plain_write_takes_over_what_it_changes(api: Api) -> None:
    await api.apply(WIDGET, widget(spec={"a": 1, "b": 1}), "me")
    await api.merge(WIDGET, "one", {"spec": {"a": 2}}, fieldManager="them")
    assert (await api.apply(WIDGET, widget(spec={"a": 1, "b": 1}), "me")).is_refused(409, "Conflict")
    assert (await api.apply(WIDGET, widget(spec={"b": 1}), "me")).ok["spec"] == {"a": 2, "b": 1}


async def apply_of_the_same_makes_no_version(api: Api) -> None:
    manifest = widget(spec={"a": 1, "list": [1, 2]}, labels={"l": "1"})
    first = await api.apply(WIDGET, manifest, "me")
    assert (await api.apply(WIDGET, manifest, "me")).ok == first.ok


async def apply_by_a_second_owner_makes_a_version_but_no_generation(api: Api) -> None:
    first = (await api.apply(WIDGET, widget(spec={"a": 1}), "me")).ok
    second = (await api.apply(WIDGET, widget(spec={"a": 1}), "them")).ok
    assert version_of(second) > version_of(first)
    assert second["metadata"]["generation"] == 1


async def managed_fields_tell_who_owns_what(api: Api) -> None:
    await api.apply(WIDGET, widget(spec={"a": 1}, labels={"l": "1"}), "me")
    shown = (await api.merge(WIDGET, "one", {"spec": {"b": 1}}, fieldManager="them")).ok
    rows = {row["manager"]: row for row in shown["metadata"]["managedFields"]}
    assert rows["me"]["operation"] == "Apply"
    assert rows["me"]["fieldsV1"] == {"f:metadata": {"f:labels": {"f:l": {}}}, "f:spec": {"f:a": {}}}
    assert rows["them"]["operation"] == "Update"
    assert rows["them"]["fieldsV1"] == {"f:spec": {"f:b": {}}}


async def a_plain_write_owns_the_maps_that_it_makes(api: Api) -> None:
    (row,) = (await api.widget(spec={"a": {"b": 1}}, labels={"l": "1"}))["metadata"]["managedFields"]
    labels: Object = {"f:labels": {".": {}, "f:l": {}}}
    assert row["fieldsV1"] == {"f:metadata": labels, "f:spec": {".": {}, "f:a": {".": {}, "f:b": {}}}}


async def a_list_is_replaced_whole(api: Api) -> None:
    await api.apply(WIDGET, widget(spec={"list": [{"name": "a"}, {"name": "b"}]}), "me")
    answer = await api.apply(WIDGET, widget(spec={"list": [{"name": "b"}]}), "me")
    assert answer.ok["spec"] == {"list": [{"name": "b"}]}
    assert (await api.apply(WIDGET, widget(spec={"list": []}), "them")).is_refused(409, "Conflict")


async def conditions_are_merged_by_type(api: Api) -> None:
    await api.widget()
    await api.apply(WIDGET, _conditions(Ready="False", Mine="True"), "me", "status")
    await api.apply(WIDGET, _conditions(Theirs="True"), "them", "status")
    answer = await api.apply(WIDGET, _conditions(Ready="True"), "me", "status")
    found = {row["type"]: row["status"] for row in answer.ok["status"]["conditions"]}
    assert found == {"Ready": "True", "Theirs": "True"}


async def containers_are_merged_by_name(api: Api) -> None:
    await api.apply(DEPLOYMENT, _deployment("web:1"), "me")
    sidecar = {"name": "sidecar", "image": "sidecar:1"}
    template = {"spec": {"containers": [sidecar]}}
    them = {"metadata": {"name": "one"}, "spec": {"template": template}}
    await api.apply(DEPLOYMENT, them, "them")
    answer = await api.apply(DEPLOYMENT, _deployment("web:2"), "me")
    containers = answer.ok["spec"]["template"]["spec"]["containers"]
    assert {row["name"]: row["image"] for row in containers} == {"web": "web:2", "sidecar": "sidecar:1"}


async def apply_of_the_status_touches_only_the_status(api: Api) -> None:
    await api.widget()
    wanted = {"metadata": {"name": "one"}, "spec": {"size": 9}, "status": {"phase": "Ready"}}
    answer = await api.apply(WIDGET, wanted, "me", "status")
    assert (answer.ok["spec"], answer.ok["status"]) == ({"size": 1}, {"phase": "Ready"})
    assert answer.ok["metadata"]["generation"] == 1


async def apply_of_the_status_does_not_create(api: Api) -> None:
    answer = await api.apply(WIDGET, {"metadata": {"name": "one"}, "status": {}}, "me", "status")
    assert answer.is_refused(404, "NotFound")


async def finalizers_are_a_set(api: Api) -> None:
    await api.widget(finalizers=["skysail.dev/theirs"])
    added = await api.apply(WIDGET, {"metadata": {"name": "one", "finalizers": ["skysail.dev/mine"]}}, "me")
    assert sorted(added.ok["metadata"]["finalizers"]) == ["skysail.dev/mine", "skysail.dev/theirs"]
    dropped = await api.apply(WIDGET, {"metadata": {"name": "one"}}, "me")
    assert dropped.ok["metadata"]["finalizers"] == ["skysail.dev/theirs"]
    (await api.merge(WIDGET, "one", {"metadata": {"finalizers": None}})).ok  # noqa: B018 (asserts)


async def apply_needs_a_manager(api: Api) -> None:
    answer = await api.apply(WIDGET, widget(), "")
    assert answer.status in {400, 422}
    assert "fieldManager" in answer.body["message"]


async def managed_fields_cannot_be_applied(api: Api) -> None:
    answer = await api.apply(WIDGET, widget(managedFields=[{"manager": "x"}]), "me")
    assert answer.is_refused(400, "BadRequest")


async def apply_for_an_old_version_is_a_conflict(api: Api) -> None:
    created = await api.widget()
    await api.merge(WIDGET, "one", {"spec": {"size": 2}})
    version = created["metadata"]["resourceVersion"]
    answer = await api.apply(WIDGET, widget(spec={"other": 1}, resourceVersion=version), "me", force="true")
    assert answer.is_refused(409, "Conflict")


async def apply_for_a_uid_that_is_not_there_is_a_conflict(api: Api) -> None:
    answer = await api.apply(WIDGET, widget(uid=str(uuid.uuid4())), "me")
    assert answer.is_refused(409, "Conflict")
    assert (await api.get(WIDGET, "one")).status == 404


async def apply_for_another_uid_is_invalid(api: Api) -> None:
    await api.widget()
    answer = await api.apply(WIDGET, widget(spec={"other": 1}, uid=str(uuid.uuid4())), "me", force="true")
    assert answer.is_refused(422, "Invalid")
    assert answer.body["details"]["causes"][0]["field"] == "metadata.uid"


async def a_dry_run_applies_nothing(api: Api) -> None:
    assert (await api.apply(WIDGET, widget(), "me", dryRun="All")).status == 201
    assert (await api.get(WIDGET, "one")).status == 404
    created = (await api.apply(WIDGET, widget(spec={"a": 1}), "me")).ok
    assert (await api.apply(WIDGET, widget(spec={"a": 2}), "me", dryRun="All")).ok["spec"] == {"a": 2}
    assert (await api.get(WIDGET, "one")).ok == created


def _conditions(**conditions: str) -> Object:
    rows = [{"type": name, "status": status} for name, status in conditions.items()]
    return {"metadata": {"name": "one"}, "status": {"conditions": rows}}


def _deployment(image: str) -> Object:
    labels = {"app": "one"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": image}]}}
    return {
        "metadata": {"name": "one"},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }
