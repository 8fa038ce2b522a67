"""Models in the operator's process: the reconcilers of both kinds, over shared caches."""

from __future__ import annotations

from skysail.base import clock
from skysail.base.settings import Settings
from skysail.core import executor
from skysail.core.executor import Executor
from skysail.core.fence import Fence
from skysail.kinds.serving.api.types import KINDS
from skysail.kinds.serving.caches import Caches
from skysail.kinds.serving.reconciler import ModelReconciler
from skysail.kinds.serving.spec.config import serving_config
from skysail.kube.client.client import Client


class ServingModule:
    """Builds the parts for models. They have their own executor, because its caches hold the children of models."""

    def __init__(self, client: Client, settings: Settings, fence: Fence) -> None:
        self.caches = Caches.create()
        config = serving_config(settings)
        self.reconcilers = tuple(ModelReconciler(kind, client, self.caches, clock.now, config) for kind in KINDS)
        self.executor = Executor(
            client, executor.CacheRegistry(*self.caches.models.values(), *self.caches.children), fence
        )
