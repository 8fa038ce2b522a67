"""Patch of a pod at its creation: node selector and toleration of a cloud node, so that the scheduler binds it. Pure.

A refused pod is never denied. If it asks for a cloud, it gets a selector that keeps it off ordinary nodes, because it
was not written for them; the controller of pods without a node says in a condition why it waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from skysail.base.names import Annotation, Label
from skysail.base.settings import NodeSettings
from skysail.claims.requirements import restarts
from skysail.claims.requirements.types import CHEAPEST, OffloadRequest
from skysail.kinds.offload.objects import Pod
from skysail.kinds.offload.plan import node_fit, placement
from skysail.kinds.offload.plan.placement import Decision, Leave, Place, PlacementFacts, Refuse, Rule, Wait
from skysail.kube.admission.hooks import AdmissionResponse, Manifest
from skysail.kube.api.tolerations import tolerate_forever

_CHECKPOINTS = "checkpoints"
_MAX_VALUE_WARNINGS = 5
_ANY_CLOUD = {Label.TYPE.value: "virtual-kubelet"}


def read_pod(manifest: Manifest) -> Pod | None:
    """Return the pod of a review. Returns None if our type cannot decode it; the API server then rejects it."""
    try:
        return msgspec.convert(manifest, Pod)
    except msgspec.ValidationError:
        return None


def admit(pod: Pod, facts: PlacementFacts, nodes: Mapping[str, NodeSettings]) -> AdmissionResponse:
    """Return the patch for a pod with these facts."""
    decision, warnings = placement.decide(facts), _value_warnings(facts.request)
    match decision:
        case Place():
            return AdmissionResponse(
                patch=tuple(_place(pod, decision, nodes[decision.node])),
                warnings=(*_restart_warnings(pod, facts), *warnings),
            )
        case Refuse():
            patch = _keep_off(pod, facts, nodes) if decision.is_kept_off else []
            return AdmissionResponse(patch=tuple(patch), warnings=(_warning(decision), *warnings))
        case Wait() | Leave():
            return AdmissionResponse(patch=tuple(_undecided(pod, facts, nodes, decision)), warnings=warnings)


def _undecided(
    pod: Pod, facts: PlacementFacts, nodes: Mapping[str, NodeSettings], decision: Decision
) -> list[Manifest]:
    if isinstance(decision, Wait) and placement.rule_of(facts) is Rule.ASKED:
        return _keep_off(pod, facts, nodes)
    return _mapped_toleration(pod, nodes)


def _place(pod: Pod, place: Place, settings: NodeSettings) -> list[Manifest]:
    selector = {key: value for key, value in pod.node_selector.items() if key != node_fit.LEGACY_PROVIDER}
    tolerations = list(pod.tolerations)
    if not node_fit.tolerates(pod, settings):
        tolerations.append(node_fit.toleration_of(settings))
    return [
        *_merged("/metadata/annotations", pod.annotations, place.annotations),
        *_merged("/metadata/labels", pod.labels, place.labels),
        *_changed("/spec/nodeSelector", pod.node_selector, {**selector, node_fit.HOSTNAME: place.node}),
        *_changed("/spec/tolerations", list(pod.tolerations), tolerate_forever(tolerations) or tolerations),
        *_changed("/spec/volumes", pod.spec.get("volumes"), _without_claim(pod)),
    ]


def _without_claim(pod: Pod) -> Any:
    """Return the volumes without the PVC of a TrainingJob's checkpoints: at a cloud they are in a volume of that cloud.

    The scheduler would wait for a PVC that no node of the cluster needs.
    """
    volumes = pod.spec.get("volumes")
    if Annotation.CHECKPOINT_VOLUME not in pod.annotations:
        return volumes
    return [{"name": _CHECKPOINTS, "emptyDir": {}} if row.get("name") == _CHECKPOINTS else row for row in volumes or ()]


def _keep_off(pod: Pod, facts: PlacementFacts, nodes: Mapping[str, NodeSettings]) -> list[Manifest]:
    """Select the cloud node without tolerating its taint: no scheduler binds the pod until it is allowed."""
    provider = facts.request.provider
    node = next((name for name, row in nodes.items() if row.provider == provider), "")
    wanted = {node_fit.HOSTNAME: node} if node and provider != CHEAPEST else _ANY_CLOUD
    return _changed("/spec/nodeSelector", pod.node_selector, {**wanted, **pod.node_selector})


def _mapped_toleration(pod: Pod, nodes: Mapping[str, NodeSettings]) -> list[Manifest]:
    """Return the toleration of our node for a pod that tolerates the taint of the RunPod kubelet."""
    provider = node_fit.legacy_toleration(pod)
    settings = next((row for row in nodes.values() if row.provider == provider), None)
    if settings is None or node_fit.tolerates(pod, settings):
        return []
    return _changed("/spec/tolerations", list(pod.tolerations), [*pod.tolerations, node_fit.toleration_of(settings)])


def _restart_warnings(pod: Pod, facts: PlacementFacts) -> tuple[str, ...]:
    has_ports = any(container.get("ports") for container in pod.containers)
    message = restarts.warning(
        str(pod.spec.get("restartPolicy") or "Always"),
        has_controller=pod.metadata.controller is not None,
        is_server=has_ports or facts.request.tunnel_port is not None,
    )
    return (message,) if message else ()


def _value_warnings(request: OffloadRequest) -> tuple[str, ...]:
    """Return sentences about annotations without effect. A pod that stays in the cluster gets no event about them."""
    found = [warned.message for warned in request.warnings]
    found += [f"metadata.annotations[{name}]: unknown, has no effect. Check the spelling." for name in request.unknown]
    return tuple(found[:_MAX_VALUE_WARNINGS])


def _warning(refuse: Refuse) -> str:
    return f"not offloaded ({refuse.reason}): {refuse.message}"


def _merged(path: str, present: dict[str, str], added: dict[str, str]) -> list[Manifest]:
    return _changed(path, present, {**present, **added})


def _changed(path: str, present: Any, desired: Any) -> list[Manifest]:
    return [] if present == desired else [{"op": "add", "path": path, "value": desired}]
