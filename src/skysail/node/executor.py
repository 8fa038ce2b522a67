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

from skysail.base import tasks as guard
from skysail.base.names import Event
from skysail.cloud.errors import Gone, ProviderError, Refused
from skysail.cloud.provider import EVICTED, Ended, Pending, Provider, RunId, Running, State
from skysail.kube.client.errors import KubeError
from skysail.node.config import container_config
from skysail.node.config.env import Missing
from skysail.node.config.references import References
from skysail.node.log_store import LogStore
from skysail.node.pod_state import Book
from skysail.node.pod_types import Container, Pod, Volume
from skysail.node.probes import prober
from skysail.node.probes.handlers import Checks
from skysail.node.sync.planner import Start, Stop
from skysail.node.sync.snapshot import HEALTHY, Health, is_forgotten

_PUMP_SECONDS = 5.0
# Pause after a failed stop, because the next sync follows at once.
_STOP_AGAIN_SECONDS = 1.0
# Left for SIGTERM even if the preStop hook used up the grace period.
_LEAST_GRACE = 2.0
_TAIL_LINES = 80
_TAIL_BYTES = 2048

log = logging.getLogger(__name__)


class Teller(Protocol):
    def tell(self, pod: Pod, reason: str, note: str, *, warning: bool = True) -> None:
        """An event about a pod. Never blocks and never fails."""
        ...


