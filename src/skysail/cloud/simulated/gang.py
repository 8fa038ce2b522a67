"""Program of a gang: the programs of its ranks, which start together, share a network, and end together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Literal, Protocol

import msgspec

from skysail.base.names import Reason
from skysail.cloud.account import Member
from skysail.cloud.errors import Rejected
from skysail.cloud.provider import Container, Ended, Output
from skysail.cloud.simulated.programs import Program, ProviderProgram

# Grace of the other ranks after one has failed.
_GRACE_SECONDS = 10.0
_MASTER_PORT = "29500"
_MAX_PENDING = 256


class RankRecorder(Protocol):
    """Records the exit of one rank."""

    def __call__(self, rank: int, exit_: Ended) -> None: ...


class GangProgram(Program):
    """All ranks as one program, which exits like the rank that failed first. `is_one_pod`: copies behind one pod."""

    def __init__(
        self, ranks: Sequence[Program], *, record: RankRecorder, now: Callable[[], float], is_one_pod: bool = False
    ) -> None:
        self.ranks = tuple(ranks)
        self.is_one_pod = is_one_pod
        self._record = record
        self._now = now
        self._first_failure: tuple[int, Ended] | None = None
        self._is_stopped = False
        self._failed_by_itself = False

    async def start(self) -> None:
        """Start all ranks. If one cannot start, the others are stopped, and its error is raised."""
        real = [program for program in self.ranks if isinstance(program, ProviderProgram)]
        if real:
            await _connect(real, is_one_pod=self.is_one_pod)
        results = await asyncio.gather(*(program.start() for program in self.ranks), return_exceptions=True)
        for rank, result in enumerate(results):
            if isinstance(result, BaseException):
                await self.stop(0.0)
                if isinstance(result, Rejected):
                    raise Rejected(result.reason, f"Rank {rank} cannot start: {result}") from result
                raise result

    async def wait(self) -> Ended:
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(self._wait(rank)) for rank in range(len(self.ranks))]
        exits = [task.result() for task in waiting]
        if self._first_failure is None:
            return max(exits, key=lambda exit_: exit_.ended)
        rank, exit_ = self._first_failure
        ended = max(each.ended for each in exits)
        message = f"Rank {rank} ended with exit code {exit_.code}. {exit_.message}".strip()
        return msgspec.structs.replace(exit_, message=message, ended=ended)

    async def stop(self, grace: float) -> None:
        self._is_stopped = True
        await asyncio.gather(*(program.stop(grace) for program in self.ranks))

    async def remove_sandbox(self) -> None:
        await asyncio.gather(*(program.remove_sandbox() for program in self.ranks))

    async def output(self) -> AsyncIterator[Output]:
        """Yield the output of all ranks, each line with the number of its rank in front."""
        queue: asyncio.Queue[Output | None] = asyncio.Queue(_MAX_PENDING)
        tasks = [asyncio.create_task(_copy_lines(rank, program, queue)) for rank, program in enumerate(self.ranks)]
        try:
            ended = 0
            while ended < len(tasks):
                piece = await queue.get()
                if piece is None:
                    ended += 1
                else:
                    yield piece
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait(self, rank: int) -> Ended:
        exit_ = await self.ranks[rank].wait()
        if self._failed_by_itself and exit_.code != 0 and exit_.reason == "Error":
            exit_ = msgspec.structs.replace(exit_, reason=Reason.GANG_FAILED.value)
        self._record(rank, exit_)
        if exit_.code != 0 and self._first_failure is None:
            self._first_failure = (rank, exit_)
            self._failed_by_itself = not self._is_stopped
            others = (program for number, program in enumerate(self.ranks) if number != rank)
            await asyncio.gather(*(program.stop(_GRACE_SECONDS) for program in others))
        return exit_


async def _copy_lines(rank: int, program: Program, queue: asyncio.Queue[Output | None]) -> None:
    """Put whole lines into the queue, and None at the end."""
    rests: dict[Literal["stdout", "stderr"], bytes] = {"stdout": b"", "stderr": b""}
    prefix, last = f"[{rank}] ".encode(), 0.0
    try:
        async for piece in program.output():
            *lines, rests[piece.stream] = (rests[piece.stream] + piece.data).split(b"\n")
            for line in lines:
                await queue.put(Output(piece.stream, piece.at, prefix + line + b"\n"))
            last = piece.at
        for stream, rest in rests.items():
            if rest:
                await queue.put(Output(stream, last, prefix + rest))
    finally:
        await queue.put(None)


async def _connect(programs: Sequence[ProviderProgram], *, is_one_pod: bool) -> None:
    """Give each rank the addresses of all ranks. Copies of one pod have no names of their own."""
    addresses = await asyncio.gather(*(program.prepare() for program in programs))
    pods = [program.member.pod for program in programs]
    hosts = tuple((address, () if is_one_pod else pod.dns_names) for address, pod in zip(addresses, pods, strict=True))
    for rank, program in enumerate(programs):
        member = member_of_gang(program.member, rank, hosts)
        program.member = _with_placeholders(member, rank, len(hosts)) if is_one_pod else member


def member_of_gang(member: Member, rank: int, hosts: tuple[tuple[str, tuple[str, ...]], ...]) -> Member:
    """Return the member with the names of the other ranks, and with the variables that find rank 0."""
    others = tuple(entry for number, entry in enumerate(hosts) if number != rank and entry[1])
    pod = msgspec.structs.replace(member.pod, hosts=(*member.pod.hosts, *others))
    return Member(pod, _with_rank(member.container, rank, len(hosts), hosts[0][0]))


def _with_placeholders(member: Member, rank: int, size: int) -> Member:
    """Return the member with its rank in the words of its command, which are the same for all copies."""

    def filled(words: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(word.replace("{rank}", str(rank)).replace("{world_size}", str(size)) for word in words)

    container = member.container
    return Member(
        member.pod,
        msgspec.structs.replace(container, command=filled(container.command), args=filled(container.args)),
    )


def _with_rank(container: Container, rank: int, size: int, master: str) -> Container:
    """Set the variables of a rank. Only MASTER_ADDR replaces the container's own value, which names a pod."""
    defaults = {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "NODE_RANK": str(rank),
        "NNODES": str(size),
        "MASTER_PORT": _MASTER_PORT,
    }
    env = {**defaults, **dict(container.env), "MASTER_ADDR": master}
    return msgspec.structs.replace(container, env=tuple(env.items()))
