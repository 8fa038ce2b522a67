"""Whether the pod's own node selector, affinity and tolerations allow a node. Pure.

Labels that name a GPU type choose the GPU at a cloud, so the node of a cloud need not have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from skysail.base.settings import NodeSettings
from skysail.kinds.offload.objects import Pod

Manifest = dict[str, Any]

HOSTNAME = "kubernetes.io/hostname"
# Selector and toleration of pods that were written for the RunPod kubelet.
LEGACY_PROVIDER = "virtual-kubelet.io/provider"
_GPU_HINTS = ("nvidia.com/gpu.", "nvidia.com/mig.", "cloud.google.com/gke-accelerator", "cloud.google.com/gke-gpu")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def fits(pod: Pod, node: str, labels: Mapping[str, str]) -> bool:
    """Return whether the pod's required constraints allow the node."""
    known = {HOSTNAME: node, **labels}
    affinity = pod.spec.get("affinity") or {}
    required = (affinity.get("nodeAffinity") or {}).get(_REQUIRED) or {}
    terms = required.get("nodeSelectorTerms") or ()
    return (
        all(_is_hint(key) or known.get(key) == value for key, value in pod.node_selector.items())
        and (not terms or any(_matches(term, node, known) for term in terms))
        # A pod in the cluster is never near a pod at a cloud.
        and not (affinity.get("podAffinity") or {}).get(_REQUIRED)
    )


def pinned_node(pod: Pod, nodes: Iterable[str]) -> str:
    """Return the cloud node that the pod's own selector names, or an empty string."""
    name = pod.node_selector.get(HOSTNAME, "")
    return name if name in set(nodes) else ""


def legacy_provider(pod: Pod) -> str:
    """Return the provider that a pod for the RunPod kubelet selects, or an empty string.

    Such pods select the provider's label, or any virtual node and tolerate the provider's taint.
    """
    selected = pod.node_selector.get(LEGACY_PROVIDER, "")
    if selected or pod.node_selector.get("type") != "virtual-kubelet":
        return selected
    return legacy_toleration(pod)


def legacy_toleration(pod: Pod) -> str:
    """Return the provider whose taint of the RunPod kubelet the pod tolerates, or an empty string."""
    return next(
        (str(row.get("value") or "") for row in pod.tolerations if row.get("key") == LEGACY_PROVIDER),
        "",
    )


def tolerates(pod: Pod, settings: NodeSettings) -> bool:
    """Return whether the pod tolerates the taint of a cloud node."""
    taint = taint_of(settings)
    return any(_tolerates(toleration, taint) for toleration in pod.tolerations)


def taint_of(settings: NodeSettings) -> dict[str, str]:
    """Return the taint of a node, from the form `key=value:Effect`."""
    pair, _, effect = settings.taint.rpartition(":")
    key, _, value = pair.partition("=")
    return {"key": key, "value": value, "effect": effect}


def toleration_of(settings: NodeSettings) -> Manifest:
    """Return the toleration that matches exactly the taint of a node."""
    taint = taint_of(settings)
    return {"key": taint["key"], "operator": "Equal", "value": taint["value"], "effect": taint["effect"]}


def _tolerates(toleration: Manifest, taint: Mapping[str, str]) -> bool:
    if toleration.get("effect") not in {None, "", taint["effect"]}:
        return False
    key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
    if operator == "Exists":
        return key in {"", taint["key"]}
    return (key, toleration.get("value") or "") == (taint["key"], taint["value"])


def _matches(term: Manifest, node: str, labels: Mapping[str, str]) -> bool:
    """Return whether a term matches. As in Kubernetes, an empty term matches nothing."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    return all(_is_met(row, labels) for row in expressions) and all(
        _is_met(row, {"metadata.name": node}) for row in fields
    )


def _is_met(requirement: Manifest, labels: Mapping[str, str]) -> bool:
    key, operator, values = requirement.get("key", ""), requirement.get("operator"), requirement.get("values") or ()
    value = labels.get(key)
    match operator:
        case "In":
            return _is_hint(key) or value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return _is_hint(key) or value is not None
        case "DoesNotExist":
            return value is None
        case _:  # Gt and Lt compare numbers, which labels of cloud nodes do not have
            return _is_hint(key)


def _is_hint(key: str) -> bool:
    return key.startswith(_GPU_HINTS) or key == LEGACY_PROVIDER
