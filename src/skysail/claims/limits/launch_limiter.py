"""The brake: how many launches are too many. It stops a loop that nobody foresaw before it has emptied an account."""

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


class Launched(NamedTuple):
    """A launch by the clock that only goes forward, and by the one that people read."""

    at: float
    shown: datetime


class Brake:
    """Counts the launches of this process, and those that it finds written in claims when it starts.

    By `clock`, which nobody can set; `now` is for what is shown.
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
        """The cloud made nothing."""
        for subject, _, _ in self._subjects(spec):
            launches = self._launches.get(subject, [])
            if launched in launches:
                launches.remove(launched)

    def verdict(self, spec: CloudInstanceSpec) -> str:
        """Why this launch has to wait, as a sentence; empty where it may go on."""
        for subject, limit, tell in self._subjects(spec):
            since = self._clock() - limit.within.total_seconds()
            recent = sorted(launched for launched in self._launches.get(subject, ()) if launched.at > since)
            if len(recent) >= limit.launches:
                free = recent[-limit.launches].shown + limit.within
                many = f"{len(recent)} launches in {_spoken(limit.within)}"
                return f"{tell(many)} The next one is at {free:%H:%M:%S} UTC."
        return ""

    def _forget(self) -> None:
        """What is too long ago for every limit."""
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
