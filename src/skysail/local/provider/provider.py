"""`cloud.contract.Provider` on this machine.

Nothing survives the process that made this object but its journal: programs die with it, and the next one can tell what
became of them, so its listing is always complete.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from msgspec.structs import replace

from skysail.base.names import Event
from skysail.cloud.change_feed import Changes
from skysail.cloud.errors import Gone, ProviderError, Refused
from skysail.cloud.provider import (
    Abilities,
    Container,
    Ended,
    File,
    Line,
    Listing,
    Output,
    Pod,
    RunId,
    Running,
    Session,
    State,
    Usage,
)
from skysail.local.bubblewrap.container import NotStarted
from skysail.local.bubblewrap.rootfs import CAPABILITIES, IGNORED_CAPABILITIES
from skysail.local.network import host_network
from skysail.local.provider import storage_limits
from skysail.local.provider.container_run import Run
from skysail.local.provider.dependencies import Surroundings
from skysail.local.provider.disk_monitor import PodDisk
from skysail.local.provider.pod_sandbox import Place
from skysail.local.provider.process_usage import by_namespace
from skysail.local.provider.sessions import Attached, Exec, SocketLine
from skysail.local.provider.storage_limits import ContainerFiles
from skysail.local.storage.disk_usage import DiskUsage, deleted_files

T = TypeVar("T")

_ABILITIES = Abilities(
    exec=True,
    attach=True,
    port_forward=True,
    volumes=True,
    several_containers=True,
    host_network_setting=host_network.SETTING,
    capabilities=frozenset(CAPABILITIES),
    ignored_capabilities=IGNORED_CAPABILITIES,
    user_namespaces=True,
    stats=True,
    billable=False,
)
_LOOK_SECONDS = 5.0
_NO_LIMITS = "Limits of memory and CPU are not enforced on this node: start Skysail as root if they must be."


class LocalProvider:
    """All methods belong to one event loop."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._pods: dict[str, Place] = {}
        self._runs: dict[RunId, Run] = {}
        self._past = around.journal.past(around.now())
        self._changes: Changes[RunId] = Changes()
        self._has_warned = False
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()
        if around.disk is not None:
            around.disk.register(self)

    @property
    def name(self) -> str:
        return "local"

    @property
    def abilities(self) -> Abilities:
        return replace(
            _ABILITIES,
            host_network=self._around.allows_host_network,
            supplemental_groups=self._around.isolation.has_ranges,
        )

    async def close(self) -> None:
        """Release every pod: for a process that ends in order."""
        self._around.journal.close()
        await asyncio.gather(*(self.release(uid) for uid in list(self._pods)))
        self._around.groups.close()

    async def prepare(self, pod: Pod) -> str:
        return await self._to_its_end(self._prepare(pod))

    async def start(self, run: RunId, container: Container) -> None:
        if run in self._past:
            return
        known = self._runs.get(run)
        if known is None:
            place = self._place(run.pod)
            known = Run(run, container, place, self._around)
            self._runs[run] = known
            self._drop_before(run)
            self._warn(run, container)
            known.begin(changed=lambda: self._changes.tell(run), failed=lambda: self._drop(run))
            if place.eviction:
                await known.evict(place.eviction)
                return
        await known.started()

    async def stop(self, run: RunId, grace: float) -> None:
        known = self._runs.get(run)
        if known is None:
            raise Gone(f"There is no run {run.number} of container {run.container}.")
        self._begin(known.stop(grace))

    async def release(self, pod: str) -> None:
        await self._to_its_end(self._release(pod))

    async def list(self) -> Listing:
        states = {run.id: run.state for run in self._runs.values() if run.state is not None}
        return Listing(runs={**self._past, **states}, pods={uid: place.address for uid, place in self._pods.items()})

    def changes(self) -> AsyncIterator[RunId]:
        return self._changes.follow()

    async def state(self, run: RunId) -> State | None:
        known = self._runs.get(run)
        return known.state if known else self._past.get(run)

    async def output(self, run: RunId) -> AsyncIterator[Output]:
        known = self._known(run)
        if known.state is None:
            await known.started()
        if known.written_by is None:
            return
        async for piece in known.written_by.tape.all():
            yield piece

    async def update(self, pod: str, volume: str, files: tuple[File, ...]) -> None:
        async with self._lock(pod):
            with _told(f"The files of volume {volume} cannot be written"):
                await asyncio.to_thread(self._place(pod).volumes.update, volume, files)

    async def exec(self, run: RunId, command: tuple[str, ...], *, stdin: bool, tty: bool) -> Session:
        try:
            return Exec(await self._known(run).box.exec(command, stdin=stdin, terminal=tty))
        except NotStarted as error:
            raise Refused("ExecFailed", f"{error}.") from error

    async def attach(self, run: RunId, *, stdin: bool) -> Session:
        return Attached(self._known(run), stdin=stdin)

    async def dial(self, pod: str, port: int, *, from_outside: bool = False) -> Line:
        address = self._place(pod).address
        try:
            if from_outside:
                return SocketLine(*await asyncio.open_connection(address, port))
            line = await self._around.network.dial(address, port)
        except OSError as error:
            raise Refused("NotListening", f"Nothing in the pod answers on port {port}: {error.strerror}.") from error
        return SocketLine(*await asyncio.open_connection(sock=line))

    async def usage(self) -> dict[RunId, Usage]:
        used = await asyncio.to_thread(by_namespace)
        boxes = {run.id: run.written_by for run in self._runs.values() if isinstance(run.state, Running)}
        return {run: used[box.pid_namespace] for run, box in boxes.items() if box and box.pid_namespace in used}

    async def _prepare(self, pod: Pod) -> str:
        if pod.uses_host_network and not self._around.allows_host_network:
            raise Refused(
                "HostNetworkNotAllowed",
                "Pods do not share the network of this node: drop spec.hostNetwork, or `skysail down` and "
                f"`{host_network.SETTING}=true skysail up`.",
            )
        async with self._lock(pod.uid):
            if pod.uid in self._pods:
                return self._pods[pod.uid].address
            around = self._around
            place = Place(
                pod,
                around.places,
                around.runs / pod.uid,
                name_server=around.name_server,
                ids=around.isolation.allocate(),
            )
            try:
                with _told("The place of the pod cannot be made"):
                    await asyncio.to_thread(place.make)
                    place.connect(await around.network.attach(pod))
            except BaseException:
                await self._take_away(place)
                raise
            self._pods[pod.uid] = place
            if place.volumes.have_limits or pod.ephemeral_storage is not None:
                self._begin(self._watch_storage(place))
            return place.address

    async def _watch_storage(self, place: Place) -> None:
        """Evict the pod when it uses more than one of its limits, as a kubelet does: seen from time to time."""
        while self._pods.get(place.pod.uid) is place and not place.eviction:
            files = await self._files(place.pod.uid)
            why = await asyncio.to_thread(storage_limits.excess, place.pod, place.volumes, files)
            if why:
                await self.evict(place.pod.uid, why)
            await asyncio.sleep(_LOOK_SECONDS)

    async def evict(self, pod: str, why: str) -> None:
        """End the pod and free its files. Returns when both are done. Unknown pods are fine."""
        place = self._pods.get(pod)
        if place is None:
            return
        place.eviction = why
        await asyncio.gather(*(run.evict(why) for run in self._runs.values() if run.id.pod == pod))
        # At once: where etcd has no room to store the pod's end, its files would stay for ever.
        await asyncio.to_thread(place.volumes.discard)

    async def disk_usage(self) -> dict[str, PodDisk]:
        """Return the usage of each pod that can be evicted, by UID."""
        found = {}
        for uid, place in list(self._pods.items()):
            if not place.eviction:
                files = await self._files(uid)
                found[uid] = await asyncio.to_thread(_usage, place, files)
        return found

    async def _files(self, uid: str) -> tuple[ContainerFiles, ...]:
        """Return the files of each container of a pod; of its runs, the log is the same for all."""
        runs = [run for run in self._runs.values() if run.id.pod == uid]
        latest = {run.id.container: run for run in sorted(runs, key=lambda run: run.id.number)}
        boxes = {name: run.written_by for name, run in latest.items() if isinstance(run.state, Running)}
        spaces = {name: box.pid_namespace for name, box in boxes.items() if box and box.pid_namespace is not None}
        deleted = await asyncio.to_thread(deleted_files, set(spaces.values())) if spaces else {}
        return tuple(
            replace(run.files, deleted=deleted.get(spaces.get(name, 0), DiskUsage())) for name, run in latest.items()
        )

    async def _release(self, uid: str) -> None:
        async with self._lock(uid):
            place = self._pods.pop(uid, None)  # first, so that nothing more is started in it
            if place is not None:
                await self._empty(place)
            self._past = {run: end for run, end in self._past.items() if run.pod != uid}
            await asyncio.to_thread(self._around.journal.forget, uid)

    async def _empty(self, place: Place) -> None:
        runs = [run for run in self._runs.values() if run.id.pod == place.pod.uid]
        await asyncio.gather(*(run.stop(0) for run in runs))
        await self._take_away(place)
        for run in runs:
            self._runs.pop(run.id, None)
            self._changes.tell(run.id)

    async def _take_away(self, place: Place) -> None:
        await self._around.network.detach(place.pod.uid)
        await asyncio.to_thread(place.volumes.remove)
        await asyncio.to_thread(shutil.rmtree, place.folder, ignore_errors=True)
        self._around.isolation.release(place.ids)

    def _drop(self, run: RunId) -> None:
        """It never came to be, and may be tried again, for example when the image was added."""
        self._runs.pop(run, None)

    def _drop_before(self, run: RunId) -> None:
        """Of the runs before, one is enough to know. Each keeps what it printed."""
        for earlier in [known for known in self._runs.values() if isinstance(known.state, Ended)]:
            was = earlier.id
            if (was.pod, was.container) == (run.pod, run.container) and was.number < run.number - 1:
                del self._runs[was]

    def _warn(self, run: RunId, container: Container) -> None:
        """Said once: it is the same for every pod."""
        limits = container.limits
        if self._has_warned or self._around.groups.are_enforced or (limits.memory is None and limits.cpu is None):
            return
        self._has_warned = True
        self._around.tell(run, Event.LIMITS_IGNORED, _NO_LIMITS)

    def _place(self, uid: str) -> Place:
        if uid not in self._pods:
            raise Gone(f"There is no pod {uid} here.")
        return self._pods[uid]

    def _known(self, run: RunId) -> Run:
        if run not in self._runs:
            raise Gone(f"There is no run {run.number} of container {run.container}.")
        return self._runs[run]

    def _lock(self, uid: str) -> asyncio.Lock:
        return self._locks.setdefault(uid, asyncio.Lock())

    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """A caller who stops waiting leaves nothing half done."""
        return await asyncio.shield(self._begin(work))

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _usage(place: Place, files: tuple[ContainerFiles, ...]) -> PodDisk:
    ephemeral = sum((container.usage() for container in files), place.volumes.usage())
    return PodDisk(ephemeral, place.volumes.persistent_usage())


@contextmanager
def _told(what: str) -> Iterator[None]:
    """A machine's own trouble, such as a full disk, as the contract knows it; without the machine's paths."""
    try:
        yield
    except OSError as error:
        why = "Is the disk full, or is a path of a volume both a file and a folder?"
        raise ProviderError(f"{what}: {error.strerror}. {why}") from error
