"""Tolerations that keep pods at a cloud bound to an unreachable node. Pure.

By default a pod is evicted after five minutes. At a cloud its program keeps running, so the eviction would only make
its Job pay for the same work twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Toleration = dict[str, Any]

_UNHEARD = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", ""}
_EVICTING = {"NoExecute", ""}


def tolerate_forever(tolerations: Iterable[Toleration]) -> list[Toleration] | None:
    """Remove `tolerationSeconds` from tolerations of unreachable nodes. Returns None if nothing changes.

    A toleration without a key matches every taint, so it counts too.
    """
    previous = list(tolerations)
    after = [_without_end(one) for one in previous]
    return None if after == previous else after


def _without_end(toleration: Toleration) -> Toleration:
    if toleration.get("key", "") not in _UNHEARD or toleration.get("effect", "") not in _EVICTING:
        return toleration
    return {name: value for name, value in toleration.items() if name != "tolerationSeconds"}
