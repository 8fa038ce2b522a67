"""Periods of pods that are replaced before their claims end, as their annotations tell. Pure.

The period is a number in the pod template of a Deployment. A new number replaces its pods, and each has a new claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from skysail.base.names import Annotation
from skysail.kube.api.workloads import Pod

# A pod is replaced this share of its time before its claim ends, at most so long. How long a claim lasts depends on the
# cloud, and a policy, a budget or the user may shorten it.
_SHARE = 6
_MAX_MARGIN = timedelta(hours=4)
_MIN_TIME = timedelta(minutes=1)
_MAX_DIGITS = 9


def period(annotations: Mapping[str, Any] | None) -> int:
    """Return the period of a pod or of a pod template, 0 if it has none."""
    text = str((annotations or {}).get(Annotation.PERIOD) or "")
    return int(text) if len(text) <= _MAX_DIGITS and text.isascii() and text.isdigit() else 0


def due_times(pods: Iterable[Pod], number: int, *, replicas: int = 1) -> Iterator[datetime]:
    """Yield when the claims of pods of this period have to be replaced.

    A rollout replaces one pod after the other, so it starts earlier if there are several.
    """
    for pod in pods:
        created, deadline = pod.metadata.creation_timestamp, _deadline(pod)
        if period(pod.metadata.annotations) != number or pod.is_finished or created is None or deadline is None:
            continue
        since = datetime.fromisoformat(created)
        time = max(deadline - since, _MIN_TIME)
        yield since + time - min(min(time / _SHARE, _MAX_MARGIN) * max(replicas, 1), time / 2)


def _deadline(pod: Pod) -> datetime | None:
    """Return when the claim of the pod ends at the latest, or None if that is not known."""
    try:
        found = datetime.fromisoformat((pod.metadata.annotations or {}).get(Annotation.DEADLINE, ""))
        return found.astimezone(UTC) if found.tzinfo is not None else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
