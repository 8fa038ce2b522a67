"""RunPod's account in the simulation, at its wire: the stand-in on a socket, and every request of a process an effect.

Each process has an account of its own, whose memory dies with the process. The stand-in outlives all of them.
"""

from __future__ import annotations

import asyncio
import functools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from skysail.base import unix_sockets
from skysail.claims.requirements.cloud_requirements import OfferLimits
from skysail.cloud.output_buffer import OutputBuffer
from skysail.cloud.provider import Features, Output, Running
from skysail.cloud.runpod import api, marks
from skysail.cloud.runpod.account import KEY_FIELD, TIMINGS, RunPodAccount
from skysail.cloud.runpod.client import Endpoint
from skysail.cloud.runpod.stand_in.faults import FaultScript
from skysail.cloud.runpod.stand_in.server import StandInServer
from skysail.cloud.runpod.stand_in.service import StandInOptions, StandInService
from skysail.cloud.simulated.ledger import Ledger
from tests.simulation.clouds import FaultyCloud
from tests.simulation.faults import Effect
from tests.simulation.offload import STRANGER, CloudFixture, CloudOperator, wall
from tests.simulation.spending import Administrator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from skysail.cloud.account import Instance, LaunchSpec
    from skysail.cloud.provider import Container, Ended, Pod, RunId
    from skysail.cloud.runpod.answers import Reply
    from skysail.cloud.runpod.stand_in.faults import Fault
    from skysail.cloud.simulated.ledger import Row
    from tests.simulation.operator_process import Process
    from tests.simulation.runner import Bill
    from tests.simulation.world import World

_KEY = "rpa_simulated"
# A tick that is longer than a real one: hours of virtual time pass in each run.
_TIMINGS = replace(TIMINGS, poll_interval=30.0)
_TERMINATED = 143

RunPodAdministrator = functools.partial(Administrator, providers=["runpod"])


class ScriptedProvider:
    """Containers that run as `SKYSAIL_SIMULATE` says, such as `run=60s,exit=37`, with the wrapper's lines of output."""

    name = "scripted"
    features = Features()

    def __init__(self) -> None:
        self._outputs: dict[RunId, OutputBuffer] = {}
        self._nonces: dict[RunId, str] = {}
        self._programs: dict[RunId, asyncio.Task[None]] = {}
        self._never = asyncio.Event()

    async def create_sandbox(self, pod: Pod) -> str:
        return ""

    async def start(self, run: RunId, container: Container) -> None:
        env = dict(container.env)
        options = dict(row.split("=") for row in env.get("SKYSAIL_SIMULATE", "").split(",") if row)
        self._outputs[run] = OutputBuffer()
        self._nonces[run] = env.get(marks.NONCE, "")
        self._programs[run] = asyncio.create_task(self._work(run, _seconds(options.get("run", "0s")), options))

    async def _work(self, run: RunId, seconds: float, options: dict[str, str]) -> None:
        await self._say(run, f"skysail-start {self._nonces[run]}\n")
        await asyncio.sleep(seconds)
        await self._exit(run, int(options.get("exit", "0")))

    async def _exit(self, run: RunId, code: int) -> None:
        await self._say(run, f"\nskysail-exit {self._nonces[run]} {code} exited \n")

    async def _say(self, run: RunId, text: str) -> None:
        await self._outputs[run].put(Output("stdout", 0.0, text.encode()))

    async def remove_sandbox(self, pod: str) -> None:
        for run, output in self._outputs.items():
            if run.pod == pod:
                self._programs[run].cancel()
                output.end()

    async def changes(self) -> AsyncIterator[RunId]:
        await self._never.wait()
        yield  # type: ignore[misc]  # never reached: the wrapper keeps its container

    async def state(self, run: RunId) -> Running | Ended:
        return Running(0.0)

    def output(self, run: RunId) -> AsyncIterator[Output]:
        return self._outputs[run].replay()

    async def exec(self, run: RunId, command: tuple[str, ...], *, stdin: bool, tty: bool) -> _Signalled:
        """The only command that an account runs by itself is a signal to the program."""
        assert "kill -TERM" in command[-1]
        if not self._programs[run].done():
            self._programs[run].cancel()
            await self._exit(run, _TERMINATED)
        return _Signalled()


class _Signalled:
    """Session of a command that has succeeded without output."""

    async def output(self) -> AsyncIterator[Output]:
        for piece in ():
            yield piece

    async def wait(self) -> int:
        return 0

    async def kill(self) -> None: ...

    async def close(self) -> None: ...


