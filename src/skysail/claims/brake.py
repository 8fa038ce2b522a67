"""The brake: how many launches are too many. It stops a loop that nobody foresaw before it has emptied an account."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec

from skysail.base.settings import Settings
from skysail.claims.types import CloudInstanceSpec


class Limit(msgspec.Struct, frozen=True):
    launches: int
    within: timedelta


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """For one object (a pod, or the work that pods of one Job index do), one namespace, and one cloud."""

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


class Brake:
    """Counts the launches of this process, and those that it finds written in claims when it starts."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._longest = max(limits.object.within, limits.namespace.within, limits.cloud.within)
        self._launches: dict[str, list[datetime]] = {}

    def count(self, spec: CloudInstanceSpec, at: datetime) -> None:
        self._forget(at)
        for subject, _, _ in self._subjects(spec):
            self._launches.setdefault(subject, []).append(at)

    def take_back(self, spec: CloudInstanceSpec, at: datetime) -> None:
        """The cloud made nothing."""
        for subject, _, _ in self._subjects(spec):
            times = self._launches.get(subject, [])
            if at in times:
                times.remove(at)

    def verdict(self, spec: CloudInstanceSpec, now: datetime) -> str:
        """Why this launch has to wait, as a sentence; empty where it may go on."""
        for subject, limit, tell in self._subjects(spec):
            recent = [at for at in self._launches.get(subject, ()) if abs(now - at) < limit.within]
            if len(recent) >= limit.launches:
                free = sorted(recent)[-limit.launches] + limit.within
                many = f"{len(recent)} launches in {_spoken(limit.within)}"
                return f"{tell(many)} The next one is at {free:%H:%M:%S} UTC."
        return ""

    def _forget(self, now: datetime) -> None:
        """What is too long ago for every limit. A clock that was set far back makes all of it so."""
        recent = {s: [at for at in times if abs(now - at) < self._longest] for s, times in self._launches.items()}
        self._launches = {subject: times for subject, times in recent.items() if times}

    def _subjects(self, spec: CloudInstanceSpec) -> list[tuple[str, Limit, Callable[[str], str]]]:
        for_, limits = spec.for_, self._limits
        what = f"{for_.kind} {for_.namespace}/{for_.name}"
        return [
            (
                f"object {for_.work or for_.uid}",
                limits.object,
                lambda many: f"{what} had {many}: look at why it ends so soon.",
            ),
            (
                f"namespace {for_.namespace}",
                limits.namespace,
                lambda many: f"Namespace {for_.namespace} had {many}, which is as many as one may have.",
            ),
            (
                f"cloud {spec.provider}",
                limits.cloud,
                lambda many: f"{spec.provider} had {many} from this cluster, which is as many as one may have.",
            ),
        ]


def _spoken(span: timedelta) -> str:
    minutes = int(span.total_seconds() // 60)
    return "an hour" if minutes == 60 else f"{minutes} minutes"  # noqa: PLR2004 (minutes of an hour)
