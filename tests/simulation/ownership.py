"""Who owns which field, and what server-side apply makes of it.

Maps are merged key by key. Lists are replaced whole, except the few that Kubernetes merges by a key. That is all of
structured merge that Skysail's manifests need; the contract suite says whether it is right.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

Path = tuple[str, ...]
Fields = frozenset[Path]
Object = dict[str, Any]

_LIST_KEYS: dict[str, tuple[tuple[str, ...], ...]] = {
    "conditions": (("type",),),
    "containers": (("name",),),
    "env": (("name",),),
    "initContainers": (("name",),),
    "ownerReferences": (("uid",),),
    "ports": (("containerPort", "protocol"), ("port", "protocol"), ("containerPort",), ("port",)),
    "volumeMounts": (("mountPath",),),
    "volumes": (("name",),),
}
_SETS = {"finalizers"}
_ATOMIC = {"selector", "nodeSelector"}
# Set by the server or part of the address: nobody owns them.
_NOBODYS = {
    ("f:apiVersion",),
    ("f:kind",),
    ("f:metadata",),
    *(
        ("f:metadata", f"f:{name}")
        for name in (
            "name",
            "namespace",
            "uid",
            "resourceVersion",
            "generation",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generateName",
        )
    ),
}


class Manager(msgspec.Struct, frozen=True):
    """A row of managedFields: who, by which kind of write, on which part of the object."""

    name: str
    operation: str
    subresource: str = ""


Owners = dict[Manager, Fields]


class FieldConflict(Exception):
    def __init__(self, owners: list[tuple[str, str]]) -> None:
        super().__init__(str(owners))
        self.owners = owners


def after_create(manager: Manager, obj: Object) -> Owners:
    return {manager: frozenset(leaves(obj, maps=manager.operation == "Update"))}


def after_update(owners: Owners, manager: Manager, before: Object, after: Object) -> Owners:
    """A plain write takes every field that it changes away from whoever had it."""
    # A part that is the same as before keeps its owners, and need not be looked through.
    same = {(f"f:{part}",) for part, value in after.items() if part in before and before[part] == value}
    old, new = (leaves(_without(obj, same), maps=True) for obj in (before, after))
    touched = frozenset(path for path, value in new.items() if path not in old or old[path] != value)
    result = {
        who: {path for path in fields if path[:1] in same or (path in new and path not in touched)}
        for who, fields in owners.items()
    }
    result[manager] = result.get(manager, frozenset()) | touched
    return {who: frozenset(fields) for who, fields in result.items() if fields}


def applied(live: Object, owners: Owners, manager: Manager, wanted: Object, *, force: bool) -> tuple[Object, Owners]:
    """The object and its owners after `manager` applied `wanted`."""
    new, current = leaves(wanted), leaves(live)
    changing = {path for path, value in new.items() if path not in current or current[path] != value}
    others = {who: fields for who, fields in owners.items() if who != manager}
    conflicts = [(who.name, _dotted(path)) for who, fields in others.items() for path in sorted(fields & changing)]
    if conflicts and not force:
        raise FieldConflict(conflicts)
    others = {who: fields - changing for who, fields in others.items()}
    result = _merge(live, wanted, "")
    kept = set(new).union(*others.values())
    for path in sorted(owners.get(manager, frozenset()) - kept, key=len):
        _remove(result, path, kept)
    mine = {manager: frozenset(new)}
    return result, {who: fields for who, fields in (others | mine).items() if fields}


def leaves(obj: Object, *, maps: bool = False) -> dict[Path, Any]:
    """Every field that can be owned, with its value.

    An entry of a keyed list is a field itself, so that it can go as a whole. A map with content is one only for plain
    writes, which own what they bring into being; apply owns what is in it.
    """
    found = {path: value for path, value in _walk(obj, (), "") if path not in _NOBODYS}
    if not maps:
        return found
    parents = {path[:length]: True for path in found for length in range(1, len(path))}
    return {path: value for path, value in (parents | found).items() if path not in _NOBODYS}


def read(obj: Object) -> Owners:
    rows = obj["metadata"].get("managedFields", ())
    return {
        Manager(row["manager"], row["operation"], row.get("subresource", "")): frozenset(_flat(row["fieldsV1"], ()))
        for row in rows
    }


def written(owners: Owners, api_version: str, time: str) -> list[Object]:
    """The managedFields of an object."""
    rows = []
    for manager, fields in owners.items():
        row = {"manager": manager.name, "operation": manager.operation, "apiVersion": api_version, "time": time}
        part = {"subresource": manager.subresource} if manager.subresource else {}
        rows.append({**row, "fieldsType": "FieldsV1", "fieldsV1": _nested(fields), **part})
    return rows


def _without(obj: Object, parts: set[Path]) -> Object:
    return {part: value for part, value in obj.items() if (f"f:{part}",) not in parts}


def _walk(value: Any, path: Path, name: str) -> list[tuple[Path, Any]]:
    if isinstance(value, dict) and value and name not in _ATOMIC:
        if path == ("f:metadata",):
            value = {key: item for key, item in value.items() if key != "managedFields"}
        return [leaf for key, item in value.items() for leaf in _walk(item, (*path, f"f:{key}"), key)]
    if isinstance(value, list) and name in _SETS:
        return [((*path, f"v:{json.dumps(item)}"), item) for item in value]
    if keys := _keys(value, name):
        found = []
        for item in value:
            place = (*path, _entry(item, keys))
            found += [(place, True), *_walk(item, place, "")]
        return found
    return [(path, value)] if path else []


def _keys(value: Any, name: str) -> tuple[str, ...] | None:
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        return None
    for keys in _LIST_KEYS.get(name, ()):
        if all(key in item for item in value for key in keys):
            return keys
    return None


def _entry(item: Object, keys: tuple[str, ...]) -> str:
    return "k:" + msgspec.json.encode({key: item[key] for key in keys}).decode()


def _merge(live: Any, wanted: Any, name: str) -> Any:
    if isinstance(wanted, dict) and isinstance(live, dict) and name not in _ATOMIC:
        return {**live, **{key: _merge(live.get(key), value, key) for key, value in wanted.items()}}
    if name in _SETS and isinstance(live, list):
        return [*live, *(item for item in wanted if item not in live)]
    keys = _keys(wanted, name)
    if not keys or keys != _keys(live, name):
        return wanted
    return _merge_entries(live, wanted, keys)


def _merge_entries(live: list[Object], wanted: list[Object], keys: tuple[str, ...]) -> list[Object]:
    fresh = {_entry(item, keys): item for item in wanted}
    old = {_entry(item, keys): item for item in live}
    merged = {key: _merge(old.get(key), item, "") for key, item in fresh.items()}
    return [*({**old, **merged}).values()]


def _remove(obj: Any, path: Path, kept: set[Path]) -> None:
    """Take one field out, and what becomes empty by it; where somebody owns the emptied map the server leaves null."""
    *parents, last = path
    place = obj
    for step in parents:
        place = _step(place, step)
        if place is None:
            return
    if last.startswith("f:"):
        place.pop(last[2:], None)
    elif (item := _step(place, last)) is not None:
        place.remove(item)
    if place or not parents or not parents[-1].startswith("f:"):
        return
    if tuple(parents) in kept:
        _put_null(obj, parents)
    else:
        _remove(obj, tuple(parents), kept)


def _put_null(obj: Any, path: list[str]) -> None:
    *parents, last = path
    for step in parents:
        obj = _step(obj, step)
    obj[last[2:]] = None


def _step(place: Any, step: str) -> Any:
    if step.startswith("f:"):
        return place.get(step[2:])
    wanted = json.loads(step[2:])
    if step.startswith("v:"):
        return wanted if wanted in place else None
    return next((item for item in place if wanted.items() <= item.items()), None)


def _nested(fields: Fields) -> Object:
    root: Object = {}
    for path in sorted(fields, key=len, reverse=True):
        place = root
        for step in path:
            place = place.setdefault(step, {})
        if place or path[-1].startswith("k:"):
            place["."] = {}
    return root


def _flat(node: Object, path: Path) -> list[Path]:
    if not node:
        return [path]
    return [leaf for key, child in node.items() for leaf in ([path] if key == "." else _flat(child, (*path, key)))]


def _dotted(path: Path) -> str:
    return "".join(f".{step[2:]}" if step.startswith("f:") else f"[{step[2:]}]" for step in path)