class Performer:
    """All methods belong to one event loop, and to the tasks of one group."""

    def __init__(
        self,
        provider: Provider,
        references: References,
        logs: LogStore,
        teller: Teller,
        *,
        now: Callable[[], float],
        changed: Callable[[str], None],
    ) -> None:
        self._provider = provider
        self._references = references
        self._logs = logs
        self._teller = teller
        self._now = now
        self._changed = changed
        self.tasks: asyncio.TaskGroup | None = None

    async def prepare(self, book: Book, pod: Pod) -> None:
        """Make the place, or remember why it cannot be made now."""
        try:
            facts = await self._references.facts(pod, "")
            book.address = await self._provider.prepare(container_config.place(pod, facts))
        except (Missing, ProviderError, KubeError) as error:
            self._held(book, pod, "", error)
            return
        book.release_hold("")
        for wish in container_config.unmet_wishes(pod, facts):
            note = f"{wish.kind} {wish.name} does not exist. It is optional, so the pod runs without it."
            self._teller.tell(pod, f"Optional{wish.kind}NotFound", note)

    def start(self, book: Book, pod: Pod, step: Start) -> None:
        run = RunId(book.uid, step.container, step.number)
        container = next(c for c in container_config.every_container(pod) if c.name == step.container)
        book.starting[run] = self.task(self._start(book, pod, container, run), f"start of {run}")

    async def stop(self, book: Book, pod: Pod, step: Stop) -> None:
        """Begin to end a run. Asked again with less grace, it is ended sooner."""
        log.info("stopping", extra={"pod": str(book.key), "container": step.run.container, "why": step.why})
        book.stops[step.run] = self._now() + step.grace
        if step.run in book.stopping:
            book.stopping[step.run].cancel()
        if book.health.get(step.run, HEALTHY).failure:
            self._teller.tell(pod, Event.KILLING, f"{step.run.container}: {step.why}", warning=False)
        container = next((c for c in container_config.every_container(pod) if c.name == step.run.container), None)
        book.stopping[step.run] = self.task(self._stop(book, pod, container, step), f"end of {step.run}")

    async def release(self, book: Book) -> None:
        """Take the place away; its runs have ended, or nobody waits for their end."""
        await self._provider.release(book.uid)
        book.address = None

    async def refresh(self, book: Book, pod: Pod) -> None:
        """Bring the files that come from Kubernetes up to date."""
        volumes = [volume for volume in pod.spec.volumes if _has_files(volume)]
        if not volumes or book.address is None or not self._provider.abilities.volumes:
            return
        try:
            facts = await self._references.facts(pod, book.address)
            for volume in volumes:
                await self._provider.update(book.uid, volume.name, container_config.files(pod, volume, facts))
        except (Missing, ProviderError, KubeError) as error:
            # The files stay as they are, which is what a program that reads them can live with.
            log.info("volumes not refreshed", extra={"pod": str(book.key), "why": str(error)})

    def adopt(self, book: Book, pod: Pod, run: RunId) -> None:
        """Follow a run that is there already: we started it in an earlier life, or got no answer when we did."""
        container = next((c for c in container_config.every_container(pod) if c.name == run.container), None)
        if container is not None:
            book.release_hold(container.name)
            self._follow(book, container, run)
            self._care(book, pod, run, is_late=False)

    async def learned(self, book: Book, pod: Pod | None, run: RunId, state: State | None) -> None:
        """What the provider says of a run now. Its end is believed when all that it printed is here."""
        if isinstance(book.runs.get(run), Ended):
            return
        if isinstance(state, (Pending, Running)):
            was_pending = isinstance(book.runs.get(run), Pending)
            book.runs[run] = state
            self._care(book, pod, run, is_late=was_pending)
            if pod is not None and run not in book.starting and not is_forgotten(state):
                self.adopt(book, pod, run)
        elif isinstance(state, Ended):
            await self._drain(book, run)
            book.ended(run, self._with_message(pod, run, state))
            if pod is not None and state.reason == EVICTED:
                self._teller.tell(pod, Event.EVICTED, state.message)
        self._changed(book.uid)

    async def _start(self, book: Book, pod: Pod, container: Container, run: RunId) -> None:
        try:
            if not await guard.survive(self._try_start(book, pod, container, run), f"start of {run}"):
                book.hold(container.name, "CreateContainerError", "The node failed; its log tells more.", self._now())
            # Before it is no longer under way: a run that nobody knows of would be started once more.
            await self._look(book, pod, run)
        except asyncio.CancelledError:
            if run in book.stops:
                await self._look(book, pod, run)  # it may run already, and then it has to be ended as one that does
            raise
        finally:
            book.starting.pop(run, None)
            self._changed(book.uid)

    async def _try_start(self, book: Book, pod: Pod, container: Container, run: RunId) -> None:
        try:
            facts = await self._references.facts(pod, book.address or "")
            await self._provider.start(run, container_config.container(pod, container, facts))
            book.release_hold(container.name)
            self._follow(book, container, run)
            await self._after_start(book, pod, container, run)
        except Gone:
            book.lose_place()
        except (Missing, ProviderError, KubeError) as error:
            self._held(book, pod, container.name, error)

    async def _after_start(self, book: Book, pod: Pod, container: Container, run: RunId) -> None:
        hook = container.lifecycle.post_start
        if hook is None or isinstance(await self._provider.state(run), Pending):
            return  # a cloud's run begins later, and is cared for then
        failure = await Checks(self._provider, run, container, book.address or "").hook(hook)
        if failure:
            self._teller.tell(pod, Event.POST_START_FAILED, f"{container.name}: {failure}")
            note = f"{container.name}: It is ended, because the hook after its start failed."
            self._teller.tell(pod, Event.KILLING, note, warning=False)
            await self._provider.stop(run, float(pod.spec.termination_grace_period_seconds or 0))

    async def _stop(self, book: Book, pod: Pod, container: Container | None, step: Stop) -> None:
        began = self._now()
        await self._break_off(book, step.run)
        try:
            if container is not None and isinstance(book.runs.get(step.run), Running) and step.grace > 0:
                await self._before_stop(book, pod, container, step)
            left = step.grace - (self._now() - began)
            await self._provider.stop(step.run, max(_LEAST_GRACE, left) if step.grace > 0 else 0.0)
        except Gone:
            log.debug("run gone before it was stopped", extra={"pod": str(book.key)})
        except ProviderError as error:
            log.warning("run not stopped, tried again", extra={"pod": str(book.key), "why": str(error)})
            await asyncio.sleep(_STOP_AGAIN_SECONDS)
            book.stops.pop(step.run, None)
        finally:
            book.stopping.pop(step.run, None)
        await self._look(book, pod, step.run)
        if step.run not in book.runs:
            book.stops.pop(step.run, None)  # there never was such a run, so nobody will tell its end

    async def _break_off(self, book: Book, run: RunId) -> None:
        """End a start that is under way, and know how far it came."""
        start = book.starting.get(run)
        if start is not None:
            start.cancel()
            await asyncio.wait([start])

    async def _before_stop(self, book: Book, pod: Pod, container: Container, step: Stop) -> None:
        hook = container.lifecycle.pre_stop
        if hook is None:
            return
        failure = await Checks(self._provider, step.run, container, book.address or "").hook(hook, step.grace)
        if failure:
            self._teller.tell(pod, Event.PRE_STOP_FAILED, f"{container.name}: {failure}")

    async def _look(self, book: Book, pod: Pod, run: RunId) -> None:
        try:
            state = await self._provider.state(run)
        except ProviderError as error:
            log.info("state of a run not known", extra={"pod": str(book.key), "why": str(error)})
            return
        await self.learned(book, pod, run, state)

    def _follow(self, book: Book, container: Container, run: RunId) -> None:
        if run in book.pumps:
            return  # it was started again, because the provider had forgotten it
        book.pumps[run] = self.task(self._pump(run), f"output of {run}")
        if _has_probes(container):
            book.health[run] = prober.initial(container)

    def _care(self, book: Book, pod: Pod | None, run: RunId, *, is_late: bool) -> None:
        """What is due when a run has begun; once. One that began later than its start still wants its hook."""
        container = next(
            (c for c in (container_config.every_container(pod) if pod else ()) if c.name == run.container), None
        )
        if pod is None or container is None or run in book.followers or run in book.stops:
            return
        if not isinstance(book.runs[run], Running):
            return
        tasks = book.followers[run] = []
        if is_late and container.lifecycle.post_start is not None:
            tasks.append(self.task(self._after_start(book, pod, container, run), f"hook of {run}"))
        if _has_probes(container):
            tasks.append(self.task(self._probe(book, pod, container, run), f"probes of {run}"))

    async def _probe(self, book: Book, pod: Pod, container: Container, run: RunId) -> None:
        checks = Checks(self._provider, run, container, book.address or "")

        def tell(health: Health) -> None:
            if run in book.health:
                book.health[run] = health
            self._changed(book.uid)

        def complain(why: str) -> None:
            """Of a run that goes on: what has ended, or is being ended, cannot answer."""
            if isinstance(book.runs.get(run), Running) and run not in book.stops:
                self._teller.tell(pod, Event.UNHEALTHY, f"{container.name}: {why}")

        await prober.watch(container, checks.check, tell, complain)

    async def _pump(self, run: RunId) -> None:
        writer = self._logs.writer(run)
        try:
            async for piece in self._provider.output(run):
                writer.write(piece)
        except ProviderError as error:
            log.warning("output lost", extra={"container": run.container, "why": str(error)})
        finally:
            writer.close()

    async def _drain(self, book: Book, run: RunId) -> None:
        """Wait until the log of a run that has ended is complete; not for ever, where something holds it open."""
        pump = book.pumps.pop(run, None)
        if pump is not None:
            await asyncio.wait([pump], timeout=_PUMP_SECONDS)
            pump.cancel()

    def _with_message(self, pod: Pod | None, run: RunId, end: Ended) -> Ended:
        """Where it left no message and failed, the end of its log may speak for it."""
        containers = container_config.every_container(pod) if pod else ()
        policies = {container.name: container.termination_message_policy for container in containers}
        if end.message or not end.code or policies.get(run.container) != "FallbackToLogsOnError":
            return end
        tail = self._logs.end(run, _TAIL_LINES, _TAIL_BYTES).decode(errors="replace")
        return msgspec.structs.replace(end, message=tail)

    def _held(self, book: Book, pod: Pod, container: str, error: Missing | ProviderError | KubeError) -> None:
        reason, event = _reasons(error)
        book.hold(container, reason, str(error), self._now())
        self._teller.tell(pod, event, f"{container}: {error}" if container else str(error))

    def task(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        assert self.tasks is not None, "steps are performed while the keeper runs"
        task = self.tasks.create_task(self._survive(work, what))
        # One that is cancelled before it began would leave its work for the collector to complain about.
        task.add_done_callback(lambda _: work.close())
        return task

    async def _survive(self, work: Coroutine[Any, Any, None], what: str) -> None:
        await guard.survive(work, what)


def _reasons(error: Missing | ProviderError | KubeError) -> tuple[str, str]:
    """What a container waits for, and the event that tells it."""
    if isinstance(error, Missing):
        return "CreateContainerConfigError", error.reason
    if isinstance(error, Refused):
        return error.reason, Event.CANNOT_START
    return "CreateContainerError", Event.CANNOT_START


def _has_probes(container: Container) -> bool:
    return any((container.startup_probe, container.readiness_probe, container.liveness_probe))


def _has_files(volume: Volume) -> bool:
    return any((volume.config_map, volume.secret, volume.downward_api, volume.projected))
