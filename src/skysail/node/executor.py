"""Carries out the steps of a plan at the provider, and follows each run: its output, its probes, its end.

What may be slow (a start that fetches an image, a hook, a grace period) is a task of its own; whoever waits for its
outcome is told by `changed`. Every step may be asked for twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import msgspec

from skysail.base import tasks as base_tasks
from skysail.base.names import EventReason, Reason
from skysail.cloud.errors import Gone, ProviderError, Rejected
from skysail.cloud.provider import EVICTED, NO_CAPACITY, Ended, Pending, Provider, RunId, Running, State
from skysail.kube.client.errors import KubeError
from skysail.node.config import container_config
from skysail.node.config.errors import Missing
from skysail.node.config.references import ReferenceResolver
from skysail.node.log_store import LogStore
from skysail.node.pod_state import PodState
from skysail.node.pod_types import Container, Pod, Volume
from skysail.node.probes import prober
from skysail.node.probes.handlers import ProbeHandlers
from skysail.node.sync.planner import Start, Stop
from skysail.node.sync.snapshot import HEALTHY, ProbeState, is_forgotten

_PUMP_SECONDS = 5.0
# Pause after a failed stop, because the next sync follows at once.
_STOP_RETRY_SECONDS = 1.0
# Left for SIGTERM even if the preStop hook used up the grace period.
_MIN_GRACE_SECONDS = 2.0
_TAIL_LINES = 80
# Reasons of a pending run that are recorded on its pod as events.
_REFUSALS = {Reason.NO_CAPACITY, Reason.PRICE_ABOVE_CAP}
_TAIL_BYTES = 2048

log = logging.getLogger(__name__)


class EventSink(Protocol):
    def record_event(self, pod: Pod, reason: str, note: str, *, warning: bool = True) -> None:
        """An event about a pod. Never blocks and never fails."""
        ...


class StepExecutor:
    """All methods belong to one event loop, and to the tasks of one group."""

    def __init__(
        self,
        provider: Provider,
        references: ReferenceResolver,
        logs: LogStore,
        event_sink: EventSink,
        *,
        now: Callable[[], float],
        changed: Callable[[str], None],
    ) -> None:
        self._provider = provider
        self._references = references
        self._logs = logs
        self._event_sink = event_sink
        self._now = now
        self._changed = changed
        self.tasks: asyncio.TaskGroup | None = None

    async def prepare(self, pod_state: PodState, pod: Pod) -> None:
        """Make the place, or remember why it cannot be made now."""
        try:
            resolved = await self._references.resolve(pod, "")
            pod_state.address = await self._provider.create_sandbox(container_config.sandbox(pod, resolved))
        except (Missing, ProviderError, KubeError) as error:
            self._held(pod_state, pod, "", error)
            return
        pod_state.clear_back_off("")
        for reference in container_config.missing_optional_refs(pod, resolved):
            note = f"{reference.kind} {reference.name} does not exist. It is optional, so the pod runs without it."
            self._event_sink.record_event(pod, f"Optional{reference.kind}NotFound", note)

    def start(self, pod_state: PodState, pod: Pod, step: Start) -> None:
        run = RunId(pod_state.uid, step.container, step.number)
        container = next(c for c in container_config.all_containers(pod) if c.name == step.container)
        pod_state.starting[run] = self.task(self._start(pod_state, pod, container, run), f"start of {run}")

    async def stop(self, pod_state: PodState, pod: Pod, step: Stop) -> None:
        """Begin to end a run. Asked again with less grace, it is ended sooner."""
        log.info("stopping", extra={"pod": str(pod_state.key), "container": step.run.container, "why": step.why})
        pod_state.stops[step.run] = self._now() + step.grace
        if step.run in pod_state.stopping:
            pod_state.stopping[step.run].cancel()
        if pod_state.health.get(step.run, HEALTHY).failure:
            self._event_sink.record_event(pod, EventReason.KILLING, f"{step.run.container}: {step.why}", warning=False)
        container = next((c for c in container_config.all_containers(pod) if c.name == step.run.container), None)
        pod_state.stopping[step.run] = self.task(self._stop(pod_state, pod, container, step), f"end of {step.run}")

    async def release(self, pod_state: PodState) -> None:
        """Take the place away; its runs have ended, or nobody waits for their end."""
        await self._provider.remove_sandbox(pod_state.uid)
        pod_state.address = None

    async def refresh(self, pod_state: PodState, pod: Pod) -> None:
        """Bring the files that come from Kubernetes up to date."""
        volumes = [volume for volume in pod.spec.volumes if _has_files(volume)]
        if not volumes or pod_state.address is None or not self._provider.features.volumes:
            return
        try:
            resolved = await self._references.resolve(pod, pod_state.address)
            for volume in volumes:
                await self._provider.update(pod_state.uid, volume.name, container_config.files(pod, volume, resolved))
        except (Missing, ProviderError, KubeError) as error:
            # The files stay as they are, which is what a program that reads them can live with.
            log.info("volumes not refreshed", extra={"pod": str(pod_state.key), "why": str(error)})

    def adopt(self, pod_state: PodState, pod: Pod, run: RunId) -> None:
        """Follow a run that is there already: we started it in an earlier life, or got no answer when we did."""
        container = next((c for c in container_config.all_containers(pod) if c.name == run.container), None)
        if container is not None:
            pod_state.clear_back_off(container.name)
            self._follow(pod_state, container, run)
            self._start_probes(pod_state, pod, run, is_late=False)

    async def on_state(self, pod_state: PodState, pod: Pod | None, run: RunId, state: State | None) -> None:
        """What the provider says of a run now. Its end is believed when all that it printed is here."""
        if isinstance(pod_state.runs.get(run), Ended):
            return
        if isinstance(state, (Pending, Running)):
            was_pending = isinstance(pod_state.runs.get(run), Pending)
            if pod is not None:
                self._record_refusal(pod, pod_state.runs.get(run), state)
            pod_state.runs[run] = state
            self._start_probes(pod_state, pod, run, is_late=was_pending)
            if pod is not None and run not in pod_state.starting and not is_forgotten(state):
                self.adopt(pod_state, pod, run)
        elif isinstance(state, Ended):
            await self._drain(pod_state, run)
            pod_state.ended(run, self._with_message(pod, run, state))
            if pod is not None and state.reason == EVICTED:
                self._event_sink.record_event(pod, EventReason.EVICTED, state.message)
            if pod is not None and state.reason == NO_CAPACITY:
                self._event_sink.record_event(pod, Reason.NO_CAPACITY, state.message)
        self._changed(pod_state.uid)

    def _record_refusal(self, pod: Pod, old: State | None, new: State) -> None:
        """Record an event on the pod when a provider refuses it for now: tenants cannot read claims."""
        if not isinstance(new, Pending) or new.reason not in _REFUSALS or not new.message:
            return
        if not isinstance(old, Pending) or (old.reason, old.message) != (new.reason, new.message):
            self._event_sink.record_event(pod, new.reason, new.message)

    async def _start(self, pod_state: PodState, pod: Pod, container: Container, run: RunId) -> None:
        try:
            if not await base_tasks.run_logged(self._try_start(pod_state, pod, container, run), f"start of {run}"):
                pod_state.back_off(
                    container.name, "CreateContainerError", "The node failed; its log tells more.", self._now()
                )
            # Before it is no longer under way: a run that nobody knows of would be started once more.
            await self._look(pod_state, pod, run)
        except asyncio.CancelledError:
            if run in pod_state.stops:
                await self._look(
                    pod_state, pod, run
                )  # it may run already, and then it has to be ended as one that does
            raise
        finally:
            pod_state.starting.pop(run, None)
            self._changed(pod_state.uid)

    async def _try_start(self, pod_state: PodState, pod: Pod, container: Container, run: RunId) -> None:
        try:
            resolved = await self._references.resolve(pod, pod_state.address or "")
            await self._provider.start(run, container_config.container(pod, container, resolved))
            pod_state.clear_back_off(container.name)
            self._follow(pod_state, container, run)
            await self._after_start(pod_state, pod, container, run)
        except Gone:
            pod_state.sandbox_lost()
        except (Missing, ProviderError, KubeError) as error:
            self._held(pod_state, pod, container.name, error)

    async def _after_start(self, pod_state: PodState, pod: Pod, container: Container, run: RunId) -> None:
        hook = container.lifecycle.post_start
        if hook is None or isinstance(await self._provider.state(run), Pending):
            return  # a cloud's run begins later, and is cared for then
        failure = await ProbeHandlers(self._provider, run, container, pod_state.address or "").run_hook(hook)
        if failure:
            self._event_sink.record_event(pod, EventReason.POST_START_FAILED, f"{container.name}: {failure}")
            note = f"{container.name}: It is ended, because the hook after its start failed."
            self._event_sink.record_event(pod, EventReason.KILLING, note, warning=False)
            await self._provider.stop(run, float(pod.spec.termination_grace_period_seconds or 0))

    async def _stop(self, pod_state: PodState, pod: Pod, container: Container | None, step: Stop) -> None:
        began = self._now()
        await self._break_off(pod_state, step.run)
        try:
            if container is not None and isinstance(pod_state.runs.get(step.run), Running) and step.grace > 0:
                await self._before_stop(pod_state, pod, container, step)
            seconds_left = step.grace - (self._now() - began)
            await self._provider.stop(step.run, max(_MIN_GRACE_SECONDS, seconds_left) if step.grace > 0 else 0.0)
        except Gone:
            log.debug("run gone before it was stopped", extra={"pod": str(pod_state.key)})
        except ProviderError as error:
            log.warning("run not stopped, tried again", extra={"pod": str(pod_state.key), "why": str(error)})
            await asyncio.sleep(_STOP_RETRY_SECONDS)
            pod_state.stops.pop(step.run, None)
        finally:
            pod_state.stopping.pop(step.run, None)
        await self._look(pod_state, pod, step.run)
        if step.run not in pod_state.runs:
            pod_state.stops.pop(step.run, None)  # there never was such a run, so nobody will tell its end

    async def _break_off(self, pod_state: PodState, run: RunId) -> None:
        """End a start that is under way, and know how far it came."""
        start = pod_state.starting.get(run)
        if start is not None:
            start.cancel()
            await asyncio.wait([start])

    async def _before_stop(self, pod_state: PodState, pod: Pod, container: Container, step: Stop) -> None:
        hook = container.lifecycle.pre_stop
        if hook is None:
            return
        failure = await ProbeHandlers(self._provider, step.run, container, pod_state.address or "").run_hook(
            hook, step.grace
        )
        if failure:
            self._event_sink.record_event(pod, EventReason.PRE_STOP_FAILED, f"{container.name}: {failure}")

    async def _look(self, pod_state: PodState, pod: Pod, run: RunId) -> None:
        try:
            state = await self._provider.state(run)
        except ProviderError as error:
            log.info("state of a run not known", extra={"pod": str(pod_state.key), "why": str(error)})
            return
        await self.on_state(pod_state, pod, run, state)

    def _follow(self, pod_state: PodState, container: Container, run: RunId) -> None:
        if run in pod_state.pumps:
            return  # it was started again, because the provider had forgotten it
        pod_state.pumps[run] = self.task(self._copy_output(run), f"output of {run}")
        if _has_probes(container):
            pod_state.health[run] = prober.initial_state(container)

    def _start_probes(self, pod_state: PodState, pod: Pod | None, run: RunId, *, is_late: bool) -> None:
        """What is due when a run has begun; once. One that began later than its start still wants its hook."""
        container = next(
            (c for c in (container_config.all_containers(pod) if pod else ()) if c.name == run.container), None
        )
        if pod is None or container is None or run in pod_state.followers or run in pod_state.stops:
            return
        if not isinstance(pod_state.runs[run], Running):
            return
        tasks = pod_state.followers[run] = []
        if is_late and container.lifecycle.post_start is not None:
            tasks.append(self.task(self._after_start(pod_state, pod, container, run), f"hook of {run}"))
        if _has_probes(container):
            tasks.append(self.task(self._probe(pod_state, pod, container, run), f"probes of {run}"))

    async def _probe(self, pod_state: PodState, pod: Pod, container: Container, run: RunId) -> None:
        probe_handlers = ProbeHandlers(self._provider, run, container, pod_state.address or "")

        def tell(probe_state: ProbeState) -> None:
            if run in pod_state.health:
                pod_state.health[run] = probe_state
            self._changed(pod_state.uid)

        def report_failure(message: str) -> None:
            """Of a run that goes on: what has ended, or is being ended, cannot answer."""
            if isinstance(pod_state.runs.get(run), Running) and run not in pod_state.stops:
                self._event_sink.record_event(pod, EventReason.UNHEALTHY, f"{container.name}: {message}")

        await prober.run_probes(container, probe_handlers.probe, tell, report_failure)

    async def _copy_output(self, run: RunId) -> None:
        writer = self._logs.writer(run)
        try:
            async for piece in self._provider.output(run):
                writer.write(piece)
        except ProviderError as error:
            log.warning("output lost", extra={"container": run.container, "why": str(error)})
        finally:
            writer.close()

    async def _drain(self, pod_state: PodState, run: RunId) -> None:
        """Wait until the log of a run that has ended is complete; not for ever, where something holds it open."""
        pump = pod_state.pumps.pop(run, None)
        if pump is not None:
            await asyncio.wait([pump], timeout=_PUMP_SECONDS)
            pump.cancel()

    def _with_message(self, pod: Pod | None, run: RunId, end: Ended) -> Ended:
        """Where it left no message and failed, the end of its log may speak for it."""
        containers = container_config.all_containers(pod) if pod else ()
        policies = {container.name: container.termination_message_policy for container in containers}
        if end.message or not end.code or policies.get(run.container) != "FallbackToLogsOnError":
            return end
        tail = self._logs.end(run, _TAIL_LINES, _TAIL_BYTES).decode(errors="replace")
        return msgspec.structs.replace(end, message=tail)

    def _held(self, pod_state: PodState, pod: Pod, container: str, error: Missing | ProviderError | KubeError) -> None:
        reason, event = _reasons(error)
        pod_state.back_off(container, reason, str(error), self._now())
        self._event_sink.record_event(pod, event, f"{container}: {error}" if container else str(error))

    def task(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        assert self.tasks is not None, "steps are performed while the keeper runs"
        task = self.tasks.create_task(self._survive(work, what))
        # One that is cancelled before it began would leave its work for the collector to complain about.
        task.add_done_callback(lambda _: work.close())
        return task

    async def _survive(self, work: Coroutine[Any, Any, None], what: str) -> None:
        await base_tasks.run_logged(work, what)


def _reasons(error: Missing | ProviderError | KubeError) -> tuple[str, str]:
    """What a container waits for, and the event that tells it."""
    if isinstance(error, Missing):
        return "CreateContainerConfigError", error.reason
    if isinstance(error, Rejected):
        return error.reason, EventReason.CANNOT_START
    return "CreateContainerError", EventReason.CANNOT_START


def _has_probes(container: Container) -> bool:
    return any((container.startup_probe, container.readiness_probe, container.liveness_probe))


def _has_files(volume: Volume) -> bool:
    return any((volume.config_map, volume.secret, volume.downward_api, volume.projected))
