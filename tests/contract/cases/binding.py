"""What a binding does to a pod, and what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skysail.kube.api.resources import POD

if TYPE_CHECKING:
    from tests.contract.api_dsl import Answer, Api

Object = dict[str, Any]


async def a_bound_pod_has_its_node_and_is_scheduled(api: Api) -> None:
    pod = await _pod(api)
    assert (await _bind(api, pod)).ok["status"] == "Success"
    bound = (await api.get(POD, "one")).ok
    assert bound["spec"]["nodeName"] == "anywhere"
    conditions = {row["type"]: row["status"] for row in bound["status"]["conditions"]}
    assert conditions["PodScheduled"] == "True"
    assert int(bound["metadata"]["resourceVersion"]) > int(pod["metadata"]["resourceVersion"])


async def a_pod_is_bound_once(api: Api) -> None:
    await _bind(api, await _pod(api))
    answer = await _bind(api, (await api.get(POD, "one")).ok, node="elsewhere")
    assert answer.is_refused(409, "Conflict")
    assert 'already assigned to node "anywhere"' in answer.body["message"]
    assert (await api.get(POD, "one")).ok["spec"]["nodeName"] == "anywhere"


async def a_binding_for_another_uid_is_refused(api: Api) -> None:
    pod = await _pod(api)
    foreign = {**pod, "metadata": {**pod["metadata"], "uid": "00000000-0000-4000-8000-000000000000"}}
    assert (await _bind(api, foreign)).is_refused(409, "Conflict")
    assert "nodeName" not in (await api.get(POD, "one")).ok["spec"]


async def a_binding_of_a_changed_pod_is_refused(api: Api) -> None:
    pod = await _pod(api)
    (await api.merge(POD, "one", {"metadata": {"labels": {"new": "label"}}})).ok  # noqa: B018 (asserts)
    assert (await _bind(api, pod)).is_refused(409, "Conflict")
    assert "nodeName" not in (await api.get(POD, "one")).ok["spec"]


async def a_pod_with_a_gate_is_not_bound(api: Api) -> None:
    pod = await _pod(api, schedulingGates=[{"name": "contract.skysail.dev/gate"}])
    answer = await _bind(api, pod)
    assert answer.is_refused(409, "Conflict")
    assert "schedulingGates" in answer.body["message"]


async def a_pod_that_does_not_exist_is_not_bound(api: Api) -> None:
    pod = {"metadata": {"name": "nobody", "uid": "00000000-0000-4000-8000-000000000000"}}
    assert (await _bind(api, pod)).status in {404, 409}


async def a_watch_of_unbound_pods_sees_a_bound_one_leave(api: Api) -> None:
    pod = await _pod(api)
    query = {"fieldSelector": "spec.nodeName=", "resourceVersion": pod["metadata"]["resourceVersion"]}
    async with api.watch(POD, **query) as events:
        (await _bind(api, pod)).ok  # noqa: B018 (asserts)
        async for event in events:
            if event["object"]["metadata"]["name"] == "one":
                assert event["type"] == "DELETED"
                return


async def _pod(api: Api, **spec: Any) -> Object:
    """Return a pod that no scheduler touches."""
    manifest = {
        "metadata": {"name": "one"},
        "spec": {
            "schedulerName": "nobody",
            "containers": [{"name": "main", "image": "image"}],
            "terminationGracePeriodSeconds": 0,
            **spec,
        },
    }
    pod: Object = (await api.create(POD, manifest)).ok
    return pod


async def _bind(api: Api, pod: Object, node: str = "anywhere") -> Answer:
    metadata = {name: pod["metadata"][name] for name in ("name", "uid", "resourceVersion") if name in pod["metadata"]}
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": metadata,
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    return await api.send("POST", POD.path(api.namespace, metadata["name"], "binding"), body)
