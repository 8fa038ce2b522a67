"""Executes the steps of a plan at the provider, and follows each run: its output, its probes, its end.

A slow step (a start that pulls an image, a hook, a grace period) is a task of its own, and calls `changed` with its
outcome. Every step is idempotent.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import msgspec

from skysail.base import tasks as base_tasks
from skysail.base.names import EventReason, Reason
from skysail.cloud.errors import Gone, ProviderError, Rejected
from skysail.cloud.provider import EVICTED, NO_CAPACITY, Ended, Pending, Provider, RunId, Running, State
from skysail.kube.client.errors import KubeError
from skysail.node.config import container_config, registry_credentials
from skysail.node.config.env import ResolvedReferences
from skysail.node.config.errors import Missing
from skysail.node.config.references import ReferenceResolver
from skysail.node.log_store import LogStore
from skysail.node.pod_state import PodState
from skysail.node.pod_types import Container, Pod, Volume
from skysail.node.probes import prober
from skysail.node.probes.handlers import ProbeHandlers
from skysail.node.probes.pace import ProbePace
from skysail.node.sync import cloud_requirements
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
        """Record an event about a pod. Never blocks and never fails."""
        ...


class StepExecutor:
    """Executes steps. All methods run in one event loop, and all tasks belong to one task group."""

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
        self._probe_pace = ProbePace(provider.features.probe_commands_per_minute)
        self.tasks: asyncio.TaskGroup | None = None

    async def prepare(self, pod_state: PodState, pod: Pod) -> None:
        """Create the pod sandbox, or back off with the reason if that fails."""
        try:
            resolved = await self._references.resolve(pod, "")
            pod_state.address = await self._provider.create_sandbox(container_config.sandbox(pod, resolved))
        except (Missing, ProviderError, KubeError) as error:
            self._back_off(pod_state, pod, "", error)
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
        """Begin to stop a run. A second call with a shorter grace period stops the run sooner."""
        extra = {"pod": str(pod_state.key), "container": step.run.container, "why": step.why}
        log.info("stopping container", extra=extra)
        pod_state.stops[step.run] = self._now() + step.grace
        if step.run in pod_state.stopping:
            pod_state.stopping[step.run].cancel()
        if pod_state.health.get(step.run, HEALTHY).failure:
            self._event_sink.record_event(pod, EventReason.KILLING, f"{step.run.container}: {step.why}", warning=False)
        container = next((c for c in container_config.all_containers(pod) if c.name == step.run.container), None)
        pod_state.stopping[step.run] = self.task(self._stop(pod_state, pod, container, step), f"end of {step.run}")

    async def release(self, pod_state: PodState) -> None:
        """Remove the pod sandbox. Its runs have ended, or their end does not matter any more."""
        await self._provider.remove_sandbox(pod_state.uid)
        pod_state.address = None

    async def refresh(self, pod_state: PodState, pod: Pod) -> None:
        """Update the files of volumes that come from Kubernetes objects."""
        volumes = [volume for volume in pod.spec.volumes if _has_files(volume)]
        if not volumes or pod_state.address is None or not self._provider.features.volumes:
            return
        try:
            resolved = await self._references.resolve(pod, pod_state.address)
            for volume in volumes:
                await self._provider.update(pod_state.uid, volume.name, container_config.files(pod, volume, resolved))
        except (Missing, ProviderError, KubeError) as error:
            # Keep the old files until the next refresh: programs must expect them to be late.
            log.info("volumes not refreshed", extra={"pod": str(pod_state.key), "why": str(error)})

    def adopt(self, pod_state: PodState, pod: Pod, run: RunId) -> None:
        """Follow a run that already exists: an earlier process started it, or the reply to our start was lost."""
        container = next((c for c in container_config.all_containers(pod) if c.name == run.container), None)
        if container is not None:
            pod_state.clear_back_off(container.name)
            self._follow(pod_state, container, run)
            self._start_probes(pod_state, pod, run, is_late=False)

    async def on_state(self, pod_state: PodState, pod: Pod | None, run: RunId, state: State | None) -> None:
        """Record the provider's state of a run. An end is recorded after the run's whole output has been copied."""
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
            if isinstance(pod_state.runs.get(run), Ended):
                return  # another report of the same end came first
            pod_state.ended(run, self._with_message(pod, run, state))
            if pod is not None and state.reason == EVICTED:
                self._event_sink.record_event(pod, EventReason.EVICTED, state.message)
            if pod is not None and state.reason == NO_CAPACITY:
                note = f"{state.message} {cloud_requirements.lost_retry(pod)}".rstrip()
                self._event_sink.record_event(pod, Reason.NO_CAPACITY, note)
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
                message = "The node failed to start the container: see the node's log."
                pod_state.back_off(container.name, "CreateContainerError", message, self._now())
            # Read the state while the run is still in `starting`: an unknown run would be started a second time.
            await self._read_state(pod_state, pod, run)
        except asyncio.CancelledError:
            if run in pod_state.stops:
                # The run may exist already: then it is stopped as a running one.
                await self._read_state(pod_state, pod, run)
            raise
        finally:
            pod_state.starting.pop(run, None)
            self._changed(pod_state.uid)

    async def _try_start(self, pod_state: PodState, pod: Pod, container: Container, run: RunId) -> None:
        try:
            resolved = await self._references.resolve(pod, pod_state.address or "")
            self._set_credentials(pod_state, pod, container, resolved)
            await self._provider.start(run, container_config.container(pod, container, resolved))
            pod_state.clear_back_off(container.name)
            self._follow(pod_state, container, run)
            await self._after_start(pod_state, pod, container, run)
        except Gone:
            pod_state.sandbox_lost()
        except (Missing, ProviderError, KubeError) as error:
            self._back_off(pod_state, pod, container.name, error)

    def _set_credentials(
        self, pod_state: PodState, pod: Pod, container: Container, resolved: ResolvedReferences
    ) -> None:
        """Keep the registry credentials for the provider, which asks for the requirements of the pod at the start."""
        choice = registry_credentials.choose(container.image, resolved.pull_secrets)
        pod_state.registry_credentials = choice.credentials
        if choice.problem:
            self._event_sink.record_event(pod, EventReason.PULL_SECRETS_IGNORED, choice.problem)

    async def _after_start(self, pod_state: PodState, pod: Pod, container: Container, run: RunId) -> None:
        hook = container.lifecycle.post_start
        if hook is None or isinstance(await self._provider.state(run), Pending):
            return  # a run at a cloud starts later; `_start_probes` runs the hook then
        failure = await ProbeHandlers(self._provider, run, container, pod_state.address or "").run_hook(hook)
        if failure:
            self._event_sink.record_event(pod, EventReason.POST_START_FAILED, f"{container.name}: {failure}")
            note = f"{container.name}: Stopped, because its postStart hook failed."
            self._event_sink.record_event(pod, EventReason.KILLING, note, warning=False)
            await self._provider.stop(run, float(pod.spec.termination_grace_period_seconds or 0))

    async def _stop(self, pod_state: PodState, pod: Pod, container: Container | None, step: Stop) -> None:
        began = self._now()
        await self._cancel_start(pod_state, step.run)
        try:
            if container is not None and isinstance(pod_state.runs.get(step.run), Running) and step.grace > 0:
                await self._before_stop(pod_state, pod, container, step)
            seconds_left = step.grace - (self._now() - began)
            await self._provider.stop(step.run, max(_MIN_GRACE_SECONDS, seconds_left) if step.grace > 0 else 0.0)
        except Gone:
            log.debug("run ended before it was stopped", extra={"pod": str(pod_state.key)})
        except ProviderError as error:
            log.warning("run not stopped, retried", extra={"pod": str(pod_state.key), "why": str(error)})
            await asyncio.sleep(_STOP_RETRY_SECONDS)
            pod_state.stops.pop(step.run, None)
        finally:
            pod_state.stopping.pop(step.run, None)
        await self._read_state(pod_state, pod, step.run)
        if step.run not in pod_state.runs:
            pod_state.stops.pop(step.run, None)  # the run was never created, so no end will be reported

    async def _cancel_start(self, pod_state: PodState, run: RunId) -> None:
        """Cancel a start in progress, and wait until it has recorded the state of the run."""
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

    async def _read_state(self, pod_state: PodState, pod: Pod, run: RunId) -> None:
        try:
            state = await self._provider.state(run)
        except ProviderError as error:
            log.info("run state unknown after a step", extra={"pod": str(pod_state.key), "why": str(error)})
            return
        await self.on_state(pod_state, pod, run, state)

    def _follow(self, pod_state: PodState, container: Container, run: RunId) -> None:
        if run in pod_state.pumps:
            return  # the run was started again, because the provider had lost its spec
        pod_state.pumps[run] = self.task(self._copy_output(run), f"output of {run}")
        if _has_probes(container):
            pod_state.health[run] = prober.initial_state(container)

    def _start_probes(self, pod_state: PodState, pod: Pod | None, run: RunId, *, is_late: bool) -> None:
        """Start the probes of a run, once it runs. If it began after its start call returned, run its hook as well."""
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

        def set_health(probe_state: ProbeState) -> None:
            if run in pod_state.health:
                pod_state.health[run] = probe_state
            self._changed(pod_state.uid)

        def report_failure(message: str) -> None:
            """Record a failed probe, unless the run has ended or is being stopped: then it cannot answer."""
            if isinstance(pod_state.runs.get(run), Running) and run not in pod_state.stops:
                self._event_sink.record_event(pod, EventReason.UNHEALTHY, f"{container.name}: {message}")

        check = functools.partial(probe_handlers.paced_probe, self._probe_pace)
        await prober.run_probes(container, check, set_health, report_failure)

    async def _copy_output(self, run: RunId) -> None:
        writer = self._logs.writer(run)
        try:
            async for piece in self._provider.output(run):
                writer.write(piece)
        except ProviderError as error:
            log.warning("container output lost", extra={"container": run.container, "why": str(error)})
        finally:
            writer.close()

    async def _drain(self, pod_state: PodState, run: RunId) -> None:
        """Wait until the log of an ended run is complete. Limited in time: a child process may hold the output open.

        Concurrent reports of the same end wait for the same task.
        """
        pump = pod_state.pumps.get(run)
        if pump is not None:
            await asyncio.wait([pump], timeout=_PUMP_SECONDS)
            pump.cancel()
            pod_state.pumps.pop(run, None)

    def _with_message(self, pod: Pod | None, run: RunId, end: Ended) -> Ended:
        """Use the end of the log as message of a failed run without a message, if the container asks for that."""
        containers = container_config.all_containers(pod) if pod else ()
        policies = {container.name: container.termination_message_policy for container in containers}
        if end.message or not end.code or policies.get(run.container) != "FallbackToLogsOnError":
            return end
        tail = self._logs.end(run, _TAIL_LINES, _TAIL_BYTES).decode(errors="replace")
        return msgspec.structs.replace(end, message=tail)

    def _back_off(
        self, pod_state: PodState, pod: Pod, container: str, error: Missing | ProviderError | KubeError
    ) -> None:
        reason, event = _reasons(error)
        pod_state.back_off(container, reason, str(error), self._now())
        self._event_sink.record_event(pod, event, f"{container}: {error}" if container else str(error))

    def task(self, work: Coroutine[Any, Any, None], title: str) -> asyncio.Task[None]:
        assert self.tasks is not None, "steps are executed while the kubelet runs"
        task = self.tasks.create_task(self._run_logged(work, title))
        # A task that is cancelled before it began never awaits its coroutine: close it, to avoid Python's warning.
        task.add_done_callback(lambda _: work.close())
        return task

    async def _run_logged(self, work: Coroutine[Any, Any, None], title: str) -> None:
        await base_tasks.run_logged(work, title)


def _reasons(error: Missing | ProviderError | KubeError) -> tuple[str, str]:
    """Return the waiting reason of a container, and the reason of its event."""
    if isinstance(error, Missing):
        return "CreateContainerConfigError", error.reason
    if isinstance(error, Rejected):
        return error.reason, EventReason.CANNOT_START
    return "CreateContainerError", EventReason.CANNOT_START


def _has_probes(container: Container) -> bool:
    return any((container.startup_probe, container.readiness_probe, container.liveness_probe))


def _has_files(volume: Volume) -> bool:
    return any((volume.config_map, volume.secret, volume.downward_api, volume.projected))
