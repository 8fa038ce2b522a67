"""How long a pod stays at a node that Kubernetes does not hear from. Pure.

Every pod is given five minutes. At a cloud its work goes on meanwhile: taking the pod away would only make its Job pay
for the same work a second time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Toleration = dict[str, Any]

_UNHEARD = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", ""}
_EVICTING = {"NoExecute", ""}


def without_end(tolerations: Iterable[Toleration]) -> list[Toleration] | None:
    """The same, and for as long as it takes; None where nothing has to be changed. Without a key: of every taint."""
    before = list(tolerations)
    after = [_without_end(one) for one in before]
    return None if after == before else after


def _without_end(toleration: Toleration) -> Toleration:
    if toleration.get("key", "") not in _UNHEARD or toleration.get("effect", "") not in _EVICTING:
        return toleration
    return {name: value for name, value in toleration.items() if name != "tolerationSeconds"}
