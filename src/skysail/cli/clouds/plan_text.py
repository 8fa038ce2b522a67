"""Text of the forecast of `skysail plan`. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from skysail.cli import text_table
from skysail.cli.clouds.plan_report import CLUSTER, PlanReport, WorkloadPlan
from skysail.cli.durations import age

_MAX_CANDIDATES = 5
_HEADER = ("PROVIDER", "GPU", "COUNT", "USD/H", "STOCK", "TIER", "REGION", "AGE")
_NUMBERS = ("COUNT", "USD/H", "AGE")


def render(result: PlanReport, *, with_all: bool) -> list[str]:
    """Return the lines. `with_all`: also candidates after the first few."""
    lines = [line for plan in result.workloads for line in (*_workload(plan, with_all=with_all), "")]
    lines.append(
        f"Total: {result.usd_per_hour:.2f} USD/h, worst case {result.worst_case_usd:.2f} USD: {result.verdict}."
    )
    if result.skipped:
        lines.append(f"Without pods of their own, or of a kind that is not planned: {', '.join(result.skipped)}.")
    lines += [f"Could not be read: {sentence}" for sentence in result.unread]
    return lines


def _workload(plan: WorkloadPlan, *, with_all: bool) -> Iterator[str]:
    yield f"{plan.kind} {plan.namespace}/{plan.name}: {plan.verdict}"
    if plan.message:
        yield f"  reason      {plan.reason}: {plan.message}"
    yield f"  place       {_place(plan)}"
    if plan.usd_per_hour is not None:
        yield f"  price       {plan.usd_per_hour:.2f} USD/h for {_pods(plan.parallel)} at the same time"
    if plan.worst_case_usd is not None and plan.lifetime_seconds is not None:
        until = f"until the deadline after {age(plan.lifetime_seconds)}"
        yield f"  worst case  {plan.worst_case_usd:.2f} USD for {_pods(plan.pods)} {until}"
    yield from (f"  note        {note}" for note in plan.notes)
    yield from _candidates(plan, with_all=with_all)


def _place(plan: WorkloadPlan) -> str:
    if plan.overflow:
        return f"the cluster; if no node takes the pod, {plan.overflow} (node {plan.node})"
    if plan.place == CLUSTER:
        return "nowhere" if plan.verdict == "refused" else "the cluster"
    return f"{plan.place} (node {plan.node})"


def _pods(count: int) -> str:
    return "1 pod" if count == 1 else f"{count} pods"


def _candidates(plan: WorkloadPlan, *, with_all: bool) -> Iterator[str]:
    if not plan.candidates:
        return
    chosen = plan.candidates if with_all else plan.candidates[:_MAX_CANDIDATES]
    rows = [
        (
            line.provider,
            line.gpu_type or "-",
            str(line.count),
            f"{line.usd_per_hour:.2f}",
            line.stock,
            line.cloud_type or "-",
            line.region or "-",
            age(line.age_seconds),
        )
        for line in chosen
    ]
    yield "  candidates, in the order in which they are tried:"
    yield from (f"    {line}" for line in text_table.render(_HEADER, rows, right=_NUMBERS))
    if len(chosen) < len(plan.candidates):
        yield f"    and {len(plan.candidates) - len(chosen)} more (--all)"
