"""Startup, readiness and liveness probes of a run, by the rules of Kubernetes.

Thresholds count results in a row, and no other probe runs before the startup probe has passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from skysail.node.pod_types import Container, Handler, Probe
from skysail.node.sync.snapshot import ProbeState

# Returns the reason of a failure, an empty string, or None if the check could not run: such a result counts as none.
Check = Callable[[Probe | Handler, float], Awaitable[str | None]]


def initial_state(container: Container) -> ProbeState:
    """Return the state of a run before its first probe."""
    return ProbeState(started=container.startup_probe is None, ready=container.readiness_probe is None)


async def run_probes(
    container: Container, check: Check, on_change: Callable[[ProbeState], None], report: Callable[[str], None]
) -> None:
    """Run the probes until cancelled, or until the run must be stopped.

    Calls `on_change` whenever the state changes, and `report` for each failure, even below the threshold.
    """
    probe_state = initial_state(container)

    def set_state(**fields: bool | str | int | None) -> None:
        nonlocal probe_state
        new = msgspec.structs.replace(probe_state, **fields)
        if new != probe_state:
            probe_state = new
            on_change(new)

    def reporting(name: str) -> Check:
        return _reporting_failures(f"{name} probe failed", check, report)

    if container.startup_probe:
        async for passed, reason in _results(container.startup_probe, reporting("Startup")):
            if passed:
                break
            grace = container.startup_probe.termination_grace_period_seconds
            set_state(failure=reason, grace=grace)
            return
        set_state(started=True)
    async with asyncio.TaskGroup() as tasks:
        if container.readiness_probe:
            readiness = reporting("Readiness")
            tasks.create_task(
                _follow_readiness(container.readiness_probe, readiness, lambda ready: set_state(ready=ready))
            )
        if probe := container.liveness_probe:
            grace = probe.termination_grace_period_seconds
            tasks.create_task(
                _follow_liveness(probe, reporting("Liveness"), lambda why: set_state(failure=why, grace=grace))
            )


def _reporting_failures(title: str, check: Check, report: Callable[[str], None]) -> Check:
    async def run_check(probe: Probe | Handler, timeout: float) -> str | None:  # noqa: ASYNC109 (the probe's own field)
        reason = await check(probe, timeout)
        if not reason:
            return reason
        message = f"{title}: {reason}"
        report(message)
        return message

    return run_check


async def _follow_readiness(probe: Probe, check: Check, on_result: Callable[[bool], None]) -> None:
    async for passed, _ in _results(probe, check):
        on_result(passed)


async def _follow_liveness(probe: Probe, check: Check, on_failure: Callable[[str], None]) -> None:
    async for passed, reason in _results(probe, check):
        if not passed:
            on_failure(reason)
            return


async def _results(probe: Probe, check: Check) -> AsyncIterator[tuple[bool, str]]:
    """Yield a result after each check that reaches the success or failure threshold."""
    await asyncio.sleep(probe.initial_delay_seconds)
    successes = failures = 0
    while True:
        reason = await check(probe, float(probe.timeout_seconds))
        if reason is None:
            await asyncio.sleep(probe.period_seconds)
            continue
        successes, failures = (0, failures + 1) if reason else (successes + 1, 0)
        if successes >= probe.success_threshold:
            yield True, ""
        if failures >= probe.failure_threshold:
            yield False, reason
        await asyncio.sleep(probe.period_seconds)
