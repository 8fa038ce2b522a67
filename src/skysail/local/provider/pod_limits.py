"""Limits of pods that the node does not enforce, for its condition. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from skysail.base.names import Condition, Reason
from skysail.local.bubblewrap import seccomp_filter
from skysail.local.bubblewrap.cgroups import CgroupManager
from skysail.local.bubblewrap.isolation import Isolation

_ENFORCED = "The node enforces the limits of memory, CPU, processes and user ids of its pods."


def unenforced(cgroups: CgroupManager, isolation: Isolation) -> list[str]:
    """Return a phrase for each limit that the node cannot enforce on this machine."""
    missing = {
        "limits of memory and CPU": not cgroups.are_enforced,
        "the limit of memory and processes for all pods together": not cgroups.are_bounded,
        "the limit of processes": not isolation.limits_processes,
        "user ids of its own for each pod": not isolation.has_ranges or isolation.shares_ids,
        "the seccomp filter": seccomp_filter.program() is None,
    }
    return [phrase for phrase, is_missing in missing.items() if is_missing]


def condition(missing: Sequence[str]) -> dict[str, tuple[str, str, str]]:
    """Return the node's condition by its type: status, reason and message."""
    if not missing:
        return {Condition.LIMITS_ENFORCED.value: ("True", Reason.ALL_LIMITS_ENFORCED.value, _ENFORCED)}
    message = f"The node does not enforce {', '.join(missing)}: start Skysail as root of the machine."
    return {Condition.LIMITS_ENFORCED.value: ("False", Reason.SOME_LIMITS_IGNORED.value, message)}
