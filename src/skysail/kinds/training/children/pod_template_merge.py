"""A pod spec as its user wants it, laid over ours. Pure.

Objects are merged field by field, and null takes a field away. Lists whose items have a key are merged by it, so that a
container of ours can be completed and a sidecar added; any other list is replaced. What the user writes may be
anything: what is no pod spec is refused by the API server, with the name of the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
}
# Their items name one of several sources; fields of two would be refused.
_WHOLE = frozenset({"env", "volumes", "volumeMounts"})


def laid_over(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Ours, with theirs on top."""
    merged = dict(ours)
    for name, value in theirs.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _field(name, ours.get(name), value)
    return merged


def _field(name: str, ours: Any, theirs: Any) -> Any:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        return laid_over(ours, theirs)
    if name in _KEYS and isinstance(ours, list) and isinstance(theirs, list):
        return _items(name, ours, theirs)
    return theirs


def _items(name: str, ours: list[Any], theirs: list[Any]) -> list[Any]:
    """Ours keep their places, because a variable may use only those before it; what is new follows."""
    merged = list(ours)
    places = {key: place for place, item in enumerate(ours) if (key := _key(name, item))}
    for item in theirs:
        place = places.get(_key(name, item))
        if place is None:
            merged.append(item)
        elif name in _WHOLE:
            merged[place] = item
        else:
            merged[place] = laid_over(ours[place], item)
    return merged


def _key(name: str, item: Any) -> str:
    """What the item is known by; empty where it is no such item."""
    key = item.get(_KEYS[name]) if isinstance(item, Mapping) else None
    return key if isinstance(key, str) else ""
