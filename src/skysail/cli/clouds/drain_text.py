"""Text of a drain: the question before it, and the report after it. Pure."""

from __future__ import annotations

from skysail.cli import text_table
from skysail.cli.clouds.draining import ClaimReport, DrainReport, Survey

_MAX_NAMES = 10


def question(before: Survey) -> str:
    """Return what the drain would do, as sentences."""
    price = sum(claim.status.usd_per_hour or 0.0 for claim in before.live)
    ends = f"This terminates {len(before.live)} instances ({price:.2f} USD/h) and deletes {len(before.pods)} pods"
    lines = [f"{ends} on the nodes of clouds. It stops launches in all namespaces."]
    names = sorted(str(pod.metadata.key) for pod in before.pods)
    if names:
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        lines.append(f"Pods: {', '.join(names[:_MAX_NAMES])}{more}.")
    return "\n".join(lines)


def render(done: DrainReport) -> list[str]:
    """Return the lines of the report."""
    lines = [f"Ended {len(done.ended)} instances for {done.usd:.4f} USD, deleted {len(done.deleted_pods)} pods."]
    if done.ended:
        lines += text_table.render(
            ("PROVIDER", "OWNER", "INSTANCE", "USD"), [_ended(row) for row in done.ended], right=("USD",)
        )
    if done.finalizers:
        lines.append(f"Removed finalizers of {', '.join(done.finalizers)}.")
    lines += [f"Left over: claim {row.claim} at {row.provider}{_instance(row)}. {row.message}" for row in done.left]
    lines += (*done.problems, *done.notes)
    if done.is_complete:
        lines.append("Nothing is left at the clouds.")
    lines.append(f"To allow launches again: kubectl delete offloadpolicy {done.policy}{_uncordon(done)}")
    return lines


def _ended(row: ClaimReport) -> tuple[str, ...]:
    return row.provider, row.owner, row.instance or "-", "unknown" if row.usd is None else f"{row.usd:.4f}"


def _instance(row: ClaimReport) -> str:
    return f", instance {row.instance}" if row.instance else ""


def _uncordon(done: DrainReport) -> str:
    return f" && kubectl uncordon {' '.join(done.cordoned)}" if done.cordoned else ""
