"""Cap on the cost of all launches for one object, as the owners of a pod set it. Pure."""

from __future__ import annotations

import msgspec

from skysail.claims.requirements.cloud_requirements import CloudRequirements


class CostCap(msgspec.Struct, frozen=True):
    """Cap of the owners of a pod. `usd`: the lowest cap that one of them has, None without a cap.

    `uid`: the object whose launches share the cap, empty if each pod has a cap of its own.
    """

    usd: float | None = None
    uid: str = ""


def with_cap(requirements: CloudRequirements, cap: CostCap) -> CloudRequirements:
    """Return the requirements with the lower one of the pod's own cap and the cap of its owners."""
    caps = [usd for usd in (requirements.max_cost_usd, cap.usd) if usd is not None]
    if not caps:
        return requirements
    return msgspec.structs.replace(requirements, max_cost_usd=min(caps), max_cost_uid=cap.uid)
