"""The sync loop of one node: observe, plan, execute and report, for each pod independently.

The provider is the source of truth for runs, by its changes and by a complete listing at intervals; the API server is
the source of truth for pods. State in memory may be lost: it is rebuilt from these two.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from skysail.base import tasks as base_tasks
from skysail.base.names import EventReason
from skysail.claims.requirements.cloud_requirements import CloudRequirements
from skysail.cloud.errors import ProviderError
from skysail.cloud.provider import Ended, Provider, RunId, RuntimeListing
from skysail.core.workqueue import WorkQueue
from skysail.kube import events
from skysail.kube.api import tolerations
from skysail.kube.api.rbac import PolicyRule, read_rule
from skysail.kube.api.resources import POD, SERVICE
from skysail.kube.cache.audit import audit
from skysail.kube.cache.cache import Cache
from skysail.kube.cache.reflector import Reflector
from skysail.kube.client.client import Client
from skysail.kube.client.errors import ApiError, Conflict, Forbidden, Invalid, KubeError, NotFound, ServerFault
from skysail.node.config import cloud_pod
from skysail.node.config.references import NodeInfo, ReferenceResolver
from skysail.node.executor import StepExecutor
from skysail.node.log_store import LogStore
from skysail.node.pod_state import PodState
from skysail.node.pod_types import Pod
from skysail.node.sync import cloud_requirements, daemonset_pods, status, status_size, unsupported_fields
from skysail.node.sync.planner import (
    Annotate,
    CreateSandbox,
    DeletePod,
    Plan,
    RemoveSandbox,
    ShowInstance,
    Start,
    Stop,
    plan,
)
from skysail.node.sync.snapshot import age, lost_runs, lost_state
from skysail.node.sync.unsupported_fields import UnsupportedFields

_WORKERS = 16
_RELIST_SECONDS = 30.0
_REFRESH_SECONDS = 60.0
_AUDIT_SECONDS = 600.0
# A start or stop takes some milliseconds: delay the status, so that it is not written for a transition that short.
_MAX_STATUS_DELAY = 2.0
# Delete a pod after this many rejections of its last status, by an admission webhook or for its size: it must not hang.
_MAX_REJECTIONS = 3

POLICY_RULES = (
    read_rule(POD),
    PolicyRule(POD, ("patch",), subresource="status"),
    PolicyRule(POD, ("delete", "patch")),
    read_rule(SERVICE),
)

# Events of a provider that users should see.
_WARNINGS = {
    EventReason.LIFETIME_LIMITED,
    EventReason.PYTHON_VERSION_MISMATCH,
    EventReason.IMAGE_VERSION_MISMATCH,
}
log = logging.getLogger(__name__)


class KubeletDependencies(msgspec.Struct, frozen=True):
    """Dependencies of a kubelet.

    `wall` is the time in statuses, in seconds since 1970. `clock` is monotonic.
    """

    broadcaster: events.Broadcaster
    wall: Callable[[], float]
    clock: Callable[[], float]
    rng: random.Random


class Kubelet:
    """Runs the pods of one node."""

    def __init__(
        self,
        client: Client,
        provider: Provider,
        node_info: NodeInfo,
        logs: LogStore,
        *,
        deps: KubeletDependencies,
    ) -> None:
        self._client = client
        self._provider = provider
        self._node_info = node_info
        self._logs = logs
        self._broadcaster = deps.broadcaster
        self._wall = deps.wall
        self._clock = deps.clock
        self._rng = deps.rng
        self._references = ReferenceResolver(client, node_info, self._wall)
        self._runtime_listing = RuntimeListing(runs={}, pods={}, complete=False)
        self._queue: WorkQueue[str] = WorkQueue(rng=self._rng)
        self._executor = StepExecutor(provider, self._references, logs, self, now=self._wall, changed=self._queue.add)
        self.pod_states: dict[str, PodState] = {}
        self.pods: Cache[Pod] = Cache(POD, Pod, selector={"fieldSelector": f"spec.nodeName={node_info.name}"})

    async def run(self) -> None:
        """Run the node's pods until cancelled."""
        services = self._references.services
        try:
            async with asyncio.TaskGroup() as tasks:
                self._executor.tasks = tasks
                for cache in (self.pods, services):
                    reflector = Reflector[Any](self._client, cache, rng=self._rng)
                    tasks.create_task(reflector.run())
                    tasks.create_task(self._audit_forever(cache, reflector))
                tasks.create_task(self._follow_changes())
                await self.pods.synced.wait()
                await services.synced.wait()
                if not self.pods.undecodable:
                    self._logs.forget_others({pod.metadata.uid for pod in self.pods.all()})
                await self._first_listing()
                for pod in self.pods.all():
                    self._on_pod_change(None, pod)
                self.pods.subscribe(self._on_pod_change)
                tasks.create_task(self._relist_forever())
                tasks.create_task(self._refresh_forever())
                for _ in range(_WORKERS):
                    tasks.create_task(self._work())
        finally:
            self._queue.close()

    def record_event(self, pod: Pod, reason: str, note: str, *, warning: bool = True) -> None:
        self._broadcaster.record(
            events.ObjectEvent(resource=POD, object=pod, reason=reason, note=note, warning=warning)
        )

    def record_run_event(self, run: RunId, reason: str, note: str) -> None:
        """Record an event of the provider about a run, on its pod."""
        pod_state = self.pod_states.get(run.pod)
        pod = self.effective_pod(pod_state) if pod_state else None
        if pod is not None:
            self.record_event(pod, reason, f"{run.container}: {note}", warning=reason in _WARNINGS)

    def show_progress(self, run: RunId, step: str) -> None:
        """Show in the pod's status how far the image of a starting run is. An empty step ends this."""
        pod_state = self.pod_states.get(run.pod)
        if pod_state is not None:
            pod_state.image_progress.pop(run.container, None)
            if step:
                pod_state.image_progress[run.container] = step
            self._queue.add(run.pod)

    def cached_pod(self, uid: str) -> Pod | None:
        """Return a pod of this node from the cache. Returns None if it is deleted or unknown."""
        pod_state = self.pod_states.get(uid)
        pod = self.pods.get(pod_state.key) if pod_state else None
        return pod if pod is not None and pod.metadata.uid == uid else None

    def effective_pod(self, pod_state: PodState) -> Pod | None:
        """Return the cached pod, without its service account token on a virtual node.

        Returns None if the pod is deleted, even if another pod has its name now.
        """
        pod = self.cached_pod(pod_state.uid)
        return None if pod is None else self._effective(pod)

    def requirements(self, uid: str) -> CloudRequirements:
        """Return what a pod of this node asks of its cloud. Raises Rejected if its annotations cannot be honoured."""
        pod_state, pod = self.pod_states.get(uid), self.cached_pod(uid)
        if pod_state is None or pod is None:
            return CloudRequirements()
        return cloud_requirements.requirements(self._effective(pod), pod_state.registry_credentials)

    def _effective(self, pod: Pod) -> Pod:
        """Return the pod as this node runs it: at a cloud without its service account token, and in container mode."""
        if not self._node_info.is_virtual:
            return pod
        return cloud_pod.effective(pod, self._provider.name)

    def _on_pod_change(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None:
            self._queue.add(old.metadata.uid)
        if new is None:
            return
        if new.metadata.uid not in self.pod_states:
            self._add_pod(new)
        elif old is not None and _has_changed(old, new) and self._unsupported(old) != self._unsupported(new):
            self._report_unsupported(new)
        self._queue.add(new.metadata.uid)

    def _add_pod(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        runs = {run: state for run, state in self._runtime_listing.runs.items() if run.pod == uid}
        now = self._wall()
        all_runs = {**runs, **lost_runs(pod, runs, now)}
        pod_state = PodState(pod, all_runs, self._runtime_listing.pods.get(uid), began=self._clock() - age(pod, now))
        self.pod_states[uid] = pod_state
        self._report_unsupported(pod)
        if self._node_info.is_virtual:
            for warning in cloud_requirements.warnings(pod):
                self.record_event(pod, EventReason.INVALID_ANNOTATION, warning)
            if again := cloud_requirements.restart_warning(pod):
                self.record_event(pod, EventReason.RESTART_POLICY_ALWAYS, again)
        for run in pod_state.active_runs():
            self._executor.adopt(pod_state, pod, run)

    def _report_unsupported(self, pod: Pod) -> None:
        unsupported_fields = self._unsupported(pod)
        for event_reason, sentences in (
            (EventReason.UNSUPPORTED, unsupported_fields.rejected),
            (EventReason.FIELDS_IGNORED, unsupported_fields.ignored),
        ):
            if sentences:
                self.record_event(pod, event_reason, " ".join(sentences))

    async def _work(self) -> None:
        while True:
            uid, _ = await self._queue.get()
            try:
                await self._reconcile_logged(uid)
            finally:
                self._queue.done(uid)

    async def _reconcile_logged(self, uid: str) -> None:
        """Reconcile one pod, and requeue it with backoff after an unexpected error."""
        if not await base_tasks.run_logged(self._try_reconcile(uid), f"reconcile of pod {uid}"):
            self._queue.add_rate_limited(uid)

    async def _try_reconcile(self, uid: str) -> None:
        try:
            await self._reconcile(uid)
        except (Conflict, NotFound) as error:
            # The pod changed meanwhile: the watch brings the new version for the next reconcile.
            log.debug("pod changed during its reconcile, requeued", extra={"pod": uid, "why": str(error)})
            self._queue.add_rate_limited(uid)
        except (KubeError, ProviderError) as error:
            delay = self._queue.add_rate_limited(uid)
            log.warning(
                "reconcile of pod failed, requeued", extra={"pod": uid, "why": str(error), "retry_in": round(delay, 1)}
            )
        else:
            self._queue.forget(uid)

    async def _reconcile(self, uid: str) -> None:
        pod_state = self.pod_states.get(uid)
        if pod_state is None:
            return
        pod = self.effective_pod(pod_state)
        if pod is None:
            await self._forget_pod(pod_state)
            return
        if self._node_info.is_virtual and await self._ensure_tolerations(pod):
            return  # the cache enqueues the pod for our own write
        unsupported, pod = self._unsupported(pod), unsupported_fields.bounded(pod)
        snapshot = pod_state.snapshot(
            pod, now=self._wall(), clock=self._clock(), host_ip=self._node_info.address, unsupported=unsupported
        )
        planned = (
            daemonset_pods.plan(snapshot) if daemonset_pods.is_placeholder(pod, self._node_info) else plan(snapshot)
        )
        await self._execute(pod_state, pod, planned)
        await self._report(pod_state, pod, planned)
        await self._clean_up(pod_state, pod, planned)
        if planned.requeue_after is not None:
            self._queue.add_after(uid, planned.requeue_after)

    async def _ensure_tolerations(self, pod: Pod) -> bool:
        """Remove the time limits of the pod's tolerations, and return whether the pod was written.

        The webhook does this at admission, unless it was down or could not know the node.
        """
        lasting = tolerations.tolerate_forever(pod.spec.tolerations)
        if lasting is None or pod.is_finished or pod.metadata.is_deleting:
            return False
        metadata = pod.metadata
        patch = {"metadata": {"uid": metadata.uid}, "spec": {"tolerations": lasting}}
        self.pods.record_write(await self._client.merge_patch(POD, metadata.namespace, metadata.name, patch, Pod))
        return True

    def _unsupported(self, pod: Pod) -> UnsupportedFields:
        if daemonset_pods.is_placeholder(pod, self._node_info):
            return UnsupportedFields()
        found = unsupported_fields.find(self._effective(pod), self._provider.features)
        return found + cloud_requirements.unsupported(pod, self._provider.name) if self._node_info.is_virtual else found

    async def _execute(self, pod_state: PodState, pod: Pod, planned: Plan) -> None:
        for step in planned.steps:
            match step:
                case CreateSandbox():
                    await self._executor.prepare(pod_state, pod)
                    self._queue.add(pod_state.uid)
                case Start():
                    self._executor.start(pod_state, pod, step)
                case Stop():
                    await self._executor.stop(pod_state, pod, step)
                case Annotate():
                    await self._annotate(pod, {"annotations": step.annotations})
                    note = (
                        "Shown as running, but not run: this node stands for a cloud without machines for DaemonSets."
                    )
                    self.record_event(pod, EventReason.PLACEHOLDER_POD, note, warning=False)
                case ShowInstance():
                    await self._annotate(pod, {"annotations": step.annotations, "labels": step.labels})
                case RemoveSandbox() | DeletePod():
                    pass  # in `_clean_up`: the last status is written before the pod is removed
            await asyncio.sleep(0)  # a pod with many containers must not delay the others

    async def _annotate(self, pod: Pod, added: Mapping[str, Mapping[str, str]]) -> None:
        metadata = pod.metadata
        patch = {"metadata": {"uid": metadata.uid, **added}}
        self.pods.record_write(await self._client.merge_patch(POD, metadata.namespace, metadata.name, patch, Pod))

    async def _clean_up(self, pod_state: PodState, pod: Pod, planned: Plan) -> None:
        if RemoveSandbox() in planned.steps:
            await self._executor.release(pod_state)
        if DeletePod() in planned.steps:
            await self._delete_pod(pod)

    async def _report(self, pod_state: PodState, pod: Pod, planned: Plan) -> None:
        new_status = status_size.shortened(planned.status or {}, pod_state.brevity)
        if planned.status is None or not status.differs(pod, new_status):
            pod_state.report_due = None
            return
        if not planned.is_final and (planned.is_moving or pod_state.is_in_transition):
            now = self._wall()
            pod_state.report_due = pod_state.report_due or now + _MAX_STATUS_DELAY
            if now < pod_state.report_due:
                self._queue.add_after(pod_state.uid, pod_state.report_due - now)
                return
        pod_state.report_due = None
        try:
            self.pods.record_write(await self._client.patch_status(POD, pod, new_status, Pod))
        except (Forbidden, Invalid, ServerFault) as error:
            await self._rejected(pod_state, pod, planned, error)
            return
        pod_state.rejections = 0
        for note in status.new_backoffs(pod, new_status):
            self.record_event(pod, EventReason.BACK_OFF, note)

    async def _rejected(self, pod_state: PodState, pod: Pod, planned: Plan, error: ApiError) -> None:
        """Write a shorter status if this one is too large.

        Raises the error, unless the pod is to be deleted and its last status was rejected too often.
        """
        if status_size.is_too_large(error) and pod_state.brevity < status_size.MAX_BREVITY:
            pod_state.brevity += 1
            log.warning("status too large, shortened", extra={"pod": str(pod_state.key), "brevity": pod_state.brevity})
            await self._report(pod_state, pod, planned)
            return
        pod_state.rejections += 1
        if DeletePod() not in planned.steps or pod_state.rejections < _MAX_REJECTIONS:
            raise error
        log.warning(
            "last status rejected, pod deleted without it", extra={"pod": str(pod_state.key), "why": str(error)}
        )

    async def _delete_pod(self, pod: Pod) -> None:
        try:
            left = await self._client.delete(POD, pod, Pod, {"gracePeriodSeconds": 0})
        except (NotFound, Conflict):
            return  # already deleted, or the name belongs to another pod
        if left is not None:
            self.pods.record_write(left)

    async def _forget_pod(self, pod_state: PodState) -> None:
        """Remove everything about a pod that is deleted at the API server, by force or by us."""
        pod_state.close()
        await self._executor.release(pod_state)
        self._logs.forget(pod_state.uid)
        self._references.forget(pod_state.uid)
        self._queue.discard(pod_state.uid)
        del self.pod_states[pod_state.uid]

    async def _follow_changes(self) -> None:
        async for run in self._provider.changes():
            pod_state = self.pod_states.get(run.pod)
            if pod_state is not None:
                self._executor.task(self._refresh_run(pod_state, run), f"state of {run}")

    async def _refresh_run(self, pod_state: PodState, run: RunId) -> None:
        try:
            state = await self._provider.state(run)
        except ProviderError as error:
            log.info("run state unknown until the next listing", extra={"why": str(error)})
            return
        if run in pod_state.starting:
            return  # the task that starts the run reads its state
        await self._executor.on_state(pod_state, self.effective_pod(pod_state), run, state)

    async def _first_listing(self) -> None:
        """Wait for a complete listing. Nothing is done before it, because an unlisted run may not be lost."""
        while not self._runtime_listing.complete:
            try:
                self._runtime_listing = await self._provider.list()
            except ProviderError as error:
                log.warning("first listing of the provider failed, retried", extra={"why": str(error)})
            if not self._runtime_listing.complete:
                await asyncio.sleep(1.0)

    async def _relist_forever(self) -> None:
        while True:
            await base_tasks.run_logged(self._try_relist(), "listing of the provider")
            await asyncio.sleep(_RELIST_SECONDS * self._rng.uniform(0.9, 1.1))

    async def _try_relist(self) -> None:
        try:
            await self._relist()
        except ProviderError as error:
            log.warning("listing of the provider failed, retried", extra={"why": str(error)})

    async def _relist(self) -> None:
        """Compare our state with a listing: find missed changes, lost runs, and obsolete pod sandboxes."""
        expected = {run: pod_state for pod_state in self.pod_states.values() for run in pod_state.active_runs()}
        runtime_listing = await self._provider.list()
        for run, state in runtime_listing.runs.items():
            pod_state = self.pod_states.get(run.pod)
            if pod_state is not None and pod_state.runs.get(run) != state:
                await self._refresh_run(pod_state, run)
        if not runtime_listing.complete:
            return
        self._runtime_listing = runtime_listing
        for run, pod_state in expected.items():
            last = pod_state.runs.get(run)
            if run in runtime_listing.runs or run in pod_state.starting or last is None or isinstance(last, Ended):
                continue
            if await self._provider.state(run) is None:
                pod_state.ended(run, lost_state(last, self._wall()))
                self._queue.add(pod_state.uid)
        for uid in {*runtime_listing.pods, *(run.pod for run in runtime_listing.runs)} - self.pod_states.keys():
            await self._provider.remove_sandbox(uid)

    async def _audit_forever(self, cache: Cache[Any], reflector: Reflector[Any]) -> None:
        """Compare a cache with the API server at intervals, because a watch can miss an event without an error."""
        while True:
            await asyncio.sleep(_AUDIT_SECONDS * self._rng.uniform(0.9, 1.1))
            try:
                audit_result = await audit(self._client, cache)
            except KubeError as error:
                log.info("node cache not audited", extra={"why": str(error)})
                continue
            if audit_result.differs:
                log.warning("node cache differs, relisted", extra=msgspec.structs.asdict(audit_result))
                reflector.relist()

    async def _refresh_forever(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_SECONDS * self._rng.uniform(0.9, 1.1))
            for pod_state in list(self.pod_states.values()):
                pod = self.effective_pod(pod_state)
                if pod is not None and not pod.is_finished:
                    await base_tasks.run_logged(self._executor.refresh(pod_state, pod), f"files of pod {pod_state.uid}")


def _has_changed(old: Pod, new: Pod) -> bool:
    """Return whether the node may support other fields of the new version than of the old one."""
    return old.spec != new.spec or old.metadata.annotations != new.metadata.annotations
