"""Instances of a simulated account: the ledger records all of them, and this module runs those that have not ended."""

from __future__ import annotations

import asyncio
import functools
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from skysail.cloud.account import Instance, LaunchSpec, Member
from skysail.cloud.change_feed import ChangeFeed
from skysail.cloud.provider import CloudVolume, Ended, PersistentDisk, Provider, Volume
from skysail.cloud.simulated import billing
from skysail.cloud.simulated.gang import GangProgram
from skysail.cloud.simulated.ledger import Ledger, Row, Verb
from skysail.cloud.simulated.lifecycle import InstanceLifecycle, Timing, failed, lost
from skysail.cloud.simulated.programs import FakeProgram, Program, ProviderProgram
from skysail.cloud.simulated.vendors import Vendor

IGNORED = "ignored"
# Namespace of the pod UIDs of instances: they must differ from those of Kubernetes pods at the same provider.
_PODS = uuid.UUID("5b0c4a1e-7d0f-4e0b-9a39-0d6f6b6f2d11")

log = logging.getLogger(__name__)


class InstanceManager:
    """Runs one task per instance. Must be created inside the running event loop."""

    def __init__(self, vendor: Vendor, ledger: Ledger, *, now: Callable[[], float], provider: Provider | None) -> None:
        self.lifecycles: dict[str, InstanceLifecycle] = {}
        self._vendor = vendor
        self._ledger = ledger
        self._now = now
        self._provider = provider
        self._change_feed: ChangeFeed[str] = ChangeFeed()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._resume()

    def make(self, begin: Row, spec: LaunchSpec | None) -> Instance:
        """Create an instance. `begin` has all fields except id and time.

        Without a launch spec, the instance has no real program and runs until it is terminated.
        """
        parts = ("simulated", self._vendor.name, self._ledger.mark, str(len(self._ledger.beginnings) + 1))
        name = "-".join(filter(None, parts))
        begin = msgspec.structs.replace(begin, at=self._now(), instance=name)
        self._ledger.write(begin)
        self._change_feed.publish(begin.claim)
        self._start(begin, self._program(begin, spec))
        return self._ledger.instances[name]

    def record(
        self, instance: str, verb: Verb, *, exit_: Ended | None = None, note: str = "", rank: int | None = None
    ) -> None:
        begin, now = self._ledger.beginnings[instance], self._now()
        row = Row(
            at=now,
            verb=verb,
            instance=instance,
            claim=begin.claim,
            cluster=begin.cluster,
            usd=billing.cost(begin, now) if verb == "ended" else 0.0,
            exit=exit_,
            note=note,
            rank=rank,
        )
        self._ledger.write(row)
        self._change_feed.publish(begin.claim)

    def changes(self) -> AsyncIterator[str]:
        """Yield the claim of each instance that changes."""
        return self._change_feed.subscribe()

    def find(self, instance: str) -> Instance | None:
        """Return the instance. Returns None if it does not exist, is still hidden, or ended long ago."""
        previous = self._ledger.instances.get(instance)
        return previous if previous and self._is_visible(previous) else None

    def listed(self) -> tuple[Instance, ...]:
        return tuple(
            previous for previous in self._ledger.instances.values() if self._is_visible(previous, in_listing=True)
        )

    async def end(self, instance: str, grace: float, *, delay: float = 0.0) -> None:
        """Ask an instance to end. An instance without a task has nothing left to stop, so it ends at once."""
        lifecycle = self.lifecycles.get(instance)
        if lifecycle is None:
            self._abandon(instance, "Nothing is left of the instance at the simulated cloud.")
        else:
            await lifecycle.end(grace, delay=delay)

    async def close(self) -> None:
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _resume(self) -> None:
        """Resume instances of the previous process: fake programs continue, real programs are lost."""
        stopping = {row.instance for row in self._ledger.rows if row.verb == "end asked" and row.note != IGNORED}
        for previous in [previous for previous in self._ledger.instances.values() if previous.state != "ended"]:
            begin = self._ledger.beginnings[previous.id]
            if self._provider and not _is_injected(begin):
                if previous.exit is None:
                    self.record(previous.id, "exited", exit_=lost(self._now()))
                self.record(previous.id, "ended")
                continue
            lifecycle = self._start(begin, self._resumed(begin, previous))
            if previous.id in stopping:
                lifecycle.request_stop()

    def _start(self, begin: Row, program: Program) -> InstanceLifecycle:
        requested = begin.options
        timing = Timing(
            start=self._vendor.start if requested.start is None else requested.start,
            end=requested.end,
            deadline=begin.seconds,
            preempt=requested.preempt,
            lingers=self._vendor.lingers,
        )
        record = functools.partial(self.record, begin.instance)
        lifecycle = InstanceLifecycle(
            self._ledger.instances[begin.instance], program, timing, record=record, now=self._now
        )
        self.lifecycles[begin.instance] = lifecycle
        task = asyncio.create_task(lifecycle.run())
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._task_done, begin.instance))
        return lifecycle

    def _task_done(self, instance: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._is_closing:
            return
        error = None if task.cancelled() else task.exception()
        task.get_loop().call_later(self._vendor.remembers, self.lifecycles.pop, instance, None)
        if self._ledger.instances[instance].state != "ended":
            log.error(
                "simulated instance task failed, ending the instance", extra={"instance": instance}, exc_info=error
            )
            release = asyncio.create_task(self.lifecycles[instance].program.remove_sandbox())
            self._tasks.add(release)
            release.add_done_callback(self._tasks.discard)
            self._abandon(instance, "The simulated cloud lost the instance: delete the pod and create it again.")

    def _abandon(self, instance: str, message: str) -> None:
        """Record the end of an instance that has no task any more, so that billing stops."""
        if self._ledger.instances[instance].exit is None:
            self.record(instance, "exited", exit_=failed(self._now(), message))
        self.record(instance, "ended")

    def _program(self, begin: Row, spec: LaunchSpec | None) -> Program:
        if self._provider is None or spec is None:
            return self._as_gang(begin, [self._fake_program(begin, rank) for rank in range(begin.members)])
        members = [
            _own_pod(member, begin.instance, rank, self._vendor.name)
            for rank, member in enumerate(spec.members * spec.replicas)
        ]
        return self._as_gang(begin, [ProviderProgram(self._provider, member, self._now) for member in members])

    def _resumed(self, begin: Row, previous: Instance) -> Program:
        """Return the fake programs of an earlier process. Ranks that have exited wait for nothing."""
        programs = [self._fake_program(begin, rank) for rank in range(begin.members)]
        if previous.started is not None:
            for program in programs:
                program.resume(previous.started)
        return self._as_gang(begin, programs)

    def _as_gang(self, begin: Row, programs: Sequence[Program]) -> Program:
        if len(programs) == 1:
            return programs[0]
        record = functools.partial(self._rank_exited, begin.instance)
        return GangProgram(programs, record=record, now=self._now, is_one_pod=begin.is_one_pod)

    def _rank_exited(self, instance: str, rank: int, exit_: Ended) -> None:
        if self._ledger.instances[instance].ranks[rank].exit is None:
            self.record(instance, "exited", exit_=exit_, rank=rank)

    def _fake_program(self, begin: Row, rank: int = 0) -> FakeProgram:
        requested = begin.options
        seconds = self._vendor.run if requested.run is None else requested.run
        fails = requested.fail_rank is None or requested.fail_rank == rank
        return FakeProgram(
            begin.instance if begin.members == 1 else f"Rank {rank} of {begin.instance}",
            seconds=None if _is_injected(begin) else seconds,
            code=requested.exit if fails else 0,
            now=self._now,
        )

    def _is_visible(self, instance: Instance, *, in_listing: bool = False) -> bool:
        """Return whether the cloud shows the instance. Listings show it later than a direct lookup."""
        now, requested = self._now(), self._ledger.beginnings[instance.id].options
        lag = self._vendor.lag if requested.lag is None else requested.lag
        hidden = max(requested.hidden, lag) if in_listing else requested.hidden
        is_forgotten = instance.ended is not None and now >= instance.ended + self._vendor.remembers
        return not is_forgotten and now >= instance.created + hidden


def _own_pod(member: Member, instance: str, rank: int, cloud: str) -> Member:
    """Return the member with a pod UID of this instance, and with disks of the provider for volumes of the cloud."""
    uid = str(uuid.uuid5(_PODS, instance if rank == 0 else f"{instance}/{rank}"))
    volumes = tuple(
        Volume(volume.name, PersistentDisk(disk_name(cloud, volume.source.id)))
        if isinstance(volume.source, CloudVolume)
        else volume
        for volume in member.pod.volumes
    )
    return Member(msgspec.structs.replace(member.pod, uid=uid, volumes=volumes), member.container)


def disk_name(cloud: str, volume: str) -> str:
    """Return the name of the provider's disk for a volume of the cloud."""
    return f"{cloud}-{volume}"


def _is_injected(begin: Row) -> bool:
    return begin.seconds is None
