"""`cloud.provider.Provider` on this machine.

Only the journal survives the process that created this object: programs die with it, and the next process reads from
the journal how they ended. So its listing is always complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from msgspec.structs import replace

from skysail.base.names import EventReason
from skysail.cloud.change_feed import ChangeFeed
from skysail.cloud.errors import Gone, ProviderError, Rejected
from skysail.cloud.provider import (
    Container,
    Ended,
    Features,
    File,
    Output,
    Pod,
    PortConnection,
    RunId,
    Running,
    RuntimeListing,
    Session,
    State,
    Usage,
)
from skysail.local.bubblewrap.container import ExecFailed
from skysail.local.bubblewrap.rootfs import CAPABILITIES, IGNORED_CAPABILITIES
from skysail.local.files import remove_tree
from skysail.local.network import host_network
from skysail.local.provider import storage_limits
from skysail.local.provider.container_run import ContainerRun
from skysail.local.provider.dependencies import ProviderDependencies
from skysail.local.provider.disk_monitor import PodDisk
from skysail.local.provider.pod_sandbox import PodSandbox
from skysail.local.provider.process_usage import by_namespace
from skysail.local.provider.sessions import Attached, Exec, SocketConnection, connect_socket
from skysail.local.provider.storage_limits import ContainerFiles
from skysail.local.storage.disk_usage import DiskUsage, deleted_files

T = TypeVar("T")

_FEATURES = Features(
    exec=True,
    attach=True,
    port_forward=True,
    volumes=True,
    multi_container=True,
    host_network_setting=host_network.SETTING,
    capabilities=frozenset(CAPABILITIES),
    ignored_capabilities=IGNORED_CAPABILITIES,
    user_namespaces=True,
    stats=True,
    billable=False,
)
_POLL_SECONDS = 5.0
_NO_LIMITS = "Limits of memory and CPU are not enforced on this node: start Skysail as root to enforce them."


class LocalProvider:
    """Pods as processes of this machine. All methods must be called in one event loop."""

    def __init__(self, deps: ProviderDependencies) -> None:
        self._deps = deps
        self._pods: dict[str, PodSandbox] = {}
        self._container_runs: dict[RunId, ContainerRun] = {}
        self._past = deps.journal.past(deps.now())
        self._change_feed: ChangeFeed[RunId] = ChangeFeed()
        self._has_warned = False
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()
        if deps.disk is not None:
            deps.disk.register(self)

    @property
    def name(self) -> str:
        return "local"

    @property
    def features(self) -> Features:
        return replace(
            _FEATURES,
            host_network=self._deps.allows_host_network,
            supplemental_groups=self._deps.isolation.has_ranges,
        )

    async def close(self) -> None:
        """Remove the sandboxes of all pods, at an orderly end of the process."""
        self._deps.journal.close()
        await asyncio.gather(*(self.remove_sandbox(uid) for uid in list(self._pods)))
        self._deps.groups.close()

    async def create_sandbox(self, pod: Pod) -> str:
        return await self._to_completion(self._prepare(pod))

    async def start(self, run: RunId, container: Container) -> None:
        if run in self._past:
            return
        attempt = self._container_runs.get(run)
        if attempt is None:
            pod_sandbox = self._sandbox(run.pod)
            attempt = ContainerRun(run, container, pod_sandbox, self._deps)
            self._container_runs[run] = attempt
            self._forget_before(run)
            self._warn(run, container)
            attempt.begin(changed=lambda: self._change_feed.publish(run), failed=lambda: self._forget(run))
            if pod_sandbox.eviction:
                await attempt.evict(pod_sandbox.eviction)
                return
        await attempt.started()

    async def stop(self, run: RunId, grace: float) -> None:
        attempt = self._container_runs.get(run)
        if attempt is None:
            raise Gone(f"Run {run.number} of container {run.container} not found.")
        self._begin(attempt.stop(grace))

    async def remove_sandbox(self, pod: str) -> None:
        await self._to_completion(self._release(pod))

    async def list(self) -> RuntimeListing:
        states = {
            container_run.id: container_run.state
            for container_run in self._container_runs.values()
            if container_run.state is not None
        }
        return RuntimeListing(
            runs={**self._past, **states}, pods={uid: pod_sandbox.address for uid, pod_sandbox in self._pods.items()}
        )

    def changes(self) -> AsyncIterator[RunId]:
        return self._change_feed.subscribe()

    async def state(self, run: RunId) -> State | None:
        attempt = self._container_runs.get(run)
        return attempt.state if attempt else self._past.get(run)

    async def output(self, run: RunId) -> AsyncIterator[Output]:
        attempt = self._known(run)
        if attempt.state is None:
            await attempt.started()
        if attempt.last_container is None:
            return
        async for piece in attempt.last_container.output.replay():
            yield piece

    async def update(self, pod: str, volume: str, files: tuple[File, ...]) -> None:
        async with self._lock(pod):
            with _translate_errors(f"The files of volume {volume} cannot be written"):
                await asyncio.to_thread(self._sandbox(pod).volumes.update, volume, files)

    async def exec(self, run: RunId, command: tuple[str, ...], *, stdin: bool, tty: bool) -> Session:
        try:
            return Exec(await self._known(run).running.exec(command, stdin=stdin, terminal=tty))
        except ExecFailed as error:
            raise Rejected("ExecFailed", f"{error}.") from error

    async def attach(self, run: RunId, *, stdin: bool) -> Session:
        return Attached(self._known(run), stdin=stdin)

    async def connect(self, pod: str, port: int, *, from_outside: bool = False) -> PortConnection:
        address = self._sandbox(pod).address
        try:
            dialling = connect_socket(address, port) if from_outside else self._deps.network.dial(address, port)
            return SocketConnection(await dialling)
        except OSError as error:
            raise Rejected("NotListening", f"Nothing in the pod answers on port {port}: {error.strerror}.") from error

    async def usage(self) -> dict[RunId, Usage]:
        used = await asyncio.to_thread(by_namespace)
        containers = {
            container_run.id: container_run.last_container
            for container_run in self._container_runs.values()
            if isinstance(container_run.state, Running)
        }
        return {
            container_run: used[container.pid_namespace]
            for container_run, container in containers.items()
            if container and container.pid_namespace in used
        }

    async def _prepare(self, pod: Pod) -> str:
        if pod.uses_host_network and not self._deps.allows_host_network:
            raise Rejected(
                "HostNetworkNotAllowed",
                "Pods may not share the network of this node: remove spec.hostNetwork, or run `skysail down` and "
                f"`{host_network.SETTING}=true skysail up`.",
            )
        async with self._lock(pod.uid):
            if pod.uid in self._pods:
                self._pods[pod.uid].set_hosts(pod.hosts)
                return self._pods[pod.uid].address
            deps = self._deps
            pod_sandbox = PodSandbox(
                pod,
                deps.volume_paths,
                deps.runs / pod.uid,
                name_server=deps.name_server,
                ids=deps.isolation.allocate(),
            )
            try:
                with _translate_errors("The pod sandbox cannot be created"):
                    await asyncio.to_thread(pod_sandbox.make)
                    pod_sandbox.connect(await deps.network.attach(pod))
            except BaseException:
                try:
                    await self._remove(pod_sandbox)
                finally:
                    deps.isolation.release(pod_sandbox.ids)
                raise
            self._pods[pod.uid] = pod_sandbox
            if pod_sandbox.volumes.have_limits or pod.ephemeral_storage is not None:
                self._begin(self._watch_storage(pod_sandbox))
            return pod_sandbox.address

    async def _watch_storage(self, pod_sandbox: PodSandbox) -> None:
        """Evict the pod when it exceeds one of its storage limits, checked periodically as by a kubelet."""
        while self._pods.get(pod_sandbox.pod.uid) is pod_sandbox and not pod_sandbox.eviction:
            files = await self._files(pod_sandbox.pod.uid)
            message = await asyncio.to_thread(storage_limits.excess, pod_sandbox.pod, pod_sandbox.volumes, files)
            if message:
                await self.evict(pod_sandbox.pod.uid, message)
            await asyncio.sleep(_POLL_SECONDS)

    async def evict(self, pod: str, message: str) -> None:
        """Stop the pod and delete its files. Returns when both are done. Does nothing for unknown pods."""
        pod_sandbox = self._pods.get(pod)
        if pod_sandbox is None:
            return
        pod_sandbox.eviction = message
        await asyncio.gather(
            *(
                container_run.evict(message)
                for container_run in self._container_runs.values()
                if container_run.id.pod == pod
            )
        )
        # Delete at once: if the disk is too full for etcd to store the pod's end, the files would stay for ever.
        await asyncio.to_thread(pod_sandbox.volumes.discard)

    async def disk_usage(self) -> dict[str, PodDisk]:
        """Return the usage of each pod that can be evicted, by UID."""
        found = {}
        for uid, pod_sandbox in list(self._pods.items()):
            if not pod_sandbox.eviction:
                files = await self._files(uid)
                found[uid] = await asyncio.to_thread(_usage, pod_sandbox, files)
        return found

    async def _files(self, uid: str) -> tuple[ContainerFiles, ...]:
        """Return the files of each container of a pod, from its latest run. All runs share one log."""
        container_runs = [
            container_run for container_run in self._container_runs.values() if container_run.id.pod == uid
        ]
        latest = {
            container_run.id.container: container_run
            for container_run in sorted(container_runs, key=lambda container_run: container_run.id.number)
        }
        containers = {
            name: container_run.last_container
            for name, container_run in latest.items()
            if isinstance(container_run.state, Running)
        }
        spaces = {
            name: container.pid_namespace
            for name, container in containers.items()
            if container and container.pid_namespace is not None
        }
        deleted = await asyncio.to_thread(deleted_files, set(spaces.values())) if spaces else {}
        return tuple(
            replace(container_run.files, deleted=deleted.get(spaces.get(name, 0), DiskUsage()))
            for name, container_run in latest.items()
        )

    async def _release(self, uid: str) -> None:
        async with self._lock(uid):
            pod_sandbox = self._pods.pop(uid, None)  # first, so that no more containers are started in it
            if pod_sandbox is not None:
                try:
                    await self._empty(pod_sandbox)
                except BaseException:
                    self._pods[uid] = pod_sandbox  # listed again, so that the node asks again
                    raise
            self._past = {run: end for run, end in self._past.items() if run.pod != uid}
            await asyncio.to_thread(self._deps.journal.forget, uid)

    async def _empty(self, pod_sandbox: PodSandbox) -> None:
        container_runs = [
            container_run
            for container_run in self._container_runs.values()
            if container_run.id.pod == pod_sandbox.pod.uid
        ]
        await asyncio.gather(*(container_run.stop(0) for container_run in container_runs))
        await self._remove(pod_sandbox)
        self._deps.isolation.release(pod_sandbox.ids)
        for container_run in container_runs:
            self._container_runs.pop(container_run.id, None)
            self._change_feed.publish(container_run.id)

    async def _remove(self, pod_sandbox: PodSandbox) -> None:
        await self._deps.network.detach(pod_sandbox.pod.uid)
        await asyncio.to_thread(pod_sandbox.volumes.remove)
        await asyncio.to_thread(remove_tree, pod_sandbox.folder, ignore_errors=True)

    def _forget(self, run: RunId) -> None:
        """Forget a rejected run, which may be retried, for example after its image was added."""
        self._container_runs.pop(run, None)

    def _forget_before(self, run: RunId) -> None:
        """Forget all ended runs but the previous one, because each keeps its output."""
        for earlier in [attempt for attempt in self._container_runs.values() if isinstance(attempt.state, Ended)]:
            was = earlier.id
            if (was.pod, was.container) == (run.pod, run.container) and was.number < run.number - 1:
                del self._container_runs[was]

    def _warn(self, run: RunId, container: Container) -> None:
        """Record once, for the first pod, that limits are not enforced."""
        limits = container.limits
        if self._has_warned or self._deps.groups.are_enforced or (limits.memory is None and limits.cpu is None):
            return
        self._has_warned = True
        self._deps.record(run, EventReason.LIMITS_IGNORED, _NO_LIMITS)

    def _sandbox(self, uid: str) -> PodSandbox:
        if uid not in self._pods:
            raise Gone(f"Pod {uid} not found.")
        return self._pods[uid]

    def _known(self, run: RunId) -> ContainerRun:
        if run not in self._container_runs:
            raise Gone(f"Run {run.number} of container {run.container} not found.")
        return self._container_runs[run]

    def _lock(self, uid: str) -> asyncio.Lock:
        return self._locks.setdefault(uid, asyncio.Lock())

    async def _to_completion(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to completion, even if the caller is cancelled: nothing is left half done."""
        return await asyncio.shield(self._begin(work))

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _usage(pod_sandbox: PodSandbox, files: tuple[ContainerFiles, ...]) -> PodDisk:
    ephemeral = sum((container.usage() for container in files), pod_sandbox.volumes.usage())
    return PodDisk(ephemeral, pod_sandbox.volumes.persistent_usage())


@contextmanager
def _translate_errors(what: str) -> Iterator[None]:
    """Raise ProviderError for an OSError, such as a full disk, without the machine's paths."""
    try:
        yield
    except OSError as error:
        message = "Is the disk full, or is a path of a volume both a file and a folder?"
        raise ProviderError(f"{what}: {error.strerror}. {message}") from error
