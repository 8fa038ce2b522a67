"""Plan of a Service whose pods run at clouds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skysail.base.names import Annotation, Condition
from skysail.claims.bridging.endpoint_slices import ENDPOINT_SLICE
from skysail.claims.bridging.targets import Target
from skysail.claims.types import CLOUD_INSTANCE, BridgePort
from skysail.core.actions import Apply, Delete, PatchStatus
from skysail.kinds.cloud_services.objects import Pod, Service
from skysail.kinds.cloud_services.plan import planner
from skysail.kinds.cloud_services.snapshot import Member, Snapshot
from skysail.kube.api.objects import Meta, Object
from skysail.kube.api.resources import SERVICE
from tests.unit.claims.samples import NOW, claim, spec

ADDRESSES = ("10.0.0.1", "10.0.0.2")


def service(**spec_: Any) -> Service:
    status = spec_.pop("status", {})
    base = {"clusterIP": "10.96.0.7", "selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8000}]}
    metadata = {"name": "web", "namespace": "n", "uid": "s", "resourceVersion": "1"}
    return msgspec.convert({"metadata": metadata, "spec": {**base, **spec_}, "status": status}, Service)


def pod(name: str = "a", *, is_ready: bool = True, **metadata: Any) -> Pod:
    container = {
        "ports": [{"containerPort": 8000, "name": "http"}, {"containerPort": 53, "name": "u", "protocol": "UDP"}]
    }
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "n", "uid": f"uid-{name}", "labels": {"app": "web"}, **metadata},
            "spec": {"nodeName": "modal.com", "containers": [container]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": str(is_ready)}]},
        },
        Pod,
    )


def member(name: str = "a", *ports: tuple[int, int], is_ready: bool = True, **metadata: Any) -> Member:
    entries = tuple(BridgePort(target_port=target, port=port) for target, port in ports)
    found = claim("Running", of=spec(f"uid-{name}"), bridge_ports=entries, ready_time="2026-11-15T11:00:00Z")
    return Member(pod(name, is_ready=is_ready, **metadata), found)


def snapshot(*members: Member, object_: Service | None = None, **fields: Any) -> Snapshot:
    return Snapshot(object=object_ or service(), now=NOW, members=members, **{"addresses": ADDRESSES, **fields})


def slices(actions: tuple[object, ...]) -> list[dict[str, Any]]:
    return [action.manifest for action in actions if isinstance(action, Apply)]


def test_planner_service_without_cloud_pods_needs_nothing():
    assert planner.plan(snapshot()).actions == ()


def test_planner_pod_with_port_gets_a_slice_that_names_the_bridge():
    plan = planner.plan(snapshot(member("a", (8000, 20001))))
    (manifest,) = slices(plan.actions)
    assert manifest["metadata"]["labels"] == {
        "kubernetes.io/service-name": "web",
        "endpointslice.kubernetes.io/managed-by": "skysail.dev",
    }
    assert manifest["ports"] == [{"name": "", "port": 20001, "protocol": "TCP"}]
    assert [row["addresses"] for row in manifest["endpoints"]] == [["10.0.0.1"], ["10.0.0.2"]]
    assert manifest["endpoints"][0]["conditions"] == {"ready": True, "serving": True, "terminating": False}
    assert manifest["endpoints"][0]["targetRef"]["uid"] == "uid-a"


def test_planner_port_is_written_into_the_claim_before_any_slice():
    plan = planner.plan(snapshot(member("a", (9000, 20009)), proposals={("uid-a-0", Target(0, 8000)): 20001}))
    first, second = plan.actions
    assert isinstance(first, PatchStatus)
    assert first.resource == CLOUD_INSTANCE.resource
    assert first.fields == {"bridgePorts": ({"targetPort": 8000, "port": 20001}, {"targetPort": 9000, "port": 20009})}
    assert isinstance(second, Apply)
    assert second.manifest["ports"][0]["port"] == 20001


def test_planner_port_of_an_older_claim_is_replaced():
    plan = planner.plan(
        snapshot(
            member("a", (8000, 20001)),
            shared=frozenset({("uid-a-0", 20001)}),
            proposals={("uid-a-0", Target(0, 8000)): 20002},
        )
    )
    assert isinstance(plan.actions[0], PatchStatus)
    assert plan.actions[0].fields == {"bridgePorts": ({"targetPort": 8000, "port": 20002},)}
    assert [manifest["ports"][0]["port"] for manifest in slices(plan.actions)] == [20002]


def test_planner_each_pod_and_port_has_its_own_slice():
    ports = [{"port": 80, "name": "web", "targetPort": "http"}, {"port": 9, "name": "raw", "appProtocol": "grpc"}]
    members = (member("a", (8000, 20001), (9, 20002)), member("b", (8000, 20003), (9, 20004)))
    found = slices(planner.plan(snapshot(*members, object_=service(ports=ports))).actions)
    assert [(row["ports"][0]["name"], row["ports"][0]["port"]) for row in found] == [
        ("web", 20001),
        ("raw", 20002),
        ("web", 20003),
        ("raw", 20004),
    ]
    assert found[1]["ports"][0]["appProtocol"] == "grpc"
    assert len({row["metadata"]["name"] for row in found}) == 4


def test_planner_ranks_of_a_gang_have_ports_of_their_own():
    """All ranks have one claim. A Service that selects some of them leads to these, and to no other."""
    gang = claim("Running", of=spec("uid-gang"), ready_time="2026-11-15T11:00:00Z")
    members = (Member(pod("r1"), gang, 1), Member(pod("r2"), gang, 2))
    name = gang.metadata.name
    proposals = {(name, Target(1, 8000)): 20001, (name, Target(2, 8000)): 20002}
    write, *_ = planner.plan(snapshot(*members, proposals=proposals)).actions
    assert isinstance(write, PatchStatus)
    assert write.fields == {
        "bridgePorts": (
            {"targetPort": 8000, "port": 20001, "rank": 1},
            {"targetPort": 8000, "port": 20002, "rank": 2},
        )
    }
    found = slices(planner.plan(snapshot(*members, proposals=proposals)).actions)
    assert [(row["ports"][0]["port"], row["endpoints"][0]["targetRef"]["name"]) for row in found] == [
        (20001, "r1"),
        (20002, "r2"),
    ]
    assert len({row["metadata"]["name"] for row in found}) == 2


@pytest.mark.parametrize(
    ("known", "asked", "written"),
    [
        (None, ["http"], "http"),
        (None, ["kubernetes.io/ws"], "http"),
        (None, [""], None),
        (None, ["grpc"], None),
        (None, ["http", ""], None),
        ("http", ["http"], "http"),
        ("http", [""], None),
        ("http", ["http", "postgresql"], None),
        ("tcp", ["http"], None),
    ],
)
def test_planner_port_is_http_only_if_every_service_port_says_so(known, asked, written):
    """TCP carries HTTP, and HTTP does not carry TCP. So TCP stays, whichever Service comes last."""
    entries = (BridgePort(target_port=8000, port=20001, protocol=known),) if known else ()
    found = claim("Running", of=spec("uid-a"), bridge_ports=entries, ready_time="2026-11-15T11:00:00Z")
    ports = [
        {
            "port": 80 + number,
            "name": f"p{number}",
            "targetPort": 8000,
            **({"appProtocol": protocol} if protocol else {}),
        }
        for number, protocol in enumerate(asked)
    ]
    proposals = {} if known else {(found.metadata.name, Target(0, 8000)): 20001}
    plan = planner.plan(snapshot(Member(pod("a"), found), object_=service(ports=ports), proposals=proposals))
    writes = [action for action in plan.actions if isinstance(action, PatchStatus)]
    if (known or "tcp", bool(known)) == (written or "tcp", True):
        assert writes == []
        return
    (write,) = writes
    assert write.fields["bridgePorts"][0].get("protocol") == written


@pytest.mark.parametrize("known", ["http", "tcp"])
def test_planner_port_of_an_app_is_always_http(known):
    """An App has an address and no port to dial. A Service without `appProtocol` must not make it TCP."""
    entries = (BridgePort(target_port=8000, port=20001, protocol=known),)
    url = "https://app.modal.run"
    found = claim("Running", of=spec("uid-a"), bridge_ports=entries, ready_time="2026-11-15T11:00:00Z", url=url)
    plan = planner.plan(snapshot(Member(pod("a"), found), object_=service()))
    writes = [action.fields["bridgePorts"] for action in plan.actions if isinstance(action, PatchStatus)]
    assert [write[0]["protocol"] for write in writes] == ([] if known == "http" else ["http"])


@pytest.mark.parametrize(
    ("found", "fields", "expected"),
    [
        (member("a", (8000, 20001), is_ready=False), {}, (False, False, False)),
        (member("a", (8000, 20001), is_ready=False), {"publishNotReadyAddresses": True}, (True, True, False)),
        (member("a", (8000, 20001), deletionTimestamp="2026-11-15T12:00:00Z"), {}, (False, True, True)),
    ],
)
def test_planner_readiness_follows_the_pod(found, fields, expected):
    (manifest,) = slices(planner.plan(snapshot(found, object_=service(**fields))).actions)
    conditions = manifest["endpoints"][0]["conditions"]
    assert (conditions["ready"], conditions["serving"], conditions["terminating"]) == expected


def test_planner_pod_without_instance_or_named_port_has_no_slice():
    waiting = Member(pod("a"), None)
    named = service(ports=[{"port": 80, "targetPort": "absent"}])
    udp = service(ports=[{"port": 80, "targetPort": "u"}])
    assert planner.plan(snapshot(waiting)).actions == ()
    assert planner.plan(snapshot(member("a", (8000, 20001)), object_=named)).actions == ()
    assert slices(planner.plan(snapshot(member("a", (53, 20001)), object_=udp)).actions) == []


def test_planner_obsolete_slice_is_deleted():
    known = Object(Meta(name="web-old", namespace="n", uid="o", annotations={Annotation.LAST_APPLIED_HASH: "x"}))
    plan = planner.plan(snapshot(member("a", (8000, 20001)), slices=(known,)))
    assert plan.actions[-1] == Delete(ENDPOINT_SLICE, known)
    assert planner.plan(snapshot(slices=(known,))).actions == (Delete(ENDPOINT_SLICE, known),)


@pytest.mark.parametrize(
    ("fields", "options", "reason"),
    [
        ({"clusterIP": "None"}, {}, "HeadlessService"),
        ({}, {"addresses": ()}, "NoBridge"),
        ({"ports": [{"port": 53, "protocol": "UDP"}]}, {}, "UnsupportedProtocol"),
        ({}, {"unreachable": frozenset({"cloud"})}, "UnreachableCloud"),
        ({"ports": [{"port": 80, "targetPort": 7}]}, {}, "NoBridgePort"),
    ],
)
def test_planner_problem_is_a_condition_with_an_event_once(fields, options, reason):
    found = snapshot(member("a", (8000, 20001)), object_=service(**fields), **options)
    plan = planner.plan(found)
    (write,) = [action for action in plan.actions if isinstance(action, PatchStatus)]
    (row,) = write.fields["conditions"]
    assert (write.resource, row["type"], row["status"], row["reason"]) == (
        SERVICE,
        Condition.CLOUD_ENDPOINTS.value,
        "False",
        reason,
    )
    assert [event.message for event in plan.events] == [row["message"]]
    again = msgspec.structs.replace(found, object=service(**fields, status={"conditions": [row]}))
    later = planner.plan(again)
    assert not any(isinstance(action, PatchStatus) for action in later.actions)
    assert later.events == ()
    healed = planner.plan(snapshot(member("a", (8000, 20001)), object_=service(status={"conditions": [row]})))
    (heal,) = [action for action in healed.actions if isinstance(action, PatchStatus)]
    assert heal.fields["conditions"][0]["status"] == "True"
    assert healed.events == ()


def test_planner_conditions_of_others_stay():
    other = {"type": "Other", "status": "True"}
    found = snapshot(member("a"), object_=service(clusterIP="None", status={"conditions": [other]}))
    (write,) = planner.plan(found).actions
    assert isinstance(write, PatchStatus)
    assert write.fields["conditions"][0] == other


def test_planner_deleted_service_is_left_to_the_garbage_collector():
    gone = service()
    gone = msgspec.structs.replace(
        gone, metadata=msgspec.structs.replace(gone.metadata, deletion_timestamp="2026-11-15T12:00:00Z")
    )
    assert planner.plan(snapshot(member("a", (8000, 20001)), object_=gone)).actions == ()
