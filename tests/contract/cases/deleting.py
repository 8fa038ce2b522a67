"""How objects end: preconditions, finalizers, grace."""

from __future__ import annotations

import uuid

from skysail.kube.api.resources import POD
from tests.contract.api_dsl import WIDGET, Api, Object, version_of, widget

HOLD = "skysail.dev/hold"


async def a_deleted_object_is_gone(api: Api) -> None:
    created = await api.widget()
    answer = await api.delete(WIDGET, "one")
    assert (answer.status, answer.body["kind"], answer.body["status"]) == (200, "Status", "Success")
    assert answer.body["details"]["uid"] == created["metadata"]["uid"]
    assert (await api.get(WIDGET, "one")).is_refused(404, "NotFound")


async def nothing_cannot_be_deleted(api: Api) -> None:
    assert (await api.delete(WIDGET, "nobody")).is_refused(404, "NotFound")


async def the_name_comes_back_with_another_uid(api: Api) -> None:
    first = await api.widget()
    await api.delete(WIDGET, "one")
    second = await api.widget()
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert version_of(second) > version_of(first)


async def a_delete_for_another_uid_is_a_conflict(api: Api) -> None:
    created = await api.widget()
    answer = await api.delete(WIDGET, "one", {"preconditions": {"uid": str(uuid.uuid4())}})
    assert answer.is_refused(409, "Conflict")
    assert "the UID in the precondition" in answer.body["message"]
    assert (await api.get(WIDGET, "one")).ok == created


async def a_delete_for_this_uid_succeeds(api: Api) -> None:
    created = await api.widget()
    (await api.delete(WIDGET, "one", {"preconditions": {"uid": created["metadata"]["uid"]}})).ok  # noqa: B018 (asserts)
    assert (await api.get(WIDGET, "one")).status == 404


async def a_delete_for_an_old_version_is_a_conflict(api: Api) -> None:
    created = await api.widget()
    await api.merge(WIDGET, "one", {"spec": {"size": 2}})
    options = {"preconditions": {"resourceVersion": created["metadata"]["resourceVersion"]}}
    assert (await api.delete(WIDGET, "one", options)).is_refused(409, "Conflict")


async def a_dry_run_deletes_nothing(api: Api) -> None:
    created = await api.widget()
    (await api.delete(WIDGET, "one", {"dryRun": ["All"]})).ok  # noqa: B018 (asserts)
    path = WIDGET.path(api.namespace, "one")
    (await api.send("DELETE", path, query={"dryRun": "All"})).ok  # noqa: B018 (asserts)
    assert (await api.get(WIDGET, "one")).ok == created


async def options_in_the_query_count_only_without_a_body(api: Api) -> None:
    await api.widget(finalizers=[HOLD])
    (await api.delete(WIDGET, "one", {"propagationPolicy": "Background"}, dryRun="All")).ok  # noqa: B018 (asserts)
    assert "deletionTimestamp" in (await api.get(WIDGET, "one")).ok["metadata"]
    await api.merge(WIDGET, "one", {"metadata": {"finalizers": None}})


async def a_finalizer_holds_the_object(api: Api) -> None:
    created = await api.widget(finalizers=[HOLD])
    answer = await api.delete(WIDGET, "one")
    assert answer.ok["kind"] == "Widget"
    held = (await api.get(WIDGET, "one")).ok
    assert held["metadata"]["deletionTimestamp"].endswith("Z")
    assert held["metadata"]["deletionGracePeriodSeconds"] == 0
    assert held["metadata"]["generation"] == 2
    assert version_of(held) > version_of(created)


async def the_last_finalizer_lets_it_go(api: Api) -> None:
    await api.widget(finalizers=[HOLD, "skysail.dev/second"])
    await api.delete(WIDGET, "one")
    (await api.merge(WIDGET, "one", {"metadata": {"finalizers": [HOLD]}})).ok  # noqa: B018 (asserts)
    assert (await api.get(WIDGET, "one")).status == 200
    (await api.merge(WIDGET, "one", {"metadata": {"finalizers": None}})).ok  # noqa: B018 (asserts)
    assert (await api.get(WIDGET, "one")).status == 404


async def a_put_without_finalizers_lets_it_go_too(api: Api) -> None:
    await api.widget(finalizers=[HOLD])
    held = (await api.delete(WIDGET, "one")).ok
    del held["metadata"]["finalizers"]
    (await api.put(WIDGET, held)).ok  # noqa: B018 (asserts)
    assert (await api.get(WIDGET, "one")).status == 404


