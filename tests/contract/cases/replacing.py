"""What a PUT does to an object and to its status."""

from __future__ import annotations

import uuid

from skysail.kube.api.resources import CONFIG_MAP, LEASE
from tests.contract.api_dsl import WIDGET, Api, Object, config_map, version_of, widget


async def a_put_stores_the_new_object_under_a_higher_version(api: Api) -> None:
    created = await api.widget()
    replaced = (await api.put(WIDGET, {**created, "spec": {"size": 2}})).ok
    assert replaced["spec"] == {"size": 2}
    assert version_of(replaced) > version_of(created)
    assert (await api.get(WIDGET, "one")).ok == replaced


async def a_put_on_an_old_version_is_a_conflict(api: Api) -> None:
    created = await api.widget()
    await api.put(WIDGET, {**created, "spec": {"size": 2}})
    answer = await api.put(WIDGET, {**created, "spec": {"size": 3}})
    assert answer.is_refused(409, "Conflict")
    assert "the object has been modified" in answer.body["message"]
    assert (await api.get(WIDGET, "one")).ok["spec"] == {"size": 2}


async def a_put_of_a_custom_object_needs_a_version(api: Api) -> None:
    await api.widget()
    manifest = {"apiVersion": WIDGET.api_version, "kind": WIDGET.kind, **widget(spec={"size": 2})}
    answer = await api.put(WIDGET, manifest)
    assert answer.is_refused(422, "Invalid")
    assert "metadata.resourceVersion" in answer.body["message"]


async def a_put_of_a_lease_needs_a_version(api: Api) -> None:
    created = (await api.create(LEASE, {"metadata": {"name": "one"}, "spec": {"holderIdentity": "a"}})).ok
    del created["metadata"]["resourceVersion"]
    assert (await api.put(LEASE, created)).is_refused(422, "Invalid")


async def a_put_of_a_config_map_needs_no_version(api: Api) -> None:
    created = (await api.create(CONFIG_MAP, config_map("one", {"a": "1"}))).ok
    del created["metadata"]["resourceVersion"]
    assert (await api.put(CONFIG_MAP, {**created, "data": {"a": "2"}})).ok["data"] == {"a": "2"}


async def a_put_does_not_create(api: Api) -> None:
    created = await api.widget()
    renamed = {**created, "metadata": {**created["metadata"], "name": "other"}}
    assert (await api.put(WIDGET, renamed)).is_refused(404, "NotFound")


async def a_put_for_another_uid_is_a_conflict(api: Api) -> None:
    created = await api.widget()
    other = {**created, "metadata": {**created["metadata"], "uid": str(uuid.uuid4())}, "spec": {"size": 2}}
    answer = await api.put(WIDGET, other)
    assert answer.is_refused(409, "Conflict")
    assert "UID in precondition" in answer.body["message"]


async def body_and_path_must_name_one_object(api: Api) -> None:
    created = await api.widget()
    path = WIDGET.path(api.namespace, "other")
    assert (await api.send("PUT", path, created)).is_refused(400, "BadRequest")


async def a_put_cannot_change_what_the_server_set(api: Api) -> None:
    created = await api.widget()
    forged = {**created["metadata"], "creationTimestamp": "2001-01-01T00:00:00Z", "generation": 9}
    replaced = (await api.put(WIDGET, {**created, "metadata": forged, "spec": {"size": 2}})).ok
    assert replaced["metadata"]["creationTimestamp"] == created["metadata"]["creationTimestamp"]
    assert replaced["metadata"]["generation"] == 2


async def a_change_of_the_spec_raises_the_generation(api: Api) -> None:
    created = await api.widget()
    assert (await api.put(WIDGET, {**created, "spec": {"size": 2}})).ok["metadata"]["generation"] == 2


async def a_change_of_labels_keeps_the_generation(api: Api) -> None:
    created = await api.widget()
    labelled = {**created, "metadata": {**created["metadata"], "labels": {"a": "b"}}}
    replaced = (await api.put(WIDGET, labelled)).ok
    assert replaced["metadata"]["labels"] == {"a": "b"}
    assert replaced["metadata"]["generation"] == 1


