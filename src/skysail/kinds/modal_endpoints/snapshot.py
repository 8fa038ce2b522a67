"""Snapshot of one ModalEndpoint or ModalFunction for its plan."""

from __future__ import annotations

from datetime import datetime

import msgspec

from skysail.kinds.modal_endpoints.desired import Desired
from skysail.kinds.modal_endpoints.objects import Deployment, Pod
from skysail.kinds.modal_endpoints.types import ModalEndpoint, ModalFunction
from skysail.kube.api.crd import CustomKind
from skysail.kube.api.objects import Object


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Complete input of the plan.

    `desired` is None if the code cannot be read; `code_problem` then says why, as a sentence.
    `config_maps` hold the code of the current and earlier revisions. `is_simulated`: nothing is paid.
    """

    kind: CustomKind
    object: ModalEndpoint | ModalFunction
    now: datetime
    desired: Desired | None
    code_problem: str = ""
    deployment: Deployment | None = None
    pods: tuple[Pod, ...] = ()
    config_maps: tuple[Object, ...] = ()
    is_simulated: bool = False
