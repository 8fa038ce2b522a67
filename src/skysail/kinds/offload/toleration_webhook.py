"""Mutating webhook that keeps pods on a cloud node while the node is unreachable. Pure.

Only for pods whose nodeSelector or nodeName allows no other node. If the scheduler chooses a cloud node for another
pod, the node does the same after binding.
"""

from __future__ import annotations

from collections.abc import Mapping

from skysail.base.settings import NodeSettings
from skysail.kube.admission.hooks import AdmissionResponse, Hook, Manifest, admission_rule
from skysail.kube.api import tolerations

_HOSTNAME = "kubernetes.io/hostname"


def hook(nodes: Mapping[str, NodeSettings]) -> Hook:
    return Hook(
        name="stay",
        admit=admit,
        rules=(admission_rule("", "pods", "CREATE"),),
        match_conditions=(("sent-to-a-cloud", _is_sent_to(nodes)),),
    )


def admit(pod: Manifest, _: Manifest | None) -> AdmissionResponse:
    lasting = tolerations.tolerate_forever((pod.get("spec") or {}).get("tolerations") or ())
    if lasting is None:
        return AdmissionResponse()
    return AdmissionResponse(patch=({"op": "replace", "path": "/spec/tolerations", "value": lasting},))


def _is_sent_to(nodes: Mapping[str, NodeSettings]) -> str:
    """Return the CEL condition that selects pods that can only run on these nodes."""
    labels = {(_HOSTNAME, name) for name in nodes} | {pair for node in nodes.values() for pair in node.labels.items()}
    chosen = " || ".join(
        f"('{key}' in object.spec.nodeSelector && object.spec.nodeSelector['{key}'] == '{value}')"
        for key, value in sorted(labels)
    )
    names = ", ".join(f"'{name}'" for name in sorted(nodes))
    return (
        f"(has(object.spec.nodeName) && object.spec.nodeName in [{names}]) || "
        f"(has(object.spec.nodeSelector) && ({chosen}))"
    )
