"""Configuration of offload, from the operator's settings."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from skysail.base.settings import NodeSettings, Settings
from skysail.claims.requirements.types import MODAL
from skysail.kinds.offload.plan.placement import PlacementConfig

_KATIB = frozenset({"Trial", "Experiment", "Suggestion"})
_TRAINING_OPERATOR = frozenset({"PyTorchJob", "TFJob", "XGBoostJob", "MPIJob", "PaddleJob", "JAXJob"})
_KSERVE = frozenset({"InferenceService", "InferenceGraph"})


class OffloadConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`nodes`: cloud nodes by name. `excluded_kinds`: pods with such an owner are never touched.

    `excluded_namespaces`: namespaces of the cluster's own pods and of the operator.
    """

    nodes: Mapping[str, NodeSettings]
    placement: PlacementConfig = PlacementConfig()
    excluded_kinds: frozenset[str] = frozenset()
    excluded_namespaces: frozenset[str] = frozenset({"kube-system"})

    @property
    def providers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(node.provider for node in self.nodes.values()))


def offload_config(settings: Settings) -> OffloadConfig:
    """Return the configuration that the settings describe."""
    return OffloadConfig(
        nodes=settings.nodes,
        placement=PlacementConfig(
            auto=settings.offload_auto,
            max_gpu_price=settings.max_gpu_price,
            max_pending=settings.max_pending_seconds,
            pending_job_threshold=settings.pending_job_threshold,
            schedulers=settings.offload_schedulers,
            autoscaler_wait=settings.autoscaler_wait_seconds,
            scale_up_timeout=settings.scale_up_timeout_seconds,
            default_gpu_types={MODAL: settings.modal_default_gpu_type},
        ),
        excluded_kinds=_excluded_kinds(settings),
        excluded_namespaces=frozenset({"kube-system", settings.operator_namespace}),
    )


def _excluded_kinds(settings: Settings) -> frozenset[str]:
    adapters = (
        (settings.katib_adapter, _KATIB),
        (settings.training_operator_adapter, _TRAINING_OPERATOR),
        (settings.kserve_adapter, _KSERVE),
    )
    return frozenset(kind for is_on, kinds in adapters if not is_on for kind in kinds)
