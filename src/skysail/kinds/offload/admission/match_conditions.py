"""CEL conditions that select objects for placement, so that other objects cost no call. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from skysail.base.names import Annotation, Label

_ANNOTATION_PREFIXES = ("modal-operator.io/", "modal.com/", "runpod.io/")
_LABELS = (Label.MODAL_WORKLOAD_TYPE, Label.RUNPOD_MANAGED, Label.RUNPOD_OFFLOAD)
# Labels of pods whose owner may ask for a cloud. Annotations of Jobs, CronJobs and
# servers such as Deployments are copied to their pods.
_OWNER_LABELS = (
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
    "trainer.kubeflow.org/trainjob-ancestor-step",
    "katib.kubeflow.org/trial",
    "serving.kserve.io/inferenceservice",
)
_GPU = "nvidia.com/gpu"
_LEGACY = "virtual-kubelet.io/provider"


def asks(metadata: str) -> str:
    """Return the condition that an object asks for a cloud. `metadata` is the CEL path of its metadata."""
    prefixes = " || ".join(f"a.startsWith('{prefix}')" for prefix in _ANNOTATION_PREFIXES)
    names = f"a == '{Annotation.OFFLOAD}'"
    return (
        f"(has({metadata}.annotations) && {metadata}.annotations.exists(a, {prefixes} || {names})) || "
        f"{_has_label(metadata, _LABELS)}"
    )


def offloadable_pod() -> str:
    """Return the condition that a pod may be for a cloud: it or an owner may ask, or it requests a GPU."""
    gpu = (
        "has(c.resources) && "
        f"((has(c.resources.limits) && '{_GPU}' in c.resources.limits) || "
        f"(has(c.resources.requests) && '{_GPU}' in c.resources.requests))"
    )
    legacy = (
        f"(has(object.spec.nodeSelector) && '{_LEGACY}' in object.spec.nodeSelector) || "
        f"(has(object.spec.tolerations) && object.spec.tolerations.exists(t, has(t.key) && t.key == '{_LEGACY}'))"
    )
    return " || ".join(
        (
            asks("object.metadata"),
            _has_label("object.metadata", _OWNER_LABELS),
            f"object.spec.containers.exists(c, {gpu})",
            legacy,
        )
    )


def has_no_node() -> str:
    """Return the condition that a pod names no node by itself, as pods of the node's own manifests do."""
    return "!has(object.spec.nodeName) || object.spec.nodeName == ''"


def has_no_controller() -> str:
    """Return the condition that no controller owns the object."""
    controllers = "object.metadata.ownerReferences.exists(r, has(r.controller) && r.controller)"
    return f"!has(object.metadata.ownerReferences) || !{controllers}"


def asks_or_asked() -> str:
    """Return the condition that an object asks for a cloud, or asked for one before this change."""
    return f"{asks('object.metadata')} || (oldObject != null && ({asks('oldObject.metadata')}))"


def _has_label(metadata: str, names: Iterable[str]) -> str:
    listed = ", ".join(f"'{name}'" for name in names)
    return f"(has({metadata}.labels) && {metadata}.labels.exists(l, l in [{listed}]))"
