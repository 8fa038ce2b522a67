"""Reconciler of Services whose pods run at clouds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime

import msgspec

from skysail.base.names import Annotation
from skysail.claims.bridging.bridge_addresses import BridgeAddresses
from skysail.claims.bridging.bridge_ports import BridgePorts
from skysail.claims.bridging.endpoint_slices import ENDPOINT_SLICE, SERVICE_NAME
from skysail.claims.bridging.targets import Target, target_of
from skysail.claims.run_state import runs_of
from skysail.claims.types import CLOUD_INSTANCE, MAX_BRIDGE_PORTS, CloudInstance
from skysail.core.actions import Event, Plan
from skysail.core.controller import Controller
from skysail.kinds.cloud_services.caches import Caches
from skysail.kinds.cloud_services.objects import Pod, Service
from skysail.kinds.cloud_services.plan import planner, routes
from skysail.kinds.cloud_services.snapshot import Member, Snapshot
from skysail.kube.api.objects import IndexKey, Key, Object
from skysail.kube.api.rbac import PolicyRule, read_rule
from skysail.kube.api.resources import POD, SERVICE
from skysail.kube.cache.cache import Cache

POLICY_RULES = (
    read_rule(SERVICE),
    PolicyRule(SERVICE, ("create", "delete", "patch")),
    PolicyRule(SERVICE, ("patch",), subresource="status"),
    # OwnerReferencesPermissionEnforcement requires this right to set blockOwnerDeletion, here and for pods.
    PolicyRule(SERVICE, ("update",), subresource="finalizers"),
    read_rule(POD),
    PolicyRule(POD, ("patch",)),
    PolicyRule(POD, ("update",), subresource="finalizers"),
    read_rule(ENDPOINT_SLICE),
    PolicyRule(ENDPOINT_SLICE, ("create", "delete", "patch")),
    PolicyRule(CLOUD_INSTANCE.resource, ("patch",), subresource="status"),
)
# An instance of these states has a program to connect to.
_CONNECTED = {"Running", "Terminating"}


class CloudServiceReconciler:
    """Reconciler of Services. `reachable` maps each provider to whether the bridge can connect to its instances."""

    resource = SERVICE

    def __init__(
        self,
        caches: Caches,
        claims: Cache[CloudInstance],
        ports: BridgePorts,
        addresses: BridgeAddresses,
        *,
        reachable: Mapping[str, bool],
        now: Callable[[], datetime],
    ) -> None:
        self._caches = caches
        self._claims = claims
        self._ports = ports
        self._addresses = addresses
        self._reachable = reachable
        self._now = now
        self._enqueue: Callable[[Key], None] = lambda _: None

    async def observe(self, key: Key) -> Snapshot | None:
        service = self._caches.services.get(key)
        if service is None:
            return None
        members = tuple(self._members(service))
        slices = self._caches.slices.by("service", IndexKey(key.namespace, key.name))
        if members:
            await self._ports.load()
        snapshot = Snapshot(
            object=service,
            now=self._now(),
            members=members,
            slices=tuple(slice_ for slice_ in slices if Annotation.LAST_APPLIED_HASH in _annotations(slice_)),
            addresses=self._addresses.current,
            shared=frozenset(self._shared(members)),
            unreachable=frozenset(name for name, is_reachable in self._reachable.items() if not is_reachable),
        )
        is_growing = any(routes.needs_port(each[2], each[3], snapshot.shared) for each in routes.targets(snapshot))
        if is_growing and not service.is_headless:
            snapshot = msgspec.structs.replace(snapshot, unused=frozenset(self._unused(members)))
        return msgspec.structs.replace(snapshot, proposals=dict(self._proposals(snapshot)))

    def plan(self, snapshot: Snapshot) -> Plan:
        return planner.plan(snapshot)

    def on_rejected(self, snapshot: Snapshot, event: Event) -> Plan:
        return planner.on_rejected(snapshot, event)

    def connect(self, controller: Controller[Snapshot]) -> None:
        """Enqueue Services when a fact changes that their routes depend on."""
        self._enqueue = controller.queue.add
        self._caches.services.subscribe(controller.enqueue_object)
        for cache in self._caches.pods:
            cache.subscribe(self._pod_changed)
        self._claims.subscribe(self._claim_changed)
        self._caches.slices.subscribe(self._slice_changed)
        self._addresses.on_change(lambda: self._enqueue_services(self._caches.services.all()))

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        self._enqueue_services(self._services(pod for pod in (old, new) if pod is not None))

    def _claim_changed(self, old: CloudInstance | None, new: CloudInstance | None) -> None:
        claim = new or old
        if claim is not None and (old is None or new is None or old.status != new.status):
            self._enqueue_services(self._services(self._pods_of(claim)))

    def _slice_changed(self, old: Object | None, new: Object | None) -> None:
        for slice_ in (old, new):
            if slice_ is not None and (name := (slice_.metadata.labels or {}).get(SERVICE_NAME)):
                self._enqueue(Key(slice_.metadata.namespace, name))

    def _enqueue_services(self, services: Iterable[Service]) -> None:
        for service in services:
            self._enqueue(service.metadata.key)

    def _members(self, service: Service) -> Iterator[Member]:
        namespace = IndexKey(service.metadata.namespace, "")
        for pod in (pod for cache in self._caches.pods for pod in cache.by("namespace", namespace)):
            if service.leads_to(pod) and not pod.is_finished:
                yield self._member(pod)

    def _member(self, pod: Pod) -> Member:
        """Return the pod with the claim of its running instance. Tenants cannot write claims, which name their pods."""
        claims = self._claims.by("pod", IndexKey("", pod.metadata.uid))
        own = (claim for claim in claims if claim.spec.owner.namespace == pod.metadata.namespace and runs_of(claim))
        latest = max(own, key=lambda claim: claim.spec.launch, default=None)
        if latest is None or latest.status.state not in _CONNECTED or latest.status.ready_time is None:
            return Member(pod, None)
        return Member(pod, latest, [run.pod for run in runs_of(latest)].index(pod.metadata.uid))

    def _shared(self, members: Iterable[Member]) -> Iterator[tuple[str, int]]:
        for claim in (member.claim for member in members if member.claim):
            for entry in claim.status.bridge_ports:
                if self._ports.is_shared(claim, entry.port):
                    yield claim.metadata.name, entry.port

    def _unused(self, members: Iterable[Member]) -> Iterator[tuple[str, Target]]:
        """Yield the targets of the members' claims to which no Service leads. Unknown objects may lead anywhere."""
        if self._caches.services.undecodable or any(cache.undecodable for cache in self._caches.pods):
            return
        for claim in {member.claim.metadata.name: member.claim for member in members if member.claim}.values():
            used = set(self._used(claim))
            for entry in claim.status.bridge_ports:
                if (target := target_of(entry)) not in used:
                    yield claim.metadata.name, target

    def _used(self, claim: CloudInstance) -> Iterator[Target]:
        ranks = {run.pod: rank for rank, run in enumerate(runs_of(claim))}
        for pod in self._pods_of(claim):
            for service in self._services([pod]):
                for port in service.spec.ports:
                    number = pod.port(port.target_port, port.port)
                    if number is not None:
                        yield Target(ranks[pod.metadata.uid], number)

    def _proposals(self, snapshot: Snapshot) -> Iterator[tuple[tuple[str, Target], int]]:
        """Yield a port for each target without one, up to the most that a claim can have."""
        if snapshot.object.is_headless:
            return
        given_back = Counter(claim for claim, _ in snapshot.unused)
        added: defaultdict[str, set[Target]] = defaultdict(set)
        for _, _, claim, target in routes.targets(snapshot):
            name = claim.metadata.name
            present = len(claim.status.bridge_ports) - given_back[name]
            if not routes.needs_port(claim, target, snapshot.shared) or present + len(added[name]) >= MAX_BRIDGE_PORTS:
                continue
            port = self._ports.propose(name, target)
            if port is not None:
                added[name].add(target)
                yield (name, target), port

    def _pods_of(self, claim: CloudInstance) -> list[Pod]:
        uids = (IndexKey(claim.spec.owner.namespace, run.pod) for run in runs_of(claim))
        return [pod for uid in uids for cache in self._caches.pods for pod in cache.by("uid", uid)]

    def _services(self, pods: Iterable[Pod]) -> list[Service]:
        """Return the Services that lead to one of the pods, in the namespace of the pod."""
        return [
            service
            for pod in pods
            for service in self._caches.services.by("namespace", IndexKey(pod.metadata.namespace, ""))
            if service.leads_to(pod)
        ]


def _annotations(object_: Object) -> dict[str, str]:
    return object_.metadata.annotations or {}
