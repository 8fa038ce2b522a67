"""Launch limits: stop an unforeseen launch loop before it spends much money."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from skysail.base.settings import Settings
from skysail.claims.types import CloudInstanceSpec


class Limit(msgspec.Struct, frozen=True):
    launches: int
    within: timedelta


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits per object (a pod, or all pods of one Job index), per namespace and per cloud."""

    object: Limit = Limit(5, timedelta(minutes=10))
    namespace: Limit = Limit(60, timedelta(hours=1))
    cloud: Limit = Limit(300, timedelta(hours=1))

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        return cls(
            object=Limit(settings.launches_per_object, timedelta(minutes=10)),
            namespace=Limit(settings.launches_per_namespace, timedelta(hours=1)),
            cloud=Limit(settings.launches_per_cloud, timedelta(hours=1)),
        )


class Launched(NamedTuple):
    """Time of a launch by the monotonic clock (`at`) and by the wall clock (`shown`)."""

    at: float
    shown: datetime


class Brake:
    """Counts the launches of this process and those recorded in claims when the process starts.

    `clock` is monotonic and decides; `now` is the wall clock, for messages only.
    """

    def __init__(self, limits: Limits, *, clock: Callable[[], float], now: Callable[[], datetime]) -> None:
        self._limits = limits
        self._clock = clock
        self._now = now
        longest = max(limits.object.within, limits.namespace.within, limits.cloud.within)
        self._longest = longest.total_seconds()
        self._launches: dict[str, list[Launched]] = {}

    def count(self, spec: CloudInstanceSpec, age: timedelta = timedelta()) -> Launched:
        self._forget()
        launched = Launched(self._clock() - age.total_seconds(), self._now() - age)
        for subject, _, _ in self._subjects(spec):
            self._launches.setdefault(subject, []).append(launched)
        return launched

    def take_back(self, spec: CloudInstanceSpec, launched: Launched) -> None:
        """Undo a count, because the cloud created no instance."""
        for subject, _, _ in self._subjects(spec):
            launches = self._launches.get(subject, [])
            if launched in launches:
                launches.remove(launched)

    def verdict(self, spec: CloudInstanceSpec) -> str:
        """Return why this launch has to wait, as a sentence, or an empty string."""
        for subject, limit, tell in self._subjects(spec):
            since = self._clock() - limit.within.total_seconds()
            recent = sorted(launched for launched in self._launches.get(subject, ()) if launched.at > since)
            if len(recent) >= limit.launches:
                free = recent[-limit.launches].shown + limit.within
                many = f"{len(recent)} launches in {_spoken(limit.within)}"
                return f"{tell(many)} The next launch is possible at {free:%H:%M:%S} UTC."
        return ""

    def _forget(self) -> None:
        """Drop launches that are too old for every limit."""
        since = self._clock() - self._longest
        recent = {subject: [one for one in launches if one.at > since] for subject, launches in self._launches.items()}
        self._launches = {subject: launches for subject, launches in recent.items() if launches}

    def _subjects(self, spec: CloudInstanceSpec) -> list[tuple[str, Limit, Callable[[str], str]]]:
        for_, limits = spec.for_, self._limits
        what = f"{for_.kind} {for_.namespace}/{for_.name}"
        return [
            (
                f"object {for_.namespace}/{for_.work or for_.uid}",
                limits.object,
                lambda many: f"{what} had {many}: find out why it ends so soon.",
            ),
            (
                f"namespace {for_.namespace}",
                limits.namespace,
                lambda many: f"Namespace {for_.namespace} had {many}, which is its limit.",
            ),
            (
                f"cloud {spec.provider}",
                limits.cloud,
                lambda many: f"Cloud {spec.provider} had {many} from this cluster, which is its limit.",
            ),
        ]


def _spoken(span: timedelta) -> str:
    minutes = int(span.total_seconds() // 60)
    return "an hour" if minutes == 60 else f"{minutes} minutes"  # noqa: PLR2004 (minutes of an hour)
