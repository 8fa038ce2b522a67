"""An account at RunPod: `cloud.account.CloudAccount` over the REST API v2.

One list call per tick shows all pods. RunPod reports no exit codes, so the log of each pod is followed for the line
with which the wrapper reports the exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from typing import Any

from skysail.base.names import ACCOUNT_REAL
from skysail.cloud.account import Instance, Inventory, LaunchSpec, Timings
from skysail.cloud.change_feed import ChangeFeed
from skysail.cloud.errors import Gone, OutcomeUnknown, ProviderError, Rejected, Throttled, Unsupported
from skysail.cloud.machine_prices import MachineRequest
from skysail.cloud.offers import Offer, OfferList
from skysail.cloud.provider import Features, Output, PortConnection, Session
from skysail.cloud.runpod import answers, api, catalogue, launch, marks, sessions
from skysail.cloud.runpod.client import DEFAULT_URL, Endpoint, RunPodClient
from skysail.cloud.runpod.launch import Placement
from skysail.cloud.runpod.log_follower import LogFollower
from skysail.cloud.runpod.pod_state import PodState
from skysail.cloud.runpod.registry_store import RegistryStore

FEATURES = Features(exec=True, port_forward=True, volumes=True, live_prices=True, needs_command=True)
TIMINGS = Timings(poll_interval=10.0, visibility_delay=120.0, create_timeout=90.0, max_lifetime=30 * 24 * 3600.0)
# Field of the credentials that holds the API key.
KEY_FIELD = "api_key"
_FORGET_SECONDS = 3600.0
# After a launch, the next lists follow after this share of the poll interval.
_QUICK_LISTS = 10
_QUICK_SHARE = 0.3
# The log of a deleted pod is read for this long, if the service still has it.
_LAST_OUTPUT_SECONDS = 5.0
# A launch is prepared within this time. A create that starts later could be repeated by its caller.
_PREPARE_SECONDS = 30.0
_PREPARE_RETRY_SECONDS = 10.0
_OTHER_KEY = (
    "RunPod shows none of the known pods with the changed API key, which may belong to another account: set a key of "
    "the same account in RUNPOD_API_KEY or the Secret runpod-controller-secrets, or restart Skysail if they are gone."
)

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
        # The key that surely belongs to the account of the known pods.
        self._trusted_key = credentials.get(KEY_FIELD, "")
        self._now = now
        self._clock = clock or asyncio.get_running_loop().time
        self.client = RunPodClient(endpoint, lambda: self._credentials[KEY_FIELD], clock=self._clock)
        self._registries = RegistryStore(self.client, self._clock)
        self._pods: dict[str, PodState] = {}
        self._cpus: tuple[api.CpuType, ...] = ()
        self._offers = OfferList((), 0.0)
        self._changes: ChangeFeed[str] = ChangeFeed()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._cluster = cluster
        self._hastening: asyncio.Task[Any] | None = None

    @property
    def account(self) -> str:
        """Name of the account. A stand-in is another account than the real service."""
        url = self.client.endpoint.url
        return ACCOUNT_REAL if url == DEFAULT_URL else url[-200:]

    @property
    def is_stand_in(self) -> bool:
        return self.client.endpoint.is_local

    def set_credentials(self, credentials: Mapping[str, str]) -> None:
        """Use another key from the next call on. It must be a key of the same account.

        Lists prove no absence until one of them shows a known pod: another account has none of the pods.
        """
        self._credentials = credentials

    async def close(self) -> None:
        """Stop all tasks before the process exits. Deletes no pod."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.client.close()

    async def create(self, spec: LaunchSpec) -> Instance:
        launch.check(spec, self.terms.max_lifetime)
        placement = await self._prepare(spec)
        body = launch.create_body(spec, placement)
        pod = await self.client.create_pod(body)
        self._cluster = self._cluster or spec.cluster
        state = self._state(pod, marks.Mark(spec.cluster, spec.claim, placement.nonce))
        self._changes.publish(spec.claim)
        self._hasten()
        return state.instance()

    async def terminate(self, instance: str, grace: float) -> None:
        state = self._pods.get(instance)
        if state is not None and state.ended is not None:
            return
        if state is not None and grace > 0 and state.is_running:
            if state.stopping is None:
                state.stopping = self._track(self._stop(state, grace))
            return
        if state is not None and state.stopping is not None:
            state.stopping.cancel()
        await self._delete(instance)

    async def list(self) -> Inventory:
        now, key = self._now(), self._key
        pods, is_complete = await self.client.list_pods()
        listed = {pod.id for pod in pods}
        is_trusted = self._trust(key, listed)
        is_complete = is_complete and is_trusted
        instances = [self._seen(pod, now) for pod in pods]
        for id_, state in list(self._pods.items()):
            if id_ not in listed and state.ended is not None:
                if now >= state.ended + _FORGET_SECONDS:
                    del self._pods[id_]
                else:
                    instances.append(state.instance())
            elif id_ not in listed and is_complete and state.is_long_absent(now, self.terms):
                self._track(self._forget_absent(state))
        if is_complete:
            used = {pod.registry for pod in pods if pod.registry}
            self._track(self._registries.collect(self._cluster, used))
        return Inventory(tuple(instances), complete=is_complete, problem="" if is_trusted else _OTHER_KEY)

    async def offers(self) -> OfferList:
        found: list[Offer] = []
        for tier in catalogue.TIERS:
            found += catalogue.gpu_offers(await self.client.gpu_types(tier), tier)
        self._cpus = await self.client.cpu_types()
        found += catalogue.cpu_offers(self._cpus)
        self._offers = OfferList(tuple(found), self._now())
        return self._offers

    def price_offers(self, offers: tuple[Offer, ...], request: MachineRequest) -> tuple[Offer, ...]:
        """Return the offers, those without GPU at the price of a machine of this size."""
        return tuple(catalogue.price_cpu_offers(offers, self._cpus, request.size))

    async def get(self, instance: str) -> Instance | None:
        state, begun = self._pods.get(instance), self._now()
        if state is not None and state.ended is not None:
            return state.instance()
        try:
            pod = await self.client.get_pod(instance)
        except Gone as error:
            if not self._trust(self._key, ()):
                raise OutcomeUnknown(_OTHER_KEY) from error
            return self._ended_alone(state) if state is not None else None
        self._follow(pod)
        return self._seen(pod, begun)

    def watch(self) -> AsyncIterator[str]:
        return self._changes.subscribe()

    async def output(self, instance: str, *, rank: int = 0) -> AsyncIterator[Output]:
        _check_rank(rank)
        state = self._pods.get(instance) or self._follow(await self.client.get_pod(instance))
        if state is None:
            raise Gone(f"Pod {instance} at RunPod does not belong to Skysail.")
        await self._until_started(state)
        if state.follower.buffer.is_complete or state.ended is not None or state.is_closed:
            async for piece in state.follower.buffer.replay():
                yield piece
            return
        # The start of the output was dropped: read the whole log once more.
        follower = self._follower(instance, state.created, state.mark)
        follower.ready.set()
        reading = self._read(state, follower.run())
        try:
            async for piece in follower.buffer.replay():
                yield piece
        finally:
            reading.cancel()

    async def exec(self, instance: str, command: tuple[str, ...], *, stdin: bool, tty: bool, rank: int = 0) -> Session:
        _check_rank(rank)
        if stdin or tty:
            raise Unsupported("RunPod runs single commands without input or terminal: leave out -i and -t.")
        await self._running(instance)
        session = sessions.OneShotExec(self.client, instance, command, self._now())
        await session.begin()
        return session

    async def attach(self, instance: str, *, stdin: bool, rank: int = 0) -> Session:  # noqa: ARG002 (required by the interface)
        raise Unsupported("RunPod cannot attach to a program: use kubectl logs -f.")

    async def dial(self, instance: str, port: int, *, rank: int = 0) -> PortConnection:
        _check_rank(rank)
        pod = await self._running(instance) or await self.client.get_pod(instance)
        return await sessions.connect(self.client.endpoint, pod, port)

    def _hasten(self) -> None:
        """List more often for a while after a launch: users wait for the start of their pod."""
        if self._hastening is None or self._hastening.done():
            self._hastening = self._track(self._list_soon())

    async def _list_soon(self) -> None:
        for _ in range(_QUICK_LISTS):
            await asyncio.sleep(self.terms.poll_interval * _QUICK_SHARE)
            if all(state.follower.ready.is_set() or state.ended is not None for state in self._pods.values()):
                return
            with contextlib.suppress(ProviderError):
                await self.list()

    async def _until_started(self, state: PodState) -> None:
        """Wait until the log of a pod can be read. The polls of the inventory show that; look only if they do not."""
        while not state.follower.ready.is_set() and state.ended is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2 * self.terms.poll_interval):
                    await state.follower.ready.wait()
                    return
            with contextlib.suppress(ProviderError):
                await self.get(state.id)

    @property
    def _key(self) -> str:
        return self._credentials.get(KEY_FIELD, "")

    def _trust(self, key: str, listed: Collection[str]) -> bool:
        """Return whether a list that was requested with `key` shows the account of the known pods."""
        if key != self._key:
            return False  # changed meanwhile: the pages may belong to two accounts
        known = {id_ for id_, state in self._pods.items() if state.ended is None}
        if not known or not known.isdisjoint(listed):
            self._trusted_key = key
        return key == self._trusted_key

    async def _forget_absent(self, state: PodState) -> None:
        """Look up a pod that lists have not shown for long, and forget it if it does not exist.

        A pod whose exit is known is kept: it ends after more lookups, with its exit code.
        """
        with contextlib.suppress(ProviderError):
            if await self.get(state.id) is not None or state.follower.exit is not None:
                return
            if self._pods.get(state.id) is state:
                del self._pods[state.id]
            state.stop_reading()
            self._changes.publish(state.mark.claim)

    async def _prepare(self, spec: LaunchSpec) -> Placement:
        """Return the placement of a launch. No error of this step means that a pod may exist."""
        try:
            async with asyncio.timeout(_PREPARE_SECONDS):
                return await self._placement(spec)
        except TimeoutError as error:
            message = f"RunPod did not answer within {_PREPARE_SECONDS:.0f} seconds before the launch."
            raise Throttled(message, _PREPARE_RETRY_SECONDS) from error
        except ProviderError as error:
            raise answers.before_create(error) from error

    async def _placement(self, spec: LaunchSpec) -> Placement:
        """Choose the machine of a launch, and provide its registry credentials."""
        if not self._offers.offers:
            await self.offers()
        self._check_region(spec.region)
        gpu, cpu = self._gpu(spec), None
        if not gpu:
            cpu = catalogue.cpu_order(self._cpus, spec.container.machine_size, spec.region)
            if cpu is None:
                raise Rejected("NoMachine", "RunPod has no machine without GPU of this size: lower the limits.")
        registry = ""
        if spec.registry_credentials is not None and "container-registry-auth-id" not in dict(spec.options):
            registry = await self._registries.ensure(spec.cluster, spec.registry_credentials)
        return Placement(
            gpu=gpu, cpu=cpu, nonce=secrets.token_hex(16), registry=registry, endpoint=self.client.endpoint
        )

    def _gpu(self, spec: LaunchSpec) -> str:
        """Return RunPod's id of the GPU type, the cheapest if the launch spec names none, or an empty string."""
        if spec.gpus is None:
            return ""
        known = [offer for offer in self._offers.offers if offer.gpu_type]
        fitting = [
            offer
            for offer in known
            if (offer.is_called(spec.gpus.type) if spec.gpus.type else not offer.is_only_by_name)
            and offer.cloud_type == (spec.cloud_type or catalogue.TIERS[0])
        ]
        if not fitting:
            names = ", ".join(sorted({offer.gpu_type for offer in known})[:12])
            raise Rejected("UnknownGpu", f"RunPod has no GPU {spec.gpus.type} in this tier: use one of {names}.")
        return min(fitting, key=lambda offer: (offer.usd_per_hour, offer.gpu_type)).gpu_type

    def _check_region(self, region: str) -> None:
        regions = sorted({offer.region for offer in self._offers.offers if offer.region})
        if region and region not in regions:
            raise Rejected("UnknownRegion", f"RunPod has no data center {region}: use one of {', '.join(regions)}.")

    def _seen(self, pod: api.Pod, begun: float) -> Instance:
        """Return the instance of a pod in an answer, and update what is known about it. Foreign pods are only shown.

        `begun` is the time of the request: an answer that is older than the end of the pod changes nothing.
        """
        state, mark = self._pods.get(pod.id), marks.of_env(pod.env)
        if state is None and mark.cluster and mark.cluster == self._cluster:
            state = self._state(pod, mark)
        if state is None:
            return PodState(pod, mark, self._follower(pod.id, pod.created, mark), self._now).instance()
        before = state.instance()
        if state.ended is not None and begun <= state.ended:
            return before
        state.update(pod)
        after = state.instance()
        if before != after:
            self._changes.publish(state.mark.claim)
        if before.state != "ended" and after.state == "ended":
            self._track(self._finish(state))
        return after

    def _follow(self, pod: api.Pod) -> PodState | None:
        """Follow a pod that carries our mark. Returns None for a foreign pod."""
        mark = marks.of_env(pod.env)
        if not mark.claim:
            return None
        self._cluster = self._cluster or mark.cluster
        return self._pods.get(pod.id) or self._state(pod, mark)

    def _state(self, pod: api.Pod, mark: marks.Mark) -> PodState:
        follower = self._follower(pod.id, pod.created or self._now(), mark)
        state = self._pods[pod.id] = PodState(pod, mark, follower, self._now)
        self._read(state, self._run_follower(state, follower))
        state.update(pod)
        return state

    def _follower(self, pod: str, created: float, mark: marks.Mark) -> LogFollower:
        return LogFollower(self.client, pod, created=created, nonce=mark.nonce)

    def _read(self, state: PodState, work: Coroutine[Any, Any, None]) -> asyncio.Task[Any]:
        task = self._track(work)
        state.readers.add(task)
        task.add_done_callback(state.readers.discard)
        return task

    async def _run_follower(self, state: PodState, follower: LogFollower) -> None:
        await follower.run()
        self._changes.publish(state.mark.claim)

    async def _stop(self, state: PodState, grace: float) -> None:
        """Signal the program, wait for its exit at most `grace` seconds, and delete the pod."""
        with contextlib.suppress(ProviderError):
            await self.client.exec(state.id, api.ExecCommand(command=_signal_command(state.mark.nonce)))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await state.follower.done.wait()
        try:
            await self._delete(state.id)
        except ProviderError as error:
            # The claim repeats the request until the termination is confirmed.
            log.info("runpod pod not deleted, retried", extra={"pod": state.id, "why": str(error)})
        finally:
            state.stopping = None

    async def _delete(self, instance: str) -> None:
        """Delete a pod. A pod is ended only if the service then confirms that it does not have it any more."""
        state = self._pods.get(instance)
        if state is None:
            await self.client.delete_pod(instance)
            return
        async with state.lock:
            if state.ended is not None:
                return
            try:
                await self.client.delete_pod(instance)
                state.follower.is_deleted = True
                await self.client.get_pod(instance)
            except Gone:
                if not state.follower.is_deleted:  # never accepted: the pod may only be hidden
                    raise
                state.end(self._now())
                self._track(self._finish(state))
                self._changes.publish(state.mark.claim)

    async def _finish(self, state: PodState) -> None:
        """Let the readers read the rest of the log, for a short time."""
        state.follower.ready.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_OUTPUT_SECONDS):
                await state.follower.done.wait()
        state.stop_reading()

    def _ended_alone(self, state: PodState) -> Instance | None:
        """Return the instance of a program that has ended and whose pod the wrapper has deleted, else None."""
        if not state.is_surely_gone():
            return None
        state.end(self._now())
        self._changes.publish(state.mark.claim)
        return state.instance()

    async def _running(self, instance: str) -> api.Pod | None:
        """Check that a pod of ours runs. Returns the pod if it had to be looked up, as in a process that lists nothing.

        Raises `Gone` if the pod is foreign or does not run.
        """
        state = self._pods.get(instance)
        if state is not None:
            if not state.is_running:
                raise Gone(f"Pod {instance} at RunPod is not running.")
            return None
        pod = await self.client.get_pod(instance)
        mark = marks.of_env(pod.env)
        if not mark.claim or mark.cluster != (self._cluster or mark.cluster):
            raise Gone(f"Pod {instance} at RunPod does not belong to Skysail.")
        if pod.status != "RUNNING":
            raise Gone(f"Pod {instance} at RunPod is not running.")
        return pod

    def _track(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("runpod task failed", exc_info=error)


def _check_rank(rank: int) -> None:
    if rank:
        raise Gone(f"A pod at RunPod has no rank {rank}.")


def _signal_command(nonce: str) -> tuple[str, ...]:
    """Return the command that sends SIGTERM to the program, whose process id the wrapper has stored."""
    script = f'for f in /tmp /var/tmp /dev/shm /run /; do [ -f "$f/.skysail-{nonce}/pid" ] && '
    return ("/bin/sh", "-c", script + f'kill -TERM "$(cat "$f/.skysail-{nonce}/pid")" && exit 0; done; exit 1')
