"""Every kind that Skysail defines, in one list: what is installed, documented and granted rights for."""

from __future__ import annotations

from skysail.claims import types as claims
from skysail.kinds.modal_endpoints import types as remote
from skysail.kinds.offload import types as offload
from skysail.kinds.serving.api import types as model
from skysail.kinds.training.api import training_job as run
from skysail.kube.api.crd import CustomKind

ALL_KINDS: tuple[CustomKind, ...] = (*run.KINDS, *model.KINDS, *remote.KINDS, *claims.KINDS, *offload.KINDS)

# Kinds of other projects. Theirs is installed in a cluster; ours stands in for them where they are absent.
COMPATIBLE_KINDS: tuple[CustomKind, ...] = run.COMPATIBLE_KINDS
