"""Launch limits: stop an unforeseen launch loop before it spends much money."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from skysail.base.settings import Settings
from skysail.claims.types import CloudInstanceSpec


class RateLimit(msgspec.Struct, frozen=True):
    launches: int
    within: timedelta


class LaunchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits per object (a pod, or all pods of one Job index), per namespace and per cloud."""

    object: RateLimit = RateLimit(5, timedelta(minutes=10))
    namespace: RateLimit = RateLimit(60, timedelta(hours=1))
    cloud: RateLimit = RateLimit(300, timedelta(hours=1))

    @classmethod
    def of(cls, settings: Settings) -> LaunchLimits:
        return cls(
            object=RateLimit(settings.launches_per_object, timedelta(minutes=10)),
            namespace=RateLimit(settings.launches_per_namespace, timedelta(hours=1)),
            cloud=RateLimit(settings.launches_per_cloud, timedelta(hours=1)),
        )


class LaunchTime(NamedTuple):
    """Time of a launch by the monotonic clock (`at`) and by the wall clock (`wall_time`)."""

    at: float
    wall_time: datetime


class LaunchLimiter:
    """Counts the launches of this process and those recorded in claims when the process starts.

    `clock` is monotonic and decides; `now` is the wall clock, for messages only.
    """

    def __init__(self, limits: LaunchLimits, *, clock: Callable[[], float], now: Callable[[], datetime]) -> None:
        self._limits = limits
        self._clock = clock
        self._now = now
        longest = max(limits.object.within, limits.namespace.within, limits.cloud.within)
        self._longest = longest.total_seconds()
        self._launches: dict[str, list[LaunchTime]] = {}

    def record(self, spec: CloudInstanceSpec, age: timedelta = timedelta()) -> LaunchTime:
        self._forget()
        launch_time = LaunchTime(self._clock() - age.total_seconds(), self._now() - age)
        for subject, _, _ in self._subjects(spec):
            self._launches.setdefault(subject, []).append(launch_time)
        return launch_time

    def undo(self, spec: CloudInstanceSpec, launch_time: LaunchTime) -> None:
        """Undo a count, because the cloud created no instance."""
        for subject, _, _ in self._subjects(spec):
            launches = self._launches.get(subject, [])
            if launch_time in launches:
                launches.remove(launch_time)

    def check(self, spec: CloudInstanceSpec) -> str:
        """Return why this launch has to wait, as a sentence, or an empty string."""
        for subject, rate_limit, describe in self._subjects(spec):
            since = self._clock() - rate_limit.within.total_seconds()
            recent = sorted(launch_time for launch_time in self._launches.get(subject, ()) if launch_time.at > since)
            if len(recent) >= rate_limit.launches:
                free = recent[-rate_limit.launches].wall_time + rate_limit.within
                many = f"{len(recent)} launches in {_spoken(rate_limit.within)}"
                return f"{describe(many)} The next launch is possible at {free:%H:%M:%S} UTC."
        return ""

    def _forget(self) -> None:
        """Drop launches that are too old for every limit."""
        since = self._clock() - self._longest
        recent = {subject: [one for one in launches if one.at > since] for subject, launches in self._launches.items()}
        self._launches = {subject: launches for subject, launches in recent.items() if launches}

    def _subjects(self, spec: CloudInstanceSpec) -> list[tuple[str, RateLimit, Callable[[str], str]]]:
        for_, limits = spec.owner, self._limits
        what = f"{for_.kind} {for_.namespace}/{for_.name}"
        return [
            (
                f"object {for_.namespace}/{for_.work_key or for_.uid}",
                limits.object,
                lambda many: (
                    f"{what} had {many}: find out why it ends so soon, or raise the setting launches_per_object."
                ),
            ),
            (
                f"namespace {for_.namespace}",
                limits.namespace,
                lambda many: (
                    f"Namespace {for_.namespace} had {many}, which is its limit: correct or delete objects that fail "
                    "again and again, or raise the setting launches_per_namespace."
                ),
            ),
            (
                f"cloud {spec.provider}",
                limits.cloud,
                lambda many: (
                    f"Cloud {spec.provider} had {many} from this cluster, which is its limit: correct or delete "
                    "objects that fail again and again, or raise the setting launches_per_cloud."
                ),
            ),
        ]


def _spoken(span: timedelta) -> str:
    minutes = int(span.total_seconds() // 60)
    return "an hour" if minutes == 60 else f"{minutes} minutes"  # noqa: PLR2004 (minutes of an hour)
