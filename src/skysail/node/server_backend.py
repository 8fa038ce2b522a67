"""Backend of the node's server: resolves a pod path to a run, and gives access to logs, exec, ports and usage."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from skysail.cloud.provider import Features, PortConnection, Provider, RunId, Running, Session, Usage
from skysail.node.config.container_config import all_containers
from skysail.node.kubelet import Kubelet
from skysail.node.log_store import LogQuery, LogStore
from skysail.node.pod_state import PodState
from skysail.node.pod_types import Container, Pod
from skysail.node.server.backend import ContainerStats, Manifest, NodeStats, PodRef
from skysail.node.server.errors import NotFound, NotRunning
from skysail.node.sync import daemonset_pods
from skysail.node.sync.unsupported_fields import NO_EPHEMERAL_CONTAINERS
from skysail.node.usage_sampler import Rate, UsageSampler


class KubeletBackend:
    """The server's backend over a kubelet and its provider."""

    def __init__(self, kubelet: Kubelet, provider: Provider, logs: LogStore, usage_sampler: UsageSampler) -> None:
        self._kubelet = kubelet
        self._provider = provider
        self._logs = logs
        self._usage_sampler = usage_sampler

    @property
    def features(self) -> Features:
        return self._provider.features

    def pod(self, pod_ref: PodRef) -> str:
        return self._find(pod_ref)[0].uid

    def run(self, pod_ref: PodRef) -> RunId:
        pod_state, _, container = self._find_container(pod_ref)
        run = pod_state.latest(container.name)
        if run is None or run in pod_state.starting or not isinstance(pod_state.runs[run], Running):
            raise NotRunning(f'container "{container.name}" in pod "{pod_ref.pod}" is not running')
        return run

    async def exec(self, run: RunId, command: tuple[str, ...], *, stdin: bool, tty: bool) -> Session:
        return await self._provider.exec(run, command, stdin=stdin, tty=tty)

    async def attach(self, run: RunId, *, stdin: bool) -> Session:
        return await self._provider.attach(run, stdin=stdin)

    async def dial(self, pod: str, port: int) -> PortConnection:
        return await self._provider.connect(pod, port)

    def logs(self, pod_ref: PodRef, *, previous: bool, log_query: LogQuery) -> AsyncIterator[bytes]:
        pod_state, pod, container = self._find_container(pod_ref)
        kept = self._logs.numbers(pod_state.uid, container.name)
        if not previous:
            if not kept:
                raise NotRunning(_why_waiting(pod, container, pod_ref))
            return self._logs.read(RunId(pod_state.uid, container.name, kept[-1]), log_query)
        # While a container waits for its restart, its last run already is the previous one.
        running = {run.number for run in pod_state.running() if run.container == container.name}
        earlier = [number for number in kept if number not in running]
        if not earlier:
            raise NotRunning(f'previous terminated container "{container.name}" in pod "{pod_ref.pod}" not found')
        return self._logs.read(RunId(pod_state.uid, container.name, earlier[-1]), log_query)

    def pods(self) -> list[Manifest]:
        return [_manifest(pod) for pod in self._kubelet.pods.all()]

    def running_pods(self) -> list[Manifest]:
        """Return the pods with a running container. Pods at clouds have no address by which to know them."""
        pods = (
            self._kubelet.effective_pod(pod_state)
            for pod_state in self._kubelet.pod_states.values()
            if any(isinstance(state, Running) for state in pod_state.runs.values())
        )
        return [_manifest(pod) for pod in pods if pod is not None]

    async def stats(self) -> NodeStats:
        if not self._provider.features.stats:
            return self._unmeasured()
        sample, now = self._usage_sampler.latest, self._usage_sampler.rates()
        rows = (self._stats_of(run, used, now.get(run)) for run, used in sample.usage.items())
        return NodeStats(
            started=self._usage_sampler.started,
            at=sample.at,
            usage=sample.total,
            cores=None if self._usage_sampler.window is None else sum(rate.cores for rate in now.values()),
            containers=tuple(container_stats for container_stats in rows if container_stats is not None),
        )

    def _unmeasured(self) -> NodeStats:
        """Return which containers run, without their usage: clouds do not report it."""
        runs = [run for pod_state in self._kubelet.pod_states.values() for run in pod_state.running()]
        rows = (self._stats_of(run, None, None) for run in runs)
        return NodeStats(
            started=self._usage_sampler.started,
            at=self._usage_sampler.now,
            containers=tuple(container_stats for container_stats in rows if container_stats is not None),
        )

    def _stats_of(self, run: RunId, used: Usage | None, rate: Rate | None) -> ContainerStats | None:
        pod_state = self._kubelet.pod_states.get(run.pod)
        state = pod_state.runs.get(run) if pod_state else None
        if pod_state is None or not isinstance(state, Running):
            return None
        return ContainerStats(
            namespace=pod_state.key.namespace,
            pod=pod_state.key.name,
            uid=pod_state.uid,
            container=run.container,
            started=state.started,
            usage=used,
            cores=rate.cores if rate else None,
        )

    def _find(self, pod_ref: PodRef) -> tuple[PodState, Pod]:
        for pod_state in self._kubelet.pod_states.values():
            named = (pod_state.key.namespace, pod_state.key.name) == (pod_ref.namespace, pod_ref.pod)
            pod = self._kubelet.effective_pod(pod_state) if named and pod_ref.uid in {"", pod_state.uid} else None
            if pod is not None:
                return pod_state, pod
        raise NotFound(f'pod "{pod_ref.namespace}/{pod_ref.pod}" is not on this node')

    def _find_container(self, pod_ref: PodRef) -> tuple[PodState, Pod, Container]:
        pod_state, pod = self._find(pod_ref)
        for container in all_containers(pod):
            if container.name == pod_ref.container:
                return pod_state, pod, container
        if pod_ref.container in {container.name for container in pod.spec.ephemeral_containers}:
            raise NotRunning(f'container "{pod_ref.container}" was not started: {NO_EPHEMERAL_CONTAINERS}')
        raise NotFound(f'container "{pod_ref.container}" not found in pod "{pod_ref.pod}"')


def _why_waiting(pod: Pod, container: Container, pod_ref: PodRef) -> str:
    if daemonset_pods.has_placeholder_annotation(pod):
        return f'pod "{pod_ref.pod}" belongs to a DaemonSet, and this virtual node does not run it'
    rows = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    states = [row.get("state") or {} for row in rows if row["name"] == container.name]
    waiting = next((state["waiting"] for state in states if "waiting" in state), {"reason": "ContainerCreating"})
    message = f": {waiting['message']}" if waiting.get("message") else ""
    return f'container "{container.name}" in pod "{pod_ref.pod}" is waiting to start: {waiting["reason"]}{message}'


def _manifest(pod: Pod) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", **msgspec.to_builtins(pod)}
