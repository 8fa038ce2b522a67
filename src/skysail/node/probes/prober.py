"""Whether a run has started, is ready, and is alive: loops over checks, by the rules of Kubernetes.

Thresholds count answers in a row, and nothing else is asked before the start-up probe has passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from skysail.node.pod_types import Container, Handler, Probe
from skysail.node.sync.snapshot import ProbeState

Check = Callable[[Probe | Handler, float], Awaitable[str]]


def initial_state(container: Container) -> ProbeState:
    """What is known of a run before anything was asked."""
    return ProbeState(started=container.startup_probe is None, ready=container.readiness_probe is None)


async def run_probes(
    container: Container, check: Check, tell: Callable[[ProbeState], None], report: Callable[[str], None]
) -> None:
    """Ask until cancelled, or until the run has to be ended.

    Tells the health whenever it changes, and complains of each bad answer, also where it changes nothing yet.
    """
    probe_state = initial_state(container)

    def changed(**news: bool | str | int | None) -> None:
        nonlocal probe_state
        new = msgspec.structs.replace(probe_state, **news)
        if new != probe_state:
            probe_state = new
            tell(new)

    def ask(name: str) -> Check:
        return _reporting_failures(f"{name} probe failed", check, report)

    if container.startup_probe:
        async for passed, reason in _verdicts(container.startup_probe, ask("Startup")):
            if passed:
                break
            grace = container.startup_probe.termination_grace_period_seconds
            changed(failure=reason, grace=grace)
            return
        changed(started=True)
    async with asyncio.TaskGroup() as tasks:
        if container.readiness_probe:
            asking = ask("Readiness")
            tasks.create_task(_follow_readiness(container.readiness_probe, asking, lambda ready: changed(ready=ready)))
        if alive := container.liveness_probe:
            grace = alive.termination_grace_period_seconds
            tasks.create_task(_follow_liveness(alive, ask("Liveness"), lambda why: changed(failure=why, grace=grace)))


def _reporting_failures(what: str, check: Check, report: Callable[[str], None]) -> Check:
    async def ask(probe: Probe | Handler, timeout: float) -> str:  # noqa: ASYNC109 (the probe's own field)
        reason = await check(probe, timeout)
        if not reason:
            return ""
        message = f"{what}: {reason}"
        report(message)
        return message

    return ask


async def _follow_readiness(probe: Probe, check: Check, tell: Callable[[bool], None]) -> None:
    async for passed, _ in _verdicts(probe, check):
        tell(passed)


async def _follow_liveness(probe: Probe, check: Check, tell: Callable[[str], None]) -> None:
    async for passed, reason in _verdicts(probe, check):
        if not passed:
            tell(reason)
            return


async def _verdicts(probe: Probe, check: Check) -> AsyncIterator[tuple[bool, str]]:
    """A verdict each time that enough answers in a row agree."""
    await asyncio.sleep(probe.initial_delay_seconds)
    good = bad = 0
    while True:
        reason = await check(probe, float(probe.timeout_seconds))
        good, bad = (0, bad + 1) if reason else (good + 1, 0)
        if good >= probe.success_threshold:
            yield True, ""
        if bad >= probe.failure_threshold:
            yield False, reason
        await asyncio.sleep(probe.period_seconds)