class RunPodFixture(CloudFixture):
    """The stand-in, with a pod of somebody else in its account. `script` are its faults.

    `later` are scripts that replace it after so many seconds.
    """

    options = StandInOptions(start=20.0, quota=1_000_000)
    script: tuple[Fault, ...] = ()
    later: tuple[tuple[float, tuple[Fault, ...]], ...] = ()
    # Pods that the service stops, or takes away, so many seconds after their creation.
    stops_after = 0.0
    vanish_after = 0.0

    def __init__(self) -> None:
        self.logs = tempfile.TemporaryDirectory(prefix="skysail-logs-")
        self.ledger = Ledger()
        # Rows at the end of the run: the stand-in ends all pods when it is closed.
        self.final_rows: list[Row] = []
        service = StandInService(
            ScriptedProvider(),  # type: ignore[arg-type]  # as much of a provider as the stand-in needs
            self.ledger,
            now=wall,
            options=self.options,
            script=FaultScript(self.script),
        )
        self.server = StandInServer(service, _KEY)
        self._socket = Path(self.logs.name) / "runpod.sock"
        self._tasks = [asyncio.create_task(self.server.start(unix_sockets.listen(self._socket)))]
        self._tasks += [asyncio.create_task(self._change(*row)) for row in self.later]
        mark = marks.Mark(STRANGER, "theirs", "nonce")
        self.foreign = service.create(_cpu_pod(marks.env(mark, 3600.0))).id
        created = service.create
        service.create = lambda *given: self._created(created(*given))  # type: ignore[method-assign]

    def bill(self, world: World) -> Bill:
        self.final_rows = list(self.ledger.rows)
        return super().bill(world)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.server.close()
        self.logs.cleanup()

    def open_account(self, cluster: str) -> RunPodAccount:
        """Return the account of one process."""
        endpoint, clock = Endpoint(f"unix:{self._socket}"), asyncio.get_running_loop().time
        return RunPodAccount(endpoint, {KEY_FIELD: _KEY}, cluster=cluster, timings=_TIMINGS, now=wall, clock=clock)

    async def _change(self, after: float, script: tuple[Fault, ...]) -> None:
        await asyncio.sleep(after)
        self.server.service.faults = FaultScript(script)

    def _created(self, pod: Any) -> Any:
        if self.stops_after or self.vanish_after:
            self._tasks.append(asyncio.create_task(self._end(pod.id)))
        return pod

    async def _end(self, id_: str) -> None:
        service = self.server.service
        await asyncio.sleep(self.stops_after or self.vanish_after)
        if id_ in service.pods:
            await (service.stop(id_) if self.stops_after else service.terminate(id_))


class FaultyWire(FaultyCloud):
    """The account of one process. Each request that changes something is an effect, and each list a survey."""

    def __init__(self, process: Process, cluster: str) -> None:
        account = process.outside.open_account(cluster)
        super().__init__(account, process.transport)
        self._send = account.client._send
        account.client._send = self._disturbed
        process.background.append(self._live)

    async def create(self, spec: LaunchSpec) -> Instance:
        return await self._account.create(spec)

    async def terminate(self, instance: str, grace: float) -> None:
        await self._account.terminate(instance, grace)

    def price_offers(self, *given: Any) -> Any:
        return self._account.price_offers(*given)  # type: ignore[attr-defined]  # RunPod's account has it

    async def _disturbed(self, method: str, path: str, **options: Any) -> Reply:
        await self._transport.freeze.over()
        if method == "GET":
            self._suffer()
            return await self._asked(lambda: self._send(method, path, **options))
        return await self._call(Effect(method, path), lambda: self._send(method, path, **options))

    async def _live(self) -> None:
        """Let the memory of the account die with its process."""
        try:
            await asyncio.Event().wait()
        finally:
            await self._account.close()  # type: ignore[attr-defined]  # as above


class RunPodOperator(CloudOperator):
    """An operator with an account at RunPod."""

    provider_name = "runpod"
    # Leaves two GPU types, and not the first one at twice its price.
    limits = OfferLimits(max_usd_per_gpu_hour=0.3, alternatives=frozenset({"other"}))

    def connect(self, process: Process, cluster: str) -> FaultyCloud:
        return FaultyWire(process, cluster)


def _cpu_pod(env: dict[str, str]) -> api.CreatePod:
    return api.CreatePod(name="theirs", image="i", cpu=api.CpuOrder(id="cpu3c", vcpu_count=2), env=env)


def _seconds(text: str) -> float:
    return float(text[:-1]) * {"s": 1.0, "m": 60.0, "h": 3600.0}[text[-1]]
