"""Reconciler of pods at clouds that ask for a tunnel."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from skysail.core.actions import Event, Plan
from skysail.core.controller import Controller
from skysail.kinds.cloud_services.caches import Caches
from skysail.kinds.cloud_services.objects import Service
from skysail.kinds.cloud_services.plan import tunnels
from skysail.kinds.cloud_services.plan.tunnels import TunnelSnapshot
from skysail.kube.api.objects import Key
from skysail.kube.api.resources import POD


class TunnelReconciler:
    """Reconciler of pods on the nodes of clouds."""

    resource = POD

    def __init__(self, caches: Caches, now: Callable[[], datetime]) -> None:
        self._caches = caches
        self._now = now

    async def observe(self, key: Key) -> TunnelSnapshot | None:
        pod = next((pod for cache in self._caches.pods if (pod := cache.get(key)) is not None), None)
        if pod is None:
            return None
        services = self._caches.services.by("owner", pod.metadata.identity)
        return TunnelSnapshot(pod, self._now(), tuple(services))

    def plan(self, snapshot: TunnelSnapshot) -> Plan:
        return tunnels.plan(snapshot)

    def on_rejected(self, snapshot: TunnelSnapshot, event: Event) -> Plan:  # noqa: ARG002 (the protocol's)
        return Plan(events=(event,))

    def connect(self, controller: Controller[TunnelSnapshot]) -> None:
        """Enqueue a pod when it changes, and when its Service does."""

        def service_changed(old: Service | None, new: Service | None) -> None:
            for service in (old, new):
                owner = service.metadata.controller if service is not None else None
                if service is not None and owner is not None and owner.kind == POD.kind:
                    controller.queue.add(Key(service.metadata.namespace, owner.name))

        for cache in self._caches.pods:
            cache.subscribe(controller.enqueue_object)
        self._caches.services.subscribe(service_changed)
