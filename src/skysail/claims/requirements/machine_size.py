"""CPU and memory of the machine that a pod needs at a cloud, from its spec before a node has it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from skysail.claims.requirements.types import ContainerOverrides, PodSpecView
from skysail.cloud import provider
from skysail.cloud.provider import ResourceLimits
from skysail.kube.api import quantities

# Containers that other systems add to a pod, and which have nothing to do at a cloud.
INJECTED_CONTAINERS = frozenset(
    {
        *("istio-proxy", "istio-init", "istio-validation"),
        "queue-proxy",
        *("vault-agent", "vault-agent-init"),
        # Waits until the name of rank 0 resolves. At a cloud all ranks start together.
        "init-pytorch",
    }
)
# Kubernetes counts threads of a core, Modal and its annotation count physical cores.
CORES_PER_PHYSICAL_CORE = 2


def machine_size(spec: PodSpecView, overrides: ContainerOverrides | None) -> ResourceLimits:
    """Return CPU and memory of the first container that runs at a cloud, with the values of container mode.

    An amount that the API server would reject counts as absent.
    """
    containers = spec.containers or ()
    kept = tuple(one for one in containers if one.name not in INJECTED_CONTAINERS) or containers
    resources = kept[0].resources if kept else None
    found = provider.machine_size(
        _amounts((resources.limits if resources else None) or {}),
        _amounts((resources.requests if resources else None) or {}),
    )
    if overrides is None:
        return found
    cpu = found.cpu if overrides.cpu is None else overrides.cpu * CORES_PER_PHYSICAL_CORE
    return ResourceLimits(cpu=cpu, memory=found.memory if overrides.memory is None else overrides.memory)


def _amounts(listed: Mapping[str, str | int | float]) -> ResourceLimits:
    cpu, memory = _amount(listed.get("cpu")), _amount(listed.get("memory"))
    return ResourceLimits(cpu=cpu, memory=None if memory is None else int(memory))


def _amount(value: str | float | None) -> float | None:
    try:
        return None if value is None else float(quantities.parse(str(value)))
    except ValueError:
        return None
