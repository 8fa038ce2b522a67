"""List of all kinds that Skysail defines: the source for CRDs, reference documents and policy rules."""

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

# Kinds of other projects. Our CRDs are stand-ins, installed only if the cluster lacks the project's own.
COMPATIBLE_KINDS: tuple[CustomKind, ...] = training_job.COMPATIBLE_KINDS
