"""Services of pods at clouds: one port for each port of a claim, one slice for each Service, whatever goes wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from skysail.claims.bridging.endpoint_slices import ENDPOINT_SLICE
from skysail.claims.types import CLOUD_INSTANCE
from tests.simulation import runner
from tests.simulation.bridging import SCENARIOS, reference

if TYPE_CHECKING:
    from skysail.kube.api.resources import Resource
    from tests.simulation.coverage_report import Checker


def versions(name: str, resource: Resource) -> list[dict[str, Any]]:
    return [change.after for change in runner.journal(SCENARIOS[name]) if change.resource == resource]


def test_bridging_two_services_share_the_port_of_their_pod():
    ports = [entry for claim in versions("Service of a pod", CLOUD_INSTANCE.resource)[-1:] for entry in _ports(claim)]
    found = versions("Service of a pod", ENDPOINT_SLICE)
    assert [entry["targetPort"] for entry in ports] == [8000]
    assert {row["metadata"]["labels"]["kubernetes.io/service-name"] for row in found} == {"web", "alias"}
    assert {port["port"] for row in found for port in row["ports"]} == {ports[0]["port"]}


def test_bridging_no_slice_is_written_before_its_port_is_in_the_claim():
    seen: set[int] = set()
    for change in runner.journal(SCENARIOS["Service of a pod"]):
        if change.resource == CLOUD_INSTANCE.resource:
            seen |= {entry["port"] for entry in _ports(change.after)}
        if change.resource == ENDPOINT_SLICE:
            assert {port["port"] for port in change.after["ports"]} <= seen


def test_bridging_slices_go_with_their_pod_and_their_service():
    assert not [name for name in reference("pod deleted").end if name.startswith("EndpointSlice")]
    left = [name for name in reference("Service deleted").end if name.startswith("EndpointSlice")]
    assert len(left) == 1


def test_bridging_tunnel_has_a_service_whose_slices_share_one_port():
    (claim,) = versions("tunnel", CLOUD_INSTANCE.resource)[-1:]
    (entry,) = _ports(claim)
    assert (entry["targetPort"], entry["protocol"]) == (6006, "http")
    found = [row for row in reference("tunnel").end if row.startswith("EndpointSlice")]
    assert len(found) == 2, "one for port 80, and one for the port of the tunnel"
    left = reference("pod with tunnel deleted").end
    assert not [row for row in left if row.startswith(("EndpointSlice", "Service"))]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("pod deleted", "crash"),
        ("Service of a pod", "twin"),
        ("pod with tunnel deleted", "crash"),
        ("tunnel", "twin"),
    ],
)
def test_bridging_crash_or_second_operator_after_any_effect_changes_nothing(
    name: str, what: str, court: Checker
) -> None:
    court.knows(reference(name))
    faults = runner.faults_for(reference(name), "effect", what)
    assert court.violations(SCENARIOS[name], reference(name), faults) == []


@pytest.mark.parametrize("what", ["reply lost, done", "conflict"])
def test_bridging_failed_write_changes_nothing(what: str, court: Checker) -> None:
    name = "Service of a pod"
    faults = runner.faults_for(reference(name), "write", what)
    assert court.violations(SCENARIOS[name], reference(name), faults) == []


def _ports(claim: dict[str, Any]) -> list[dict[str, int]]:
    return claim.get("status", {}).get("bridgePorts", [])
