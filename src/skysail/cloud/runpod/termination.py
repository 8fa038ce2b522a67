"""Terminates pods: a signal and a grace period for the program, and a deletion that the service confirms."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from skysail.cloud.errors import Gone, OutcomeUnknown, ProviderError, Throttled
from skysail.cloud.runpod import api
from skysail.cloud.runpod.background_tasks import BackgroundTasks
from skysail.cloud.runpod.client import RunPodClient
from skysail.cloud.runpod.pod_state import PodState
from skysail.cloud.runpod.tracked_pods import TrackedPods

# The cost of a pod is known without its billing records, so nothing waits for them for longer.
_BILLING_SECONDS = 5.0
# A program may end at once on a second signal, so the exit is waited for before the signal is repeated.
_SIGNAL_RETRY_SECONDS = 5.0

log = logging.getLogger(__name__)


class Terminator:
    """Terminates pods of one account."""

    def __init__(self, client: RunPodClient, pods: TrackedPods, tasks: BackgroundTasks) -> None:
        self._client = client
        self._pods = pods
        self._tasks = tasks

    async def terminate(self, id_: str, grace: float) -> None:
        """Request the termination. A running program has `grace` seconds, during which this method does not wait."""
        state = self._pods.get(id_) or await self._found(id_)
        if state is None:
            await self._client.delete_pod(id_)
            return
        if state.ended is not None:
            return
        if grace > 0 and state.is_running:
            if state.stopping is None:
                state.stopping = self._tasks.start(self._stop(state, grace))
            return
        if state.stopping is not None:
            state.stopping.cancel()
        await self._delete(state)

    async def _found(self, id_: str) -> PodState | None:
        """Look up a pod that this process has not seen yet, so that its program gets the grace period, too.

        Returns None if the pod is not shown, or is not ours: a failed lookup must not keep a pod from being deleted.
        """
        with contextlib.suppress(ProviderError):
            return self._pods.follow(await self._client.get_pod(id_))
        return None

    async def _stop(self, state: PodState, grace: float) -> None:
        """Signal the program, wait for its exit at most `grace` seconds, and delete the pod."""
        with contextlib.suppress(ProviderError, TimeoutError):
            async with asyncio.timeout(grace):
                await self._signal(state)
                await state.follower.done.wait()
        try:
            await self._delete(state)
        except ProviderError as error:
            # The claim repeats the request until the termination is confirmed.
            log.info("runpod pod not deleted, retried", extra={"pod": state.id, "why": str(error)})
        finally:
            state.stopping = None

    async def _signal(self, state: PodState) -> None:
        """Send SIGTERM to the program. Repeated while it is not known whether the signal arrived, until the exit.

        Raises ProviderError if the service has no exec, or does not have the pod.
        """
        while not state.follower.done.is_set():
            try:
                await self._client.exec(state.id, api.ExecCommand(command=_signal_command(state.mark.nonce)))
            except (OutcomeUnknown, Throttled) as error:
                log.info("runpod pod not signalled, retried", extra={"pod": state.id, "why": str(error)})
            else:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SIGNAL_RETRY_SECONDS):
                    await state.follower.done.wait()

    async def _delete(self, state: PodState) -> None:
        """Delete a pod. A pod is ended only if the service then confirms that it does not have it any more."""
        async with state.lock:
            if state.ended is not None:
                return
            try:
                await self._client.delete_pod(state.id)
                state.follower.is_deleted = True
                await self._client.get_pod(state.id)
            except Gone:
                if not state.follower.is_deleted:  # never accepted: the pod may only be hidden
                    raise
                self._pods.end(state, await self._billed(state.id))

    async def _billed(self, id_: str) -> float:
        """Return what the billing records show for a pod until now, in US dollars; 0 if they cannot be read."""
        try:
            async with asyncio.timeout(_BILLING_SECONDS):
                return await self._client.billed(id_)
        except (ProviderError, TimeoutError) as error:
            log.info("billing records not read, cost estimated", extra={"pod": id_, "why": str(error)})
            return 0.0


def _signal_command(nonce: str) -> tuple[str, ...]:
    """Return the command that sends SIGTERM to the program, whose process id the wrapper has stored."""
    script = f'for f in /tmp /var/tmp /dev/shm /run /; do [ -f "$f/.skysail-{nonce}/pid" ] && '
    return ("/bin/sh", "-c", script + f'kill -TERM "$(cat "$f/.skysail-{nonce}/pid")" && exit 0; done; exit 1')
