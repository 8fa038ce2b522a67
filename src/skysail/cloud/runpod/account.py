"""An account at RunPod: `cloud.account.CloudAccount` over the REST API v2.

One list call per tick shows all pods. RunPod reports no exit codes, so the log of each pod is followed for the line
with which the wrapper reports the exit. The parts: `placement` chooses the machine, `launch` builds the request,
`tracked_pods` knows the pods, `termination` ends them, `sessions` connects to them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from skysail.base.names import ACCOUNT_REAL
from skysail.cloud.account import Instance, Inventory, LaunchSpec, Timings
from skysail.cloud.errors import Gone, ProviderError, Rejected, Unsupported
from skysail.cloud.lifetimes import MAX_LIFETIMES
from skysail.cloud.offers import OfferList
from skysail.cloud.provider import Features, Output, PortConnection, Session
from skysail.cloud.runpod import answers, api, catalogue, launch, marks, sessions
from skysail.cloud.runpod.background_tasks import BackgroundTasks
from skysail.cloud.runpod.client import DEFAULT_URL, Endpoint, RunPodClient
from skysail.cloud.runpod.placement import Placer
from skysail.cloud.runpod.pod_directory import PodDirectory
from skysail.cloud.runpod.pod_state import PodState
from skysail.cloud.runpod.rate_budget import OPTIONAL, URGENT
from skysail.cloud.runpod.registry_store import RegistryStore
from skysail.cloud.runpod.termination import Terminator
from skysail.cloud.runpod.tracked_pods import OTHER_KEY, TrackedPods

FEATURES = Features(
    exec=True,
    port_forward=True,
    volumes=True,
    live_prices=True,
    needs_command=True,
    needs_shell=True,
    probe_commands_per_minute=20,
)
TIMINGS = Timings(
    poll_interval=10.0,
    visibility_delay=120.0,
    create_timeout=90.0,
    max_lifetime=MAX_LIFETIMES["runpod"],
    forgets_ended=True,
)
# Field of the credentials that holds the API key.
KEY_FIELD = "api_key"
# After a launch, the next lists follow after this share of the poll interval.
_QUICK_LISTS = 10
_QUICK_SHARE = 0.3
# Number of lookups that must not find a pod before it is gone.
_PROOFS = 3

log = logging.getLogger(__name__)


class RunPodAccount:
    """One account. Must be created inside the running event loop. `now` is in seconds since 1970.

    Pods of `cluster` are followed as soon as a list shows them, all others only when they are looked up.
    """

    name = catalogue.PROVIDER
    features = FEATURES

    def __init__(
        self,
        endpoint: Endpoint,
        credentials: Mapping[str, str],
        *,
        cluster: str = "",
        timings: Timings = TIMINGS,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.terms = timings
        self._credentials = credentials
        self._now = now
        clock = clock or asyncio.get_running_loop().time
        self.client = RunPodClient(endpoint, lambda: self._credentials[KEY_FIELD], clock=clock)
        self._tasks = BackgroundTasks()
        self._registries = RegistryStore(self.client, clock)
        self._placer = Placer(self.client, self._registries, now)
        self._pods = TrackedPods(self.client, self._tasks, now=now, key=lambda: self._key)
        self._pods.cluster = cluster
        self._directory = PodDirectory(self.client, clock, timings.poll_interval)
        self._terminator = Terminator(self.client, self._pods, self._tasks)
        self._hastening: asyncio.Task[Any] | None = None

    @property
    def account(self) -> str:
        """Name of the account, the same for every form of its address. A stand-in is another than the real service."""
        endpoint = self.client.endpoint
        url = endpoint.url if endpoint.socket else endpoint.base
        return ACCOUNT_REAL if url == DEFAULT_URL else url[-200:]

    @property
    def is_stand_in(self) -> bool:
        return self.client.endpoint.is_stand_in

    def set_credentials(self, credentials: Mapping[str, str]) -> None:
        """Use another key from the next call on. It must be a key of the same account.

        Lists prove no absence until one of them shows a known pod: another account has none of the pods.
        """
        self._credentials = credentials

    async def close(self) -> None:
        """Stop all tasks before the process exits. Deletes no pod."""
        await self._tasks.close()
        await self.client.close()

    async def create(self, spec: LaunchSpec) -> Instance:
        launch.check(spec, self.terms.max_lifetime)
        placement = await self._placer.prepare(spec)
        pod = await self._create_pod(spec, placement)
        self._pods.cluster = self._pods.cluster or spec.cluster
        state = self._pods.add(pod, marks.Mark(spec.cluster, spec.claim, placement.nonce))
        self._pods.changes.publish(spec.claim)
        self._hasten()
        return state.instance()

    async def _create_pod(self, spec: LaunchSpec, placement: launch.Placement) -> api.Pod:
        """Create the pod. A registry credential that somebody has deleted is no reason to give the launch up."""
        try:
            return await self.client.create_pod(launch.create_body(spec, placement))
        except Rejected as error:
            if error.reason == answers.NOT_FOUND_REASON and placement.registry:
                await self._placer.check_registry(spec, placement)
            raise

    async def terminate(self, instance: str, grace: float) -> None:
        await self._terminator.terminate(instance, grace)

    async def delete_volume(self, namespace: str, volume: str) -> None:  # noqa: ARG002 (required by the interface)
        raise Unsupported(
            "RunPod's API deletes only whole network volumes, which are yours: delete the folder of the TrainingJob on "
            "the network volume yourself."
        )

    async def list(self) -> Inventory:
        return await self._list(URGENT)

    async def _list(self, reserve: int) -> Inventory:
        begun, key = self._now(), self._key
        pods, is_complete = await self.client.list_pods(reserve=reserve)
        self._directory.update(pods, is_complete=is_complete)
        listed = {pod.id for pod in pods}
        is_trusted = self._pods.trust(key, listed)
        is_complete = is_complete and is_trusted
        instances = [self._pods.observe(pod, begun) for pod in pods]
        if is_complete:
            self._pods.look_up_absent(listed, begun, self.terms)
            used = {pod.registry for pod in pods if pod.registry}
            self._tasks.start(self._registries.collect(self._pods.cluster, used))
        instances += self._pods.ended(listed, begun)
        return Inventory(tuple(instances), complete=is_complete, problem="" if is_trusted else OTHER_KEY)

    async def offers(self) -> OfferList:
        return await self._placer.refresh()

    async def get(self, instance: str) -> Instance | None:
        return await self._pods.look_up(instance)

    def watch(self) -> AsyncIterator[str]:
        return self._pods.changes.subscribe()

    async def output(self, instance: str, *, rank: int = 0) -> AsyncIterator[Output]:
        _check_rank(rank)
        state = await self._found(instance)
        await self._pods.until_started(state, 2 * self.terms.poll_interval)
        if state.follower.buffer.is_complete or state.ended is not None or state.is_closed:
            async for piece in state.follower.output():
                yield piece
            return
        # The start of the output was dropped: read the whole log once more. The buffer has the rest of a deleted pod.
        follower = self._pods.follower(instance, state.created, state.mark)
        follower.ready.set()
        reading = self._pods.read(state, follower.run())
        after, seen = 0.0, 0
        try:
            async for piece in follower.output():
                after, seen = piece.at, seen + len(piece.data)
                yield piece
        finally:
            reading.cancel()
        if follower.exit is None:
            async for piece in state.follower.output(after=after, seen=seen):
                yield piece

    async def exec(self, instance: str, command: tuple[str, ...], *, stdin: bool, tty: bool, rank: int = 0) -> Session:
        _check_rank(rank)
        if stdin or tty:
            raise Unsupported("RunPod runs single commands without input or terminal: leave out -i and -t.")
        if not self._check_tracked(instance):
            self._check_ours(await self.client.get_pod(instance))
        session = sessions.OneShotExec(self.client, instance, command, self._now())
        await session.begin()
        return session

    async def attach(self, instance: str, *, stdin: bool, rank: int = 0) -> Session:  # noqa: ARG002 (required by the interface)
        raise Unsupported("RunPod cannot attach to a program: use kubectl logs -f.")

    async def dial(self, instance: str, port: int, *, rank: int = 0) -> PortConnection:
        _check_rank(rank)
        is_tracked = self._check_tracked(instance)
        pod = await self._directory.find(instance)
        if pod is None:
            if is_tracked:
                raise Rejected("PortNotMapped", f"RunPod does not list pod {instance} yet: retry in a moment.")
            raise Gone(f"RunPod does not list pod {instance}.")
        self._check_ours(pod)
        return await sessions.connect(self.client.endpoint, pod, port)

    async def _found(self, instance: str) -> PodState:
        """Return the state of a pod, which a new process may have to look up. Repeated until the service answers.

        Raises `Gone` if the pod is foreign, or several lookups do not find it: it may only be hidden.
        """
        misses = 0
        while True:
            state = self._pods.get(instance)
            if state is not None:
                return state
            try:
                pod = await self.client.get_pod(instance)
            except Gone:
                misses += 1
                if misses >= _PROOFS:
                    raise
            except ProviderError as error:
                log.info("runpod pod not looked up for its output, retried", extra={"pod": instance, "why": str(error)})
            else:
                state = self._pods.follow(pod)
                if state is None:
                    raise Gone(f"Pod {instance} at RunPod does not belong to Skysail.")
                return state
            await asyncio.sleep(self.terms.poll_interval)

    @property
    def _key(self) -> str:
        return self._credentials.get(KEY_FIELD, "")

    def _hasten(self) -> None:
        """List more often for a while after a launch: users wait for the start of their pod."""
        if self._hastening is None or self._hastening.done():
            self._hastening = self._tasks.start(self._list_soon())

    async def _list_soon(self) -> None:
        for _ in range(_QUICK_LISTS):
            await asyncio.sleep(self.terms.poll_interval * _QUICK_SHARE)
            if self._pods.are_readable:
                return
            with contextlib.suppress(ProviderError):
                await self._list(OPTIONAL)

    def _check_tracked(self, instance: str) -> bool:
        """Return whether a pod is tracked: a process that lists nothing tracks none. Raises `Gone` if it ended."""
        state = self._pods.get(instance)
        if state is not None and not state.is_running:
            raise Gone(f"Pod {instance} at RunPod is not running.")
        return state is not None

    def _check_ours(self, pod: api.Pod) -> None:
        """Raise `Gone` if a pod is foreign or does not run."""
        if self._pods.get(pod.id) is None:
            mark = marks.of_env(pod.env)
            if not mark.claim or mark.cluster != (self._pods.cluster or mark.cluster):
                raise Gone(f"Pod {pod.id} at RunPod does not belong to Skysail.")
        if pod.status != "RUNNING":
            raise Gone(f"Pod {pod.id} at RunPod is not running.")


def _check_rank(rank: int) -> None:
    if rank:
        raise Gone(f"A pod at RunPod has no rank {rank}.")
