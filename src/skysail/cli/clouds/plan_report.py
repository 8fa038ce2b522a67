"""Types of the forecast of `skysail plan`. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec.structs import replace

from skysail.claims.requirements import owner_kinds
from skysail.kinds.modal_endpoints.types import KINDS as ENDPOINT_KINDS
from skysail.kinds.serving.api.types import KINDS as MODEL_KINDS

Verdict = Literal["allowed", "refused", "unknown"]

CLUSTER = "cluster"
# Kinds that are planned, and own no pod that Skysail places by its owner.
_GROUPS = {kind.resource.kind: kind.resource.group for kind in (*ENDPOINT_KINDS, *MODEL_KINDS)}


class OfferLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A candidate. `usd_per_hour` is the price of one pod. `age_seconds`: time since which the price is unchanged."""

    provider: str
    gpu_type: str
    count: int
    usd_per_hour: float
    stock: str
    cloud_type: str
    region: str
    age_seconds: int


class WorkloadPlan(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Forecast of one workload.

    `place`: the provider, or `cluster`. `overflow`: the provider if no node of the cluster takes the pod.
    `rule`: why a cloud is considered. `usd_per_hour`: price of all pods that run at the same time, at the first
    candidate. `worst_case_usd`: cost of all pods until their deadline, without retries.
    """

    kind: str
    namespace: str
    name: str
    place: str
    overflow: str = ""
    node: str = ""
    rule: str = ""
    verdict: Verdict = "allowed"
    reason: str = ""
    message: str = ""
    pods: int = 1
    parallel: int = 1
    usd_per_hour: float | None = None
    lifetime_seconds: float | None = None
    worst_case_usd: float | None = None
    candidates: tuple[OfferLine, ...] = ()
    notes: tuple[str, ...] = ()


class PlanReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Forecast of a file. `skipped`: objects without pods. `unread`: facts that could not be read."""

    verdict: Verdict
    usd_per_hour: float
    worst_case_usd: float
    workloads: tuple[WorkloadPlan, ...]
    skipped: tuple[str, ...]
    unread: tuple[str, ...]


def refused(base: WorkloadPlan, reason: str, message: str, *, is_overflow: bool = False) -> WorkloadPlan:
    """Return a refusal. A pod that may also run in the cluster is not refused, but stays there."""
    if is_overflow or base.overflow:
        note = f"Not at a cloud, even if no node takes it: {message}"
        return replace(base, overflow="", reason=reason, notes=(*base.notes, note))
    return replace(base, verdict="refused", reason=reason, message=message)


def undecided(base: WorkloadPlan, reason: str, message: str, *, is_overflow: bool = False) -> WorkloadPlan:
    if is_overflow or base.overflow:
        note = f"Whether a cloud may take it is not known: {message}"
        return replace(base, reason=reason, notes=(*base.notes, note))
    return replace(base, verdict="unknown", reason=reason, message=message)


def worst_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    found = set(verdicts)
    if "refused" in found:
        return "refused"
    return "unknown" if "unknown" in found else "allowed"


def names(planned: PlanReport) -> list[str]:
    """Return the planned objects, as kubectl names them, each once: an object may have several workloads."""
    objects = dict.fromkeys((row.namespace, row.kind, row.name) for row in planned.workloads)
    return [f"{_kind(kind)}/{name}" for _, kind, name in objects]


def _kind(kind: str) -> str:
    group = next((group for group, other in owner_kinds.PLURALS if other == kind), _GROUPS.get(kind, ""))
    return f"{kind.lower()}.{group}" if group else kind.lower()
