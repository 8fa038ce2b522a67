"""What the node remembers of one pod: what the provider told, what is under way, and what went wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from skysail.cloud.account import RegistryCredentials
from skysail.cloud.provider import Ended, Pending, RunId, Running, State
from skysail.kube.api.objects import Key
from skysail.node.pod_types import Pod
from skysail.node.sync.snapshot import REMEMBERED, ProbeState, Snapshot, StartBackoff, started_runs
from skysail.node.sync.unsupported_fields import UnsupportedFields

_INITIAL_BACKOFF = 5.0
_MAX_BACKOFF = 60.0
# As a kubelet calls it: the first time, and when it has been tried again.
_NO_IMAGE = "ErrImagePull"
_STILL_NO_IMAGE = "ImagePullBackOff"


class PodState:
    """Kept from the first sight of a pod until nothing of it is left. A pod is its UID: its name may come back.

    `began` is when it came to the node, by the clock that nobody can set.
    """

    def __init__(self, pod: Pod, known: dict[RunId, State], address: str | None, *, began: float) -> None:
        self.uid = pod.metadata.uid
        self.key: Key = pod.metadata.key
        self.address = address
        self.began = began
        self.runs = known
        # Of a place that is gone. What a cloud still runs was never there.
        self.lost_runs: frozenset[RunId] = (
            frozenset() if address is not None else (started_runs(pod) | known.keys()) - _live(known)
        )
        self.starting: dict[RunId, asyncio.Task[None]] = {}
        self.stops: dict[RunId, float] = {}
        self.stopping: dict[RunId, asyncio.Task[None]] = {}
        self.followers: dict[RunId, list[asyncio.Task[None]]] = {}
        self.pumps: dict[RunId, asyncio.Task[None]] = {}
        self.health: dict[RunId, ProbeState] = {}
        self.waiting: dict[str, StartBackoff] = {}
        self.report_due: float | None = None
        # How much shorter than whole the status must be to fit, and how often the API server has rejected the last one.
        self.brevity = 0
        self.rejections = 0
        self._failures: dict[str, int] = {}
        # For the image of the container that is started next, from the pull secrets of the pod.
        self.registry_credentials: RegistryCredentials | None = None

    def snapshot(self, pod: Pod, *, now: float, clock: float, host_ip: str, unsupported: UnsupportedFields) -> Snapshot:
        return Snapshot(
            pod=pod,
            now=now,
            active_seconds=clock - self.began,
            host_ip=host_ip,
            runs=dict(self.runs),
            address=self.address,
            starting=frozenset(self.starting),
            stops=dict(self.stops),
            health=dict(self.health),
            waiting=dict(self.waiting),
            unsupported=unsupported,
            lost_runs=self.lost_runs,
        )

    def sandbox_lost(self) -> None:
        self.address = None
        self.lost_runs |= self.runs.keys() - _live(self.runs)

    def back_off(self, container: str, reason: str, message: str, now: float) -> None:
        """A start failed (of the place itself, without a name): try again later, and later each time."""
        failures = self._failures.get(container, 0)
        if failures and reason == _NO_IMAGE:
            reason = _STILL_NO_IMAGE
        self._failures[container] = failures + 1
        pause = min(_MAX_BACKOFF, _INITIAL_BACKOFF * 2.0 ** min(failures, 10))
        self.waiting[container] = StartBackoff(reason, message, now + pause)

    def clear_back_off(self, container: str) -> None:
        self.waiting.pop(container, None)
        self._failures.pop(container, None)

    def ended(self, run: RunId, state: Ended) -> None:
        self.runs[run] = state
        self._forget_before(run)
        self.stops.pop(run, None)
        self.health.pop(run, None)
        for task in self.followers.pop(run, ()):
            task.cancel()

    def _forget_before(self, run: RunId) -> None:
        over = [past for past, state in self.runs.items() if isinstance(state, Ended)]
        for past in over:
            if past.container == run.container and past.number <= run.number - REMEMBERED:
                del self.runs[past]

    @property
    def is_in_transition(self) -> bool:
        """Whether something of it begins or ends, or waits for a cloud to begin it, and tells soon how that went."""
        waits = any(isinstance(state, Pending) for state in self.runs.values())
        return bool(self.starting or self.stops or waits)

    def latest(self, container: str) -> RunId | None:
        """The newest run of a container, whatever became of it."""
        return max((run for run in self.runs if run.container == container), default=None)

    def running(self) -> list[RunId]:
        return [run for run, state in self.runs.items() if isinstance(state, Running)]

    def active_runs(self) -> list[RunId]:
        """Runs that have not ended, be it that they run or that they will."""
        return sorted(_live(self.runs))

    def close(self) -> None:
        """Nothing is wanted of this pod any more."""
        tasks = [*self.starting.values(), *self.stopping.values(), *self.pumps.values()]
        for task in (*tasks, *(follower for followers in self.followers.values() for follower in followers)):
            task.cancel()


def _live(runs: Mapping[RunId, State]) -> set[RunId]:
    return {run for run, state in runs.items() if not isinstance(state, Ended)}
