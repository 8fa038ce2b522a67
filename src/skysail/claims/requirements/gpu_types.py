"""GPUs that a pod asks for: annotations, limits of containers, and hints in its node selector and affinity. Pure.

Names of GPUs are those that users write. Whether a cloud has such a GPU is decided by its offers.
"""

from __future__ import annotations

from collections.abc import Iterable

from skysail.base.names import Annotation
from skysail.claims.requirements.annotation_reader import AnnotationReader, shown
from skysail.claims.requirements.types import NodeExpression, PodSpecView
from skysail.cloud.account import GpuRequest
from skysail.kube.api import quantities

GPU_RESOURCE = "nvidia.com/gpu"
_MAX_GPUS = 1024
_TYPE = r"[A-Za-z0-9](?:[A-Za-z0-9 ._+-]{0,61}[A-Za-z0-9+!])?"
_TYPE_AND_COUNT = rf"(?:{_TYPE}(?::[0-9]{{1,4}})?)?"

# Node labels that name the GPU type: NVIDIA's GPU feature discovery, and Google's node pools.
_HINTS = frozenset({"nvidia.com/gpu.product", "cloud.google.com/gke-accelerator"})
# Suffix that NVIDIA's device plugin adds if pods share a GPU by time.
_SHARED = "-shared"
# Values of these labels, in lower case, and the name that users write for the GPU.
_NAMES = {
    "tesla-k80": "K80",
    "nvidia-tesla-k80": "K80",
    "tesla-p4": "P4",
    "nvidia-tesla-p4": "P4",
    "tesla-p100-pcie-16gb": "P100",
    "nvidia-tesla-p100": "P100",
    "tesla-v100-sxm2-16gb": "V100-16GB",
    "tesla-v100-sxm2-32gb": "V100-32GB",
    "nvidia-tesla-v100": "V100-16GB",
    "tesla-t4": "T4",
    "nvidia-t4": "T4",
    "nvidia-tesla-t4": "T4",
    "nvidia-a2": "A2",
    "nvidia-a10": "A10",
    "nvidia-a10g": "A10G",
    "nvidia-a16": "A16",
    "nvidia-a30": "A30",
    "nvidia-a40": "A40",
    "nvidia-l4": "L4",
    "nvidia-l40": "L40",
    "nvidia-l40s": "L40S",
    "nvidia-a100-pcie-40gb": "A100-40GB",
    "nvidia-a100-sxm4-40gb": "A100-40GB",
    "nvidia-tesla-a100": "A100-40GB",
    "nvidia-a100-80gb": "A100-80GB",
    "nvidia-a100-80gb-pcie": "A100-80GB",
    "nvidia-a100-sxm4-80gb": "A100-80GB",
    "nvidia-h100-80gb": "H100",
    "nvidia-h100-80gb-hbm3": "H100",
    "nvidia-h100-mega-80gb": "H100",
    "nvidia-h100-nvl": "H100",
    "nvidia-h100-pcie": "H100",
    "nvidia-h200": "H200",
    "nvidia-h200-141gb": "H200",
    "nvidia-b200": "B200",
    "nvidia-geforce-rtx-3090": "RTX 3090",
    "nvidia-geforce-rtx-4090": "RTX 4090",
    "nvidia-geforce-rtx-5090": "RTX 5090",
    "nvidia-rtx-a4000": "RTX A4000",
    "nvidia-rtx-a5000": "RTX A5000",
    "nvidia-rtx-a6000": "RTX A6000",
    "nvidia-rtx-6000-ada-generation": "RTX 6000 Ada",
}
# Names at Modal that mean the same GPU.
_SAME = {"a100": "a100-40gb", "a10g": "a10", "h100!": "h100"}


def read(reader: AnnotationReader, spec: PodSpecView) -> GpuRequest | None:
    """Return the GPUs of the pod, or None. Contradictions and malformed values are errors of the reader.

    The annotations choose the type before hints do. The number is the containers' limit, else the annotation's.
    """
    limit = _limit(reader, spec)
    kind, number = _written(reader)
    kind = _merged(reader, kind, reader.matching(Annotation.MODAL_GPU_TYPE, f"(?:{_TYPE})?", "a GPU type") or "")
    if limit and number and number != limit:
        written = shown(reader.text(Annotation.MODAL_GPU) or "")
        reader.fail(Annotation.MODAL_GPU, f"{written} contradicts the containers' limits of {limit}. Make them equal.")
    needs_gpu = bool(kind) or reader.text(Annotation.RUNPOD_GPU_MEMORY) is not None
    count = limit or number or int(needs_gpu)
    return GpuRequest(kind or _hinted(reader, spec), count) if count else None