async def no_finalizer_can_be_added_to_what_is_ending(api: Api) -> None:
    await api.widget(finalizers=[HOLD])
    await api.delete(WIDGET, "one")
    answer = await api.merge(WIDGET, "one", {"metadata": {"finalizers": [HOLD, "skysail.dev/late"]}})
    assert answer.is_refused(422, "Invalid")
    assert "no new finalizers can be added if the object is being deleted" in answer.body["message"]


async def an_end_cannot_be_taken_back(api: Api) -> None:
    await api.widget(finalizers=[HOLD])
    held = (await api.delete(WIDGET, "one")).ok
    patched = (await api.merge(WIDGET, "one", {"metadata": {"deletionTimestamp": None, "labels": {"a": "b"}}})).ok
    assert patched["metadata"]["deletionTimestamp"] == held["metadata"]["deletionTimestamp"]


async def what_is_ending_can_still_show_its_status(api: Api) -> None:
    await api.widget(finalizers=[HOLD])
    held = (await api.delete(WIDGET, "one")).ok
    shown = (await api.put(WIDGET, {**held, "status": {"phase": "Ending"}}, "status")).ok
    assert shown["status"] == {"phase": "Ending"}


async def a_second_delete_changes_nothing(api: Api) -> None:
    await api.widget(finalizers=[HOLD])
    held = (await api.delete(WIDGET, "one")).ok
    assert (await api.delete(WIDGET, "one")).ok == held


async def the_name_of_what_is_ending_is_taken(api: Api) -> None:
    await api.widget(finalizers=[HOLD])
    await api.delete(WIDGET, "one")
    assert (await api.create(WIDGET, widget())).is_refused(409, "AlreadyExists")


async def a_pod_that_runs_nowhere_goes_at_once(api: Api) -> None:
    await _pod(api, schedulerName="nobody")
    await api.delete(POD, "one")
    assert (await api.get(POD, "one")).status == 404


async def a_pod_on_a_node_gets_its_grace(api: Api) -> None:
    created = await _pod(api, nodeName=_node(api), terminationGracePeriodSeconds=45)
    await api.delete(POD, "one")
    held = (await api.get(POD, "one")).ok["metadata"]
    assert held["deletionGracePeriodSeconds"] == 45
    assert held["deletionTimestamp"] > created["metadata"]["creationTimestamp"]
    await _kill(api)


async def a_pod_goes_with_grace_zero(api: Api) -> None:
    await _pod(api, nodeName=_node(api))
    await api.delete(POD, "one")
    assert (await api.get(POD, "one")).status == 200
    await _kill(api)
    assert (await api.get(POD, "one")).status == 404


async def a_shorter_grace_counts_and_a_longer_one_does_not(api: Api) -> None:
    await _pod(api, nodeName=_node(api))
    for asked, given in ((20, 20), (10, 10), (25, 10)):
        await api.delete(POD, "one", {"gracePeriodSeconds": asked})
        assert (await api.get(POD, "one")).ok["metadata"]["deletionGracePeriodSeconds"] == given
    await _kill(api)


async def a_finished_pod_gets_no_grace(api: Api) -> None:
    created = await _pod(api, nodeName=_node(api))
    (await api.put(POD, {**created, "status": {"phase": "Succeeded"}}, "status")).ok  # noqa: B018 (asserts)
    await api.delete(POD, "one")
    assert (await api.get(POD, "one")).status == 404


async def a_new_pod_is_pending_and_has_a_generation(api: Api) -> None:
    created = await _pod(api)
    assert created["status"]["phase"] == "Pending"
    assert created["metadata"]["generation"] == 1


def _node(api: Api) -> str:
    """Of this case only: pods of a node that has been missing for a while are collected, whoever made them."""
    return f"node-of-{api.namespace}"


async def _pod(api: Api, **spec: object) -> Object:
    containers = [{"name": "main", "image": "example/none:1"}]
    created: Object = (
        await api.create(POD, {"metadata": {"name": "one"}, "spec": {"containers": containers, **spec}})
    ).ok
    return created


async def _kill(api: Api) -> None:
    (await api.delete(POD, "one", {"gracePeriodSeconds": 0})).ok  # noqa: B018 (asserts)
