"""Addresses of the bridge, as EndpointSlices list them: configured ones, or those of the bridge's ready pods."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from skysail.base.names import BRIDGE_COMPONENT, Label
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import POD
from skysail.kube.cache.cache import Cache


class _Condition(msgspec.Struct, frozen=True, gc=False):
    type: str
    status: str


class _Status(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: tuple[_Condition, ...] = ()


class BridgePod(Object, frozen=True, gc=False):
    """A pod of the bridge. Only its address and its readiness are kept."""

    status: _Status = _Status()

    @property
    def address(self) -> str:
        """Return the address, or an empty string if the pod must get no new connections."""
        is_ready = any(row.type == "Ready" and row.status == "True" for row in self.status.conditions)
        return self.status.pod_ip if is_ready and not self.metadata.is_deleting else ""


class BridgeAddresses:
    """Current addresses. `configured` is set where the bridge is no pod; else the process has to fill `pods`.

    Several configured addresses have commas between them.
    """

    def __init__(self, configured: str | None, namespace: str) -> None:
        words = (word.strip() for word in (configured or "").split(","))
        self._configured = tuple(sorted({word for word in words if word}))
        self._namespace = namespace
        self.pods: Cache[BridgePod] = Cache(
            POD, BridgePod, selector={"labelSelector": f"{Label.COMPONENT}={BRIDGE_COMPONENT}"}
        )
        # The bridge runs in the operator's namespace, which need not be one that the operator watches.
        self.pods.feeds = (namespace,)

    @property
    def caches(self) -> tuple[Cache[BridgePod], ...]:
        """Return the caches that the process has to fill."""
        return () if self._configured else (self.pods,)

    @property
    def current(self) -> tuple[str, ...]:
        """Return the sorted addresses. Pods of other namespaces do not count, whatever their labels say."""
        if self._configured:
            return self._configured
        ours = (pod for pod in self.pods.all() if pod.metadata.namespace == self._namespace)
        return tuple(sorted({pod.address for pod in ours if pod.address}))

    def on_change(self, changed: Callable[[], None]) -> None:
        def pod_changed(old: BridgePod | None, new: BridgePod | None) -> None:
            if (old.address if old else "") != (new.address if new else ""):
                changed()

        self.pods.subscribe(pod_changed)
