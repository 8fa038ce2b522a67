"""Endpoints and functions in the operator's process: the reconcilers of both kinds, over shared caches."""

from __future__ import annotations

from pathlib import Path

from skysail.base import clock
from skysail.core import executor
from skysail.core.executor import Executor
from skysail.core.fence import Fence
from skysail.kinds.modal_endpoints.caches import Caches
from skysail.kinds.modal_endpoints.reconciler import AccountFacts, EndpointReconciler
from skysail.kinds.modal_endpoints.types import KINDS
from skysail.kube.client.client import Client
from skysail.runtimes import handler_server


class EndpointsModule:
    """Builds the parts for endpoints. They have their own executor, because its caches hold the children of them."""

    def __init__(self, client: Client, fence: Fence, *, account: AccountFacts) -> None:
        self.caches = Caches.create()
        # Only the source is used: tenants' code never runs in the operator.
        shim = Path(handler_server.__file__).read_text(encoding="utf-8")
        self.reconcilers = tuple(
            EndpointReconciler(kind, client, self.caches, clock.now, shim=shim, account=account) for kind in KINDS
        )
        self.executor = Executor(
            client, executor.CacheRegistry(*self.caches.owners.values(), *self.caches.children), fence
        )
