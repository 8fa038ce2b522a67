"""Models in the operator's process: the controllers of both kinds, over caches that they share."""

from __future__ import annotations

from skysail.base import clock
from skysail.base.settings import Settings
from skysail.core import executor
from skysail.core.executor import Performer
from skysail.core.fence import Fence
from skysail.kinds.serving.api.types import KINDS
from skysail.kinds.serving.caches import Caches
from skysail.kinds.serving.reconciler import ModelReconciler
from skysail.kinds.serving.spec.config import serving_config
from skysail.kube.client.client import Client


class ServingModule:
    """Its performer is its own: it knows the Jobs, pods and Services of models, as another one knows those of runs."""

    def __init__(self, client: Client, settings: Settings, fence: Fence) -> None:
        self.caches = Caches.create()
        config = serving_config(settings)
        self.controllers = tuple(ModelReconciler(kind, client, self.caches, clock.now, config) for kind in KINDS)
        self.performer = Performer(
            client, executor.CacheRegistry(*self.caches.models.values(), *self.caches.children), fence
        )