async def a_put_that_changes_nothing_makes_no_version(api: Api) -> None:
    created = await api.widget()
    assert (await api.put(WIDGET, created)).ok == created
    assert (await api.get(WIDGET, "one")).ok == created


async def a_put_leaves_out_what_it_does_not_name(api: Api) -> None:
    created = await api.widget(labels={"a": "b"})
    bare = {key: value for key, value in created["metadata"].items() if key != "labels"}
    replaced = (await api.put(WIDGET, {**created, "metadata": bare})).ok
    assert "labels" not in replaced["metadata"]


async def a_put_of_the_object_ignores_the_status(api: Api) -> None:
    created = await _with_status(api, {"phase": "Ready"})
    replaced = (await api.put(WIDGET, {**created, "spec": {"size": 2}, "status": {"phase": "Forged"}})).ok
    assert replaced["status"] == {"phase": "Ready"}
    assert replaced["spec"] == {"size": 2}


async def a_put_of_the_status_ignores_the_rest(api: Api) -> None:
    created = await api.widget(labels={"a": "b"})
    metadata = {**created["metadata"], "labels": {"a": "forged"}}
    wanted = {**created, "metadata": metadata, "spec": {"size": 9}, "status": {"phase": "Ready"}}
    replaced = (await api.put(WIDGET, wanted, "status")).ok
    assert (replaced["spec"], replaced["status"]) == ({"size": 1}, {"phase": "Ready"})
    assert replaced["metadata"]["labels"] == {"a": "b"}


async def a_put_of_the_status_keeps_the_generation(api: Api) -> None:
    assert (await _with_status(api, {"phase": "Ready"}))["metadata"]["generation"] == 1


async def a_put_of_the_status_alone_keeps_the_spec(api: Api) -> None:
    created = await api.widget()
    metadata = {key: created["metadata"][key] for key in ("name", "namespace", "resourceVersion")}
    kind = {"apiVersion": WIDGET.api_version, "kind": WIDGET.kind}
    replaced = (await api.put(WIDGET, {**kind, "metadata": metadata, "status": {"phase": "Ready"}}, "status")).ok
    assert (replaced["spec"], replaced["status"]) == ({"size": 1}, {"phase": "Ready"})


async def a_put_of_the_status_on_an_old_version_is_a_conflict(api: Api) -> None:
    created = await api.widget()
    await api.put(WIDGET, {**created, "spec": {"size": 2}})
    assert (await api.put(WIDGET, {**created, "status": {"phase": "Late"}}, "status")).is_refused(409, "Conflict")


async def a_put_of_the_same_status_makes_no_version(api: Api) -> None:
    shown = await _with_status(api, {"phase": "Ready"})
    assert (await api.put(WIDGET, shown, "status")).ok == shown


async def a_put_of_the_status_drops_what_it_does_not_name(api: Api) -> None:
    shown = await _with_status(api, {"phase": "Ready", "note": "old"})
    assert (await api.put(WIDGET, {**shown, "status": {"phase": "Ready"}}, "status")).ok["status"] == {"phase": "Ready"}


async def a_config_map_has_no_status_to_put(api: Api) -> None:
    created = (await api.create(CONFIG_MAP, config_map("one"))).ok
    assert (await api.put(CONFIG_MAP, created, "status")).status == 404


async def a_dry_run_replaces_nothing(api: Api) -> None:
    created = await api.widget()
    answer = await api.put(WIDGET, {**created, "spec": {"size": 2}}, dryRun="All")
    assert answer.ok["spec"] == {"size": 2}
    assert (await api.get(WIDGET, "one")).ok == created


async def _with_status(api: Api, status: Object) -> Object:
    shown: Object = (await api.put(WIDGET, {**await api.widget(), "status": status}, "status")).ok
    return shown
