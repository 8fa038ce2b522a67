"""The node's state of one pod in memory: runs as the provider reported them, tasks in progress, and start failures."""

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
# The kubelet's reasons: for the first failure, and for later ones.
_PULL_FAILED = "ErrImagePull"
_PULL_BACKOFF = "ImagePullBackOff"


class PodState:
    """State of one pod, from its first event until it is removed. Identified by UID, because a name may be reused.

    `began` is when the pod came to the node, by the monotonic clock.
    """

    def __init__(self, pod: Pod, runs: dict[RunId, State], address: str | None, *, began: float) -> None:
        self.uid = pod.metadata.uid
        self.key: Key = pod.metadata.key
        self.address = address
        self.began = began
        self.runs = runs
        # Runs of a lost pod sandbox. Live runs at a cloud are not among them.
        self.lost_runs: frozenset[RunId] = (
            frozenset() if address is not None else (started_runs(pod) | runs.keys()) - _live(runs)
        )
        self.starting: dict[RunId, asyncio.Task[None]] = {}
        self.stops: dict[RunId, float] = {}
        self.stopping: dict[RunId, asyncio.Task[None]] = {}
        self.followers: dict[RunId, list[asyncio.Task[None]]] = {}
        self.pumps: dict[RunId, asyncio.Task[None]] = {}
        self.health: dict[RunId, ProbeState] = {}
        self.waiting: dict[str, StartBackoff] = {}
        self.image_progress: dict[str, str] = {}
        self.report_due: float | None = None
        # Level of `status_size.shortened` that the status needs to fit, and number of rejections of the last status.
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
            image_progress=dict(self.image_progress),
            unsupported=unsupported,
            lost_runs=self.lost_runs,
        )

    def sandbox_lost(self) -> None:
        self.address = None
        self.lost_runs |= self.runs.keys() - _live(self.runs)

    def back_off(self, container: str, reason: str, message: str, now: float) -> None:
        """Delay the next start after a failure, longer each time. An empty `container` is the pod sandbox."""
        failures = self._failures.get(container, 0)
        if failures and reason == _PULL_FAILED:
            reason = _PULL_BACKOFF
        self._failures[container] = failures + 1
        delay = min(_MAX_BACKOFF, _INITIAL_BACKOFF * 2.0 ** min(failures, 10))
        self.waiting[container] = StartBackoff(reason, message, now + delay)

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
        ended = [past for past, state in self.runs.items() if isinstance(state, Ended)]
        for past in ended:
            if past.container == run.container and past.number <= run.number - REMEMBERED:
                del self.runs[past]

    @property
    def is_in_transition(self) -> bool:
        """Return whether a run is starting, stopping or pending at a cloud, so that a change follows soon."""
        waits = any(isinstance(state, Pending) for state in self.runs.values())
        return bool(self.starting or self.stops or waits)

    def latest(self, container: str) -> RunId | None:
        """Return the newest run of a container, in any state."""
        return max((run for run in self.runs if run.container == container), default=None)

    def running(self) -> list[RunId]:
        return [run for run, state in self.runs.items() if isinstance(state, Running)]

    def active_runs(self) -> list[RunId]:
        """Return the runs that have not ended: running or pending."""
        return sorted(_live(self.runs))

    def close(self) -> None:
        """Cancel all tasks of this pod."""
        tasks = [*self.starting.values(), *self.stopping.values(), *self.pumps.values()]
        for task in (*tasks, *(follower for followers in self.followers.values() for follower in followers)):
            task.cancel()


def _live(runs: Mapping[RunId, State]) -> set[RunId]:
    return {run for run, state in runs.items() if not isinstance(state, Ended)}
