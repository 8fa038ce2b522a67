"""Merge of a user's pod spec over that of Skysail. Pure.

Objects are merged field by field, and null removes a field. Lists whose items have a key are merged by that key, so
that a user can extend a container or add a sidecar; other lists are replaced. The input is not validated: the API
server rejects an invalid pod spec and names the field.
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
# Items with one of several sources are replaced as a whole: the API server rejects two sources.
_REPLACED_LISTS = frozenset({"env", "volumes", "volumeMounts"})


def merge(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Return `ours` with `theirs` merged over it."""
    merged = dict(ours)
    for name, value in theirs.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _field(name, ours.get(name), value)
    return merged


def _field(name: str, ours: Any, theirs: Any) -> Any:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        return merge(ours, theirs)
    if name in _KEYS and isinstance(ours, list) and isinstance(theirs, list):
        return _items(name, ours, theirs)
    return theirs


def _items(name: str, ours: list[Any], theirs: list[Any]) -> list[Any]:
    """Merge lists by key. Existing items keep their order, because a variable can refer only to earlier ones."""
    merged = list(ours)
    places = {key: place for place, item in enumerate(ours) if (key := _key(name, item))}
    for item in theirs:
        place = places.get(_key(name, item))
        if place is None:
            merged.append(item)
        elif name in _REPLACED_LISTS:
            merged[place] = item
        else:
            merged[place] = merge(ours[place], item)
    return merged


def _key(name: str, item: Any) -> str:
    """Return the key of the item, or an empty string if the item has none."""
    key = item.get(_KEYS[name]) if isinstance(item, Mapping) else None
    return key if isinstance(key, str) else ""
