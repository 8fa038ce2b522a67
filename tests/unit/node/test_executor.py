"""Ends of runs, as several reports of the provider tell them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from skysail.cloud.provider import Features, Output
from skysail.node.executor import StepExecutor
from skysail.node.log_store import LogStore
from skysail.node.pod_state import PodState
from tests.support import virtual_time
from tests.unit.node.pods import MAIN, NOW, ended, pod, run, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class SlowOutput:
    """The last line of the program comes two seconds after the first one."""

    features = Features()

    async def output(self, _) -> AsyncIterator[Output]:
        yield Output("stdout", NOW, b"first\n")
        await asyncio.sleep(2)
        yield Output("stdout", NOW + 2, b"last\n")


class Events:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def record_event(self, _pod, reason: str, _note: str, *, warning: bool = True) -> None:
        self.reasons.append(reason)


def test_executor_second_report_of_an_end_waits_for_the_whole_output_as_well(tmp_path: Path) -> None:
    async def play() -> None:
        events, of = Events(), pod({**MAIN, "terminationMessagePolicy": "FallbackToLogsOnError"})
        executor = StepExecutor(
            SlowOutput(),  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            LogStore(tmp_path),
            events,
            now=lambda: NOW,
            changed=lambda _: None,
        )
        pod_state = PodState(of, {}, "10.244.0.2", began=0.0)
        async with asyncio.TaskGroup() as tasks:
            executor.tasks = tasks
            await executor.on_state(pod_state, of, run(), running())
            await asyncio.sleep(0.1)
            end = ended(1, reason="Evicted")
            first = tasks.create_task(executor.on_state(pod_state, of, run(), end))
            await asyncio.sleep(0.1)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await executor.on_state(pod_state, of, run(), end)
            assert pod_state.runs[run()] == running(), "the end is not known before the output is complete"
            await asyncio.gather(first, executor.on_state(pod_state, of, run(), end))
        assert pod_state.runs[run()].message == "first\nlast\n"  # type: ignore[union-attr]
        assert events.reasons == ["Evicted"]
        assert not pod_state.pumps

    virtual_time.run(play())
