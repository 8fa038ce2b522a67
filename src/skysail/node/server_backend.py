"""The ways into the pods of a node that its server needs: which run a path means, its logs, its commands, its use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from skysail.cloud.provider import Abilities, Line, Provider, RunId, Running, Session, Usage
from skysail.node.config.container_config import every_container
from skysail.node.kubelet import Keeper
from skysail.node.log_store import Excerpt, LogStore
from skysail.node.pod_state import Book
from skysail.node.pod_types import Container, Pod
from skysail.node.server.backend import ContainerStats, Manifest, NodeStats, Place
from skysail.node.server.errors import NoSuch, NotRunning
from skysail.node.sync import daemonset_pods
from skysail.node.sync.unsupported_fields import NOT_ADDED
from skysail.node.usage_sampler import Rate, Sampler


class Reach:
    """The server's backend over a keeper and its provider."""

    def __init__(self, keeper: Keeper, provider: Provider, logs: LogStore, sampler: Sampler) -> None:
        self._keeper = keeper
        self._provider = provider
        self._logs = logs
        self._sampler = sampler

    @property
    def abilities(self) -> Abilities:
        return self._provider.abilities

    def pod(self, place: Place) -> str:
        return self._find(place)[0].uid

    def run(self, place: Place) -> RunId:
        book, _, container = self._find_container(place)
        run = book.latest(container.name)
        if run is None or run in book.starting or not isinstance(book.runs[run], Running):
            raise NotRunning(f'container "{container.name}" in pod "{place.pod}" is not running')
        return run

    async def exec(self, run: RunId, command: tuple[str, ...], *, stdin: bool, tty: bool) -> Session:
        return await self._provider.exec(run, command, stdin=stdin, tty=tty)

    async def attach(self, run: RunId, *, stdin: bool) -> Session:
        return await self._provider.attach(run, stdin=stdin)

    async def dial(self, pod: str, port: int) -> Line:
        return await self._provider.dial(pod, port)

    def logs(self, place: Place, *, previous: bool, excerpt: Excerpt) -> AsyncIterator[bytes]:
        book, pod, container = self._find_container(place)
        kept = self._logs.numbers(book.uid, container.name)
        if not previous:
            if not kept:
                raise NotRunning(_why_waiting(pod, container, place))
            return self._logs.read(RunId(book.uid, container.name, kept[-1]), excerpt)
        # Of a container that waits for its restart, the last run is the previous one already.
        going_on = {run.number for run in book.running() if run.container == container.name}
        earlier = [number for number in kept if number not in going_on]
        if not earlier:
            raise NotRunning(f'previous terminated container "{container.name}" in pod "{place.pod}" not found')
        return self._logs.read(RunId(book.uid, container.name, earlier[-1]), excerpt)

    def pods(self) -> list[Manifest]:
        return [_manifest(pod) for pod in self._keeper.pods.all()]

    def running_pods(self) -> list[Manifest]:
        pods = (self._keeper.pod(book) for book in self._keeper.books.values() if book.address)
        return [_manifest(pod) for pod in pods if pod is not None]

    async def stats(self) -> NodeStats:
        sample, now = self._sampler.latest, self._sampler.rates()
        rows = (self._stats_of(run, used, now.get(run)) for run, used in sample.usage.items())
        return NodeStats(
            started=self._sampler.started,
            at=sample.at,
            usage=sample.total,
            cores=None if self._sampler.window is None else sum(rate.cores for rate in now.values()),
            containers=tuple(row for row in rows if row is not None),
        )

    def _stats_of(self, run: RunId, used: Usage, rate: Rate | None) -> ContainerStats | None:
        book = self._keeper.books.get(run.pod)
        state = book.runs.get(run) if book else None
        if book is None or not isinstance(state, Running):
            return None
        return ContainerStats(
            namespace=book.key.namespace,
            pod=book.key.name,
            uid=book.uid,
            container=run.container,
            started=state.started,
            usage=used,
            cores=rate.cores if rate else None,
        )

    def _find(self, place: Place) -> tuple[Book, Pod]:
        for book in self._keeper.books.values():
            named = (book.key.namespace, book.key.name) == (place.namespace, place.pod)
            pod = self._keeper.pod(book) if named and place.uid in {"", book.uid} else None
            if pod is not None:
                return book, pod
        raise NoSuch(f'pod "{place.namespace}/{place.pod}" is not on this node')

    def _find_container(self, place: Place) -> tuple[Book, Pod, Container]:
        book, pod = self._find(place)
        for container in every_container(pod):
            if container.name == place.container:
                return book, pod, container
        if place.container in {container.name for container in pod.spec.ephemeral_containers}:
            raise NotRunning(f'container "{place.container}" was not started: {NOT_ADDED}')
        raise NoSuch(f'container "{place.container}" not found in pod "{place.pod}"')


def _why_waiting(pod: Pod, container: Container, place: Place) -> str:
    if daemonset_pods.is_marked(pod):
        return f'pod "{place.pod}" is of a DaemonSet; on this virtual node it is shown, and not run'
    rows = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    states = [row.get("state") or {} for row in rows if row["name"] == container.name]
    reason = next((state["waiting"]["reason"] for state in states if "waiting" in state), "ContainerCreating")
    return f'container "{container.name}" in pod "{place.pod}" is waiting to start: {reason}'


def _manifest(pod: Pod) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", **msgspec.to_builtins(pod)}
