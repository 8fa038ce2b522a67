"""Models in the operator's process: the controllers of both kinds, over caches that they share."""

from __future__ import annotations

from skysail.base import clock
from skysail.base.settings import Settings
from skysail.core import act
from skysail.core.act import Performer
from skysail.core.fence import Fence
from skysail.kinds.model.caches import Caches
from skysail.kinds.model.observe import Models
from skysail.kinds.model.terms import terms
from skysail.kinds.model.types import KINDS
from skysail.kube.client import Client


class Serving:
    """Its performer is its own: it knows the Jobs, pods and Services of models, as another one knows those of runs."""

    def __init__(self, client: Client, settings: Settings, fence: Fence) -> None:
        self.caches = Caches.make()
        told = terms(settings)
        self.controllers = tuple(Models(kind, client, self.caches, clock.now, told) for kind in KINDS)
        self.performer = Performer(client, act.Caches(*self.caches.models.values(), *self.caches.children), fence)
