"""What merge patches and JSON patches do."""

from __future__ import annotations

import uuid

from skysail.kube.client.transport import JSON
from tests.contract.api_dsl import WIDGET, Api


async def a_merge_patch_sets_and_removes(api: Api) -> None:
    await api.widget(spec={"keep": 1, "change": 1, "drop": 1, "deep": {"a": 1, "b": 1}})
    patch = {"spec": {"change": 2, "drop": None, "deep": {"b": 2}, "new": 1}}
    patched = (await api.merge(WIDGET, "one", patch)).ok
    assert patched["spec"] == {"keep": 1, "change": 2, "deep": {"a": 1, "b": 2}, "new": 1}
    assert patched["metadata"]["generation"] == 2


async def a_merge_patch_replaces_lists(api: Api) -> None:
    await api.widget(spec={"list": [1, 2, 3]})
    assert (await api.merge(WIDGET, "one", {"spec": {"list": [4]}})).ok["spec"] == {"list": [4]}


async def a_merge_patch_needs_no_version(api: Api) -> None:
    await api.widget()
    await api.merge(WIDGET, "one", {"spec": {"size": 2}})
    assert (await api.merge(WIDGET, "one", {"spec": {"size": 3}})).ok["spec"] == {"size": 3}


async def a_merge_patch_for_an_old_version_is_a_conflict(api: Api) -> None:
    created = await api.widget()
    await api.merge(WIDGET, "one", {"spec": {"size": 2}})
    version = created["metadata"]["resourceVersion"]
    answer = await api.merge(WIDGET, "one", {"metadata": {"resourceVersion": version}, "spec": {"size": 3}})
    assert answer.is_refused(409, "Conflict")


async def a_merge_patch_for_another_uid_is_invalid(api: Api) -> None:
    await api.widget()
    answer = await api.merge(WIDGET, "one", {"metadata": {"uid": str(uuid.uuid4())}, "spec": {"size": 3}})
    assert answer.is_refused(422, "Invalid")
    assert answer.body["details"]["causes"][0]["field"] == "metadata.uid"
    assert (await api.get(WIDGET, "one")).ok["spec"] == {"size": 1}


async def a_merge_patch_that_changes_nothing_makes_no_version(api: Api) -> None:
    created = await api.widget()
    assert (await api.merge(WIDGET, "one", {"spec": {"size": 1}})).ok == created


async def a_merge_patch_of_nothing_is_not_found(api: Api) -> None:
    assert (await api.merge(WIDGET, "nobody", {"spec": {}})).is_refused(404, "NotFound")


async def a_merge_patch_of_the_status_touches_only_the_status(api: Api) -> None:
    await api.widget()
    patched = (await api.merge(WIDGET, "one", {"spec": {"size": 9}, "status": {"phase": "Ready"}}, "status")).ok
    assert (patched["spec"], patched["status"]) == ({"size": 1}, {"phase": "Ready"})


async def a_merge_patch_of_the_object_does_not_touch_the_status(api: Api) -> None:
    await api.widget()
    patched = (await api.merge(WIDGET, "one", {"spec": {"size": 2}, "status": {"phase": "Forged"}})).ok
    assert "status" not in patched


async def a_dry_run_patches_nothing(api: Api) -> None:
    created = await api.widget()
    assert (await api.merge(WIDGET, "one", {"spec": {"size": 2}}, dryRun="All")).ok["spec"] == {"size": 2}
    assert (await api.get(WIDGET, "one")).ok == created


async def a_json_patch_edits_in_order(api: Api) -> None:
    await api.widget(spec={"a": 1, "b": 2, "list": ["x", "z"]})
    edited = await api.edit(
        WIDGET,
        "one",
        {"op": "test", "path": "/spec/a", "value": 1},
        {"op": "replace", "path": "/spec/a", "value": 5},
        {"op": "remove", "path": "/spec/b"},
        {"op": "add", "path": "/spec/list/1", "value": "y"},
        {"op": "add", "path": "/spec/list/-", "value": "end"},
        {"op": "add", "path": "/spec/s~1lash", "value": True},
    )
    assert edited.ok["spec"] == {"a": 5, "list": ["x", "y", "z", "end"], "s/lash": True}


async def a_json_patch_whose_test_fails_changes_nothing(api: Api) -> None:
    created = await api.widget()
    answer = await api.edit(
        WIDGET,
        "one",
        {"op": "replace", "path": "/spec/size", "value": 7},
        {"op": "test", "path": "/spec/size", "value": 1},
    )
    assert answer.is_refused(422, "Invalid")
    assert (await api.get(WIDGET, "one")).ok == created


async def a_json_patch_of_a_missing_place_is_refused(api: Api) -> None:
    await api.widget()
    assert (await api.edit(WIDGET, "one", {"op": "remove", "path": "/spec/nothing"})).is_refused(422, "Invalid")


async def a_patch_of_an_unknown_type_is_refused(api: Api) -> None:
    await api.widget()
    answer = await api.send("PATCH", WIDGET.path(api.namespace, "one"), {}, content_type=JSON)
    assert answer.is_refused(415, "UnsupportedMediaType")
