"""Our pods at RunPod, as far as this process knows them: their states, and the readers of their logs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from skysail.cloud.account import Instance, Timings
from skysail.cloud.change_feed import ChangeFeed
from skysail.cloud.errors import Gone, OutcomeUnknown, ProviderError
from skysail.cloud.runpod import api, marks
from skysail.cloud.runpod.background_tasks import BackgroundTasks
from skysail.cloud.runpod.client import RunPodClient
from skysail.cloud.runpod.log_follower import LogFollower
from skysail.cloud.runpod.pod_state import PodState

_FORGET_SECONDS = 3600.0
# The log of a deleted pod is read for this long, if the service still has it.
_LAST_OUTPUT_SECONDS = 3.0
OTHER_KEY = (
    "RunPod shows none of the known pods with the changed API key, which may belong to another account: set a key of "
    "the same account in RUNPOD_API_KEY or the Secret runpod-controller-secrets, or restart Skysail if they are gone."
)


class TrackedPods:
    """Pods of one account. `now` is in seconds since 1970, `key` returns the API key of the moment.

    Pods of `cluster` are followed as soon as a list shows them, all others only when they are looked up.
    """

    def __init__(
        self, client: RunPodClient, tasks: BackgroundTasks, *, now: Callable[[], float], key: Callable[[], str]
    ) -> None:
        self.cluster = ""
        self.changes: ChangeFeed[str] = ChangeFeed()
        self._client = client
        self._tasks = tasks
        self._now = now
        self._key = key
        # The key that surely belongs to the account of the known pods.
        self._trusted_key = key()
        self._pods: dict[str, PodState] = {}

    def get(self, id_: str) -> PodState | None:
        return self._pods.get(id_)

    @property
    def are_readable(self) -> bool:
        """Return whether the log of every pod can be read, or is not needed any more."""
        return all(state.follower.ready.is_set() or state.ended is not None for state in self._pods.values())

    def add(self, pod: api.Pod, mark: marks.Mark) -> PodState:
        """Follow a pod, from its creation on. A list may have shown the pod before its creation was answered."""
        if pod.id in self._pods:
            return self._pods[pod.id]
        follower = self.follower(pod.id, pod.created or self._now(), mark)
        state = self._pods[pod.id] = PodState(pod, mark, follower, self._now)
        self.read(state, self._run_follower(state))
        state.update(pod)
        return state

    def follow(self, pod: api.Pod) -> PodState | None:
        """Follow a pod that carries our mark. Returns None for a foreign pod."""
        mark = marks.of_env(pod.env)
        if not mark.claim:
            return None
        self.cluster = self.cluster or mark.cluster
        return self.add(pod, mark)

    def observe(self, pod: api.Pod, begun: float) -> Instance:
        """Return the instance of a pod in an answer, and update what is known about it. Foreign pods are only shown.

        `begun` is the time of the request: an answer that is older than the end of the pod changes nothing.
        """
        state, mark = self._pods.get(pod.id), marks.of_env(pod.env)
        if state is None and mark.cluster and mark.cluster == self.cluster:
            state = self.add(pod, mark)
        if state is None:
            return PodState(pod, mark, self.follower(pod.id, pod.created, mark), self._now).instance()
        before = state.instance()
        if state.ended is not None and begun <= state.ended:
            return before
        state.update(pod)
        after = state.instance()
        if before != after:
            self.changes.publish(state.mark.claim)
        if before.state != "ended" and after.state == "ended":
            self._tasks.start(self._finish(state))
        return after

    def look_up_absent(self, listed: Collection[str], begun: float, timings: Timings) -> None:
        """Look up pods that this and earlier lists do not show, and forget them if they do not exist.

        Call for a complete list only.
        """
        for id_, state in self._pods.items():
            if id_ not in listed and state.ended is None and state.is_long_absent(begun, timings):
                self._tasks.start(self._forget_absent(state))

    def ended(self, listed: Collection[str], begun: float) -> list[Instance]:
        """Return ended pods that a list does not show any more, as long as they are remembered."""
        found: list[Instance] = []
        for id_, state in list(self._pods.items()):
            if id_ in listed or state.ended is None:
                continue
            if begun >= state.ended + _FORGET_SECONDS:
                del self._pods[id_]
            else:
                found.append(state.instance())
        return found

    async def look_up(self, id_: str) -> Instance | None:
        """Look up one pod at the service. Returns None if the service does not have it.

        Raises OutcomeUnknown if the answer may be that of another account.
        """
        state, begun = self._pods.get(id_), self._now()
        if state is not None and state.ended is not None:
            return state.instance()
        try:
            pod = await self._client.get_pod(id_)
        except Gone as error:
            if not self.trust(self._key(), ()):
                raise OutcomeUnknown(OTHER_KEY) from error
            return self._ended_alone(state) if state is not None else None
        self.follow(pod)
        return self.observe(pod, begun)

    def trust(self, key: str, listed: Collection[str]) -> bool:
        """Return whether a list that was requested with `key` shows the account of the known pods."""
        if key != self._key():
            return False  # changed meanwhile: the pages may belong to two accounts
        known = {id_ for id_, state in self._pods.items() if state.ended is None}
        if not known or not known.isdisjoint(listed):
            self._trusted_key = key
        return key == self._trusted_key

    def end(self, state: PodState, billed: float) -> None:
        """Record that the service has confirmed the deletion of a pod. `billed` is what its billing records show."""
        state.end(self._now(), billed)
        self._tasks.start(self._finish(state))
        self.changes.publish(state.mark.claim)

    async def until_started(self, state: PodState, seconds: float) -> None:
        """Wait until the log of a pod can be read. Lists show that; look the pod up if they do not for so long."""
        while not state.follower.ready.is_set() and state.ended is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await state.follower.ready.wait()
                    return
            with contextlib.suppress(ProviderError):
                await self.look_up(state.id)

    def follower(self, pod: str, created: float, mark: marks.Mark) -> LogFollower:
        return LogFollower(self._client, pod, created=created, nonce=mark.nonce)

    def read(self, state: PodState, work: Coroutine[Any, Any, None]) -> asyncio.Task[Any]:
        """Run a reader of a pod's log, which ends with the pod."""
        task = self._tasks.start(work)
        state.readers.add(task)
        task.add_done_callback(state.readers.discard)
        return task

    async def _run_follower(self, state: PodState) -> None:
        await state.follower.run()
        self.changes.publish(state.mark.claim)

    async def _finish(self, state: PodState) -> None:
        """Let the readers read the rest of the log, for a short time."""
        state.follower.ready.set()
        if state.readers:
            await asyncio.wait(state.readers, timeout=_LAST_OUTPUT_SECONDS)
        state.stop_reading()

    async def _forget_absent(self, state: PodState) -> None:
        """Look up a pod that lists have not shown for long, and forget it if it does not exist.

        A pod whose exit is known is kept: it ends after more lookups, with its exit code.
        """
        with contextlib.suppress(ProviderError):
            if await self.look_up(state.id) is not None or state.follower.exit is not None:
                return
            if self._pods.get(state.id) is state:
                del self._pods[state.id]
            state.stop_reading()
            self.changes.publish(state.mark.claim)

    def _ended_alone(self, state: PodState) -> Instance | None:
        """Return the instance of a program that has ended and whose pod the wrapper has deleted, else None."""
        if not state.is_surely_gone():
            return None
        state.end(self._now())
        self.changes.publish(state.mark.claim)
        return state.instance()
