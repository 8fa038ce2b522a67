"""State of one of our pods at RunPod, from what the service shows and what its log reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from skysail.cloud.account import Instance, Timings
from skysail.cloud.provider import Ended
from skysail.cloud.runpod import api
from skysail.cloud.runpod.log_follower import LogFollower
from skysail.cloud.runpod.marks import Mark

# A stopped pod may have reported its exit before: its log is read this long first, also if the request quota is short.
# The log of a pod that has never run is short.
_STOPPED_SECONDS = 60.0
_NEVER_RAN_SECONDS = 3.0
_PROVISIONING_SECONDS = 20 * 60.0
_STOPPED = {"EXITED", "ERROR"}
_PROOFS = 3
_KILLED = 137
_NOT_STARTED = 128


class PodState:
    """State of one pod. `now` is in seconds since 1970. `stopping` is the task that ends it with a grace period.

    `readers` are the tasks that read its log. `is_closed`: nothing more is read.
    """

    def __init__(self, pod: api.Pod, mark: Mark, follower: LogFollower, now: Callable[[], float]) -> None:
        self.id = pod.id
        self.mark = mark
        self.follower = follower
        self.created = pod.created or now()
        self.ended: float | None = None
        self.stopping: asyncio.Task[Any] | None = None
        self.readers: set[asyncio.Task[Any]] = set()
        self.is_closed = False
        self.lock = asyncio.Lock()  # one deletion at a time
        self._pod = pod
        self._now = now
        # An answer may show a running pod without its start. A new process does not count the time before its own.
        self._wait_begun = max(self.created, now())
        self._usd = pod.cost
        self._billed = 0.0
        self._started: float | None = None
        self._stopped_at: float | None = None
        self._terminated_at: float | None = None
        self._misses = 0
        self._absent_since = 0.0
        self._absences = 0
        self._exit: Ended | None = None
        self.update(pod)

    def update(self, pod: api.Pod) -> None:
        """Take over what the service shows. The first start counts: a restarted container is another one."""
        self._pod = pod
        self._misses = self._absences = 0
        self.ended = None
        self._usd = pod.cost or self._usd
        if pod.status == "RUNNING" and pod.runtime is not None and self._started is None:
            self._started = pod.started or self._now()
        self._started = self._started or self.follower.started
        if pod.status != "PROVISIONING":
            self.follower.ready.set()
        self._stopped_at = (self._stopped_at or self._now()) if pod.status in _STOPPED else None
        self._exit = self._exit or self._given_up()
        if pod.status == "TERMINATED":
            # One time for all answers: a time that moves would be a change that is looked up without an end.
            self._terminated_at = self._terminated_at or self._now()
            self.end(self._terminated_at)

    def end(self, at: float, billed: float = 0.0) -> None:
        """Record that the service has deleted the pod. `billed` is what its billing records show, in US dollars."""
        self.ended = at
        self._billed = billed
        self.follower.is_deleted = True

    def is_surely_gone(self) -> bool:
        """Count one more lookup that did not find the pod. Several of them count, after the program has exited."""
        self._misses += 1
        return self.follower.exit is not None and self._misses >= _PROOFS

    def is_long_absent(self, at: float, timings: Timings) -> bool:
        """Count one more complete list without the pod, requested at `at`. The count starts again after True."""
        if not self._absences:
            self._absent_since = at
        self._absences += 1
        if self._absences < timings.absence_threshold or at - self._absent_since <= timings.visibility_delay:
            return False
        self._absences = 0
        return True

    def stop_reading(self) -> None:
        """End all tasks that read the log, and the output with them."""
        self.is_closed = self.follower.is_deleted = True
        for task in self.readers:
            task.cancel()
        self.follower.buffer.end()
        self.follower.ready.set()

    @property
    def is_running(self) -> bool:
        if self.ended is not None or self._known_exit is not None:
            return False
        return self._pod.status == "RUNNING" and self._started is not None

    def instance(self) -> Instance:
        ended = self.ended
        has_run = self._started is not None or self.follower.exit is not None
        return Instance(
            id=self.id,
            claim=self.mark.claim,
            cluster=self.mark.cluster,
            state="ended" if ended is not None else "running" if has_run else "starting",
            created=self.created,
            started=self._started,
            ended=ended,
            exit=self._known_exit,
            usd_per_hour=self._usd,
            usd_total=None if ended is None else self._cost(ended),
            region=self._pod.data_center_id or "",
        )

    def _cost(self, ended: float) -> float:
        """Return the cost: the rate for the whole time, or the billing records if they show more, such as for disks.

        The records of the last hour may still be missing, so a lower amount in them proves nothing.
        """
        return round(max(self._usd * max(0.0, ended - self.created) / 3600, self._billed), 6)

    @property
    def _known_exit(self) -> Ended | None:
        return self.follower.exit or self._exit

    def _given_up(self) -> Ended | None:
        """Return the exit of a pod that the service has stopped, or never started."""
        now = self._now()
        has_run = self._started is not None or self._pod.started is not None
        log_seconds = _STOPPED_SECONDS if has_run else _NEVER_RAN_SECONDS
        if self._stopped_at is not None and now >= self._stopped_at + log_seconds:
            if self.follower.pull_failure and self._started is None:
                return _not_started("ErrImagePull", f"{self.follower.pull_failure} (image of the pod)", now)
            message = f"RunPod stopped the pod (status {self._pod.status}): check balance, image and its console."
            code = _NOT_STARTED if self._started is None else _KILLED
            return Ended(code=code, reason="ProviderStopped", message=message, ended=now)
        if self._started is None and now > self._wait_begun + _PROVISIONING_SECONDS:
            why = self.follower.pull_failure or "no machine started it"
            return _not_started("StartTimeout", f"RunPod did not start the container in 20 minutes: {why}.", now)
        return None


def _not_started(reason: str, message: str, now: float) -> Ended:
    return Ended(code=_NOT_STARTED, reason=reason, message=message, ended=now)
