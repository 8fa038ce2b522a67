"""Every kind that Skysail defines, in one list: what is installed, documented and granted rights for."""

from __future__ import annotations

from skysail.claims import types as claim_types
from skysail.claims.limits.offload_policy import OFFLOAD_POLICY
from skysail.claims.limits.spend_account import SPEND_ACCOUNT
from skysail.kinds.modal_endpoints import types as modal_endpoints
from skysail.kinds.serving.api import types as serving
from skysail.kinds.training.api import training_job
from skysail.kube.api.crd import CustomKind

ALL_KINDS: tuple[CustomKind, ...] = (
    *training_job.KINDS,
    *serving.KINDS,
    *modal_endpoints.KINDS,
    *claim_types.KINDS,
    OFFLOAD_POLICY,
    SPEND_ACCOUNT,
)

# Kinds of other projects. Theirs is installed in a cluster; ours stands in for them where they are absent.
COMPATIBLE_KINDS: tuple[CustomKind, ...] = training_job.COMPATIBLE_KINDS