def label_to_type(value: str) -> str:
    """Return the name that users write for a value of a GPU label. An unknown value stays as it is."""
    return _NAMES.get(value.casefold().removesuffix(_SHARED), value)


def _limit(reader: AnnotationReader, spec: PodSpecView) -> int:
    """Return the number of GPUs of all containers. A request counts where there is no limit."""
    total = 0
    for index, container in enumerate(spec.containers or ()):
        resources = container.resources
        amounts = {**(resources.requests or {}), **(resources.limits or {})} if resources else {}
        amount = amounts.get(GPU_RESOURCE, 0)
        count = _whole(amount)
        if count is None:
            where = f"spec.containers[{index}].resources.limits[{GPU_RESOURCE}]"
            reader.errors.append(f"{where}: {shown(str(amount))} is no number of GPUs up to {_MAX_GPUS}. Change it.")
        total += count or 0
    if total > _MAX_GPUS:
        reader.errors.append(f"spec.containers: {total} GPUs are more than {_MAX_GPUS}. Ask for fewer.")
        return 0
    return total


def _whole(amount: str | float) -> int | None:
    try:
        number = quantities.parse(amount)
    except ValueError:
        return None
    if not number.is_finite() or not 0 <= number <= _MAX_GPUS or number != int(number):
        return None
    return int(number)


def _written(reader: AnnotationReader) -> tuple[str, int]:
    """Return type and number of `modal-operator.io/gpu`. The number is 0 if the annotation has none."""
    expected = f"a GPU type with a number from 1 to {_MAX_GPUS}, such as H100 or H100:2"
    value = reader.matching(Annotation.MODAL_GPU, _TYPE_AND_COUNT, expected)
    kind, colon, number = (value or "").partition(":")
    if colon and not 1 <= int(number) <= _MAX_GPUS:
        reader.fail(Annotation.MODAL_GPU, f"{shown(value or '')} is not {expected}. Change or remove it.")
        return "", 0
    return kind, int(number or 0)


def _merged(reader: AnnotationReader, kind: str, other: str) -> str:
    if kind and other and _same(kind) != _same(other):
        name = Annotation.MODAL_GPU_TYPE
        reader.fail(name, f"{shown(other)} contradicts {Annotation.MODAL_GPU}: {shown(kind)}. Remove one of them.")
    return kind or other


def _same(kind: str) -> str:
    name = kind.casefold()
    return _SAME.get(name, name)


def _hinted(reader: AnnotationReader, spec: PodSpecView) -> str:
    """Return the only GPU type that node selector and required affinity allow, or an empty string without hints."""
    selector = [NodeExpression(key, "In", (value,)) for key, value in (spec.node_selector or {}).items()]
    allowed = [types for types in (_allowed(selector), _affinity(spec)) if types is not None]
    if not allowed:
        return ""
    found = frozenset.intersection(*allowed)
    if len(found) == 1:
        return next(iter(found))
    choice = " or ".join(sorted(found)[:8]) if found else "no GPU type"
    reader.errors.append(
        f"spec.nodeSelector and spec.affinity allow {choice}. Name one GPU type in the annotation "
        f"{Annotation.MODAL_GPU_TYPE}."
    )
    return ""


def _affinity(spec: PodSpecView) -> frozenset[str] | None:
    node = spec.affinity and spec.affinity.node_affinity
    required = node and node.required_during_scheduling_ignored_during_execution
    terms = [_allowed(term.match_expressions or ()) for term in (required and required.node_selector_terms) or ()]
    restricting = [types for types in terms if types is not None]
    # A pod fits if any term fits: a term without a hint allows every type.
    return frozenset().union(*restricting) if restricting and len(restricting) == len(terms) else None


def _allowed(expressions: Iterable[NodeExpression]) -> frozenset[str] | None:
    """Return the GPU types that satisfy all expressions, or None if none of them names a type."""
    sets = [
        frozenset(map(label_to_type, expression.values or ()))
        for expression in expressions
        if expression.key in _HINTS and expression.operator == "In"
    ]
    return frozenset.intersection(*sets) if sets else None
