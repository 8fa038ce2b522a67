"""Checks of a schema against Kubernetes' structural rules and API conventions.

The API server enforces the structural rules. Bounds matter because the server estimates the cost of CEL rules from
them, and because an unbounded field is an unbounded etcd value. Names matter because users guess them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from skysail.kube.api.schema import INT_OR_STRING, LIST_KEYS, LIST_TYPE, PRESERVE, RULES, Schema

_FORBIDDEN = ("$ref", "definitions", "dependencies", "deprecated", "discriminator", "id", "patternProperties", "oneOf")
_ROOT = {"apiVersion", "kind", "metadata", "spec", "status"}
_PYTHON: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict,),
}
_CAMEL = re.compile(r"[a-z][a-zA-Z0-9]*")
_DURATION = re.compile(r"(timeout|duration|interval|deadline|period|ttl)", re.IGNORECASE)


def violations(root: Schema, *, kept_names: frozenset[str] = frozenset()) -> list[str]:
    """Return every violation in the schema of a whole object, as `path: violation`."""
    found = [f"{name}: only spec and status are allowed beside metadata" for name in root["properties"].keys() - _ROOT]
    if not root.get("description"):
        found.append("the kind has no description")
    for part in ("spec", "status"):
        for path, node in walk(root["properties"].get(part, {}), part):
            found += [f"{path}: {breach}" for breach in _of_node(node)]
            found += [f"{path}: {breach}" for breach in _of_names(node, kept_names)]
    return found


def walk(node: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    """Yield every node of a schema with its path; `[]` is an item of a list, `*` a value of a map."""
    yield path, node
    for name, part in node.get("properties", {}).items():
        yield from walk(part, f"{path}.{name}")
    if "items" in node:
        yield from walk(node["items"], f"{path}[]")
    if isinstance(node.get("additionalProperties"), dict):
        yield from walk(node["additionalProperties"], f"{path}.*")


def _of_node(node: Schema) -> Iterator[str]:
    kind = node.get("type")
    if kind is None and not node.get(INT_OR_STRING) and not node.get(PRESERVE):
        yield "has no type"
    yield from (f"{word} is not structural" for word in _FORBIDDEN if word in node)
    if "anyOf" in node and not node.get(INT_OR_STRING):
        yield "anyOf is only for int-or-string"
    if kind == "string" or node.get(INT_OR_STRING):
        yield from _of_text(node)
    if kind in {"integer", "number"} and ("minimum" not in node or "maximum" not in node):
        yield "a number needs minimum and maximum"
    if kind == "array":
        yield from _of_list(node)
    if kind == "object":
        yield from _of_object(node)
    if "default" in node and not _fits(node["default"], node):
        yield f"the default {node['default']!r} is not a valid {kind}"
    for rule in node.get(RULES, ()):
        if not rule.get("message"):
            yield f"rule {rule.get('rule')!r} has no message"


def _of_text(node: Schema) -> Iterator[str]:
    if "maxLength" not in node and "enum" not in node:
        yield "a string needs maxLength"
    if "enum" in node and len(set(node["enum"])) != len(node["enum"]):
        yield "the enum has duplicates"


def _of_list(node: Schema) -> Iterator[str]:
    if "maxItems" not in node:
        yield "a list needs maxItems"
    if node.get(LIST_TYPE) not in {"atomic", "set", "map"}:
        yield "a list needs its list type"
    if "uniqueItems" in node:
        yield "uniqueItems is forbidden: use list type set"
    if node.get(LIST_TYPE) == "map":
        missing = set(node.get(LIST_KEYS, ())) - set(node.get("items", {}).get("required", ()))
        yield from (f"list key {key} is not required" for key in sorted(missing))
        if not node.get(LIST_KEYS):
            yield "a list map needs keys"


def _of_object(node: Schema) -> Iterator[str]:
    properties = node.get("properties", {})
    extra = node.get("additionalProperties")
    if properties and extra is not None:
        yield "properties and additionalProperties exclude each other"
    if extra is not None and not isinstance(extra, dict):
        yield "additionalProperties must be a schema"
    if isinstance(extra, dict) and "maxProperties" not in node:
        yield "a map needs maxProperties"
    if not properties and extra is None and not node.get(PRESERVE):
        yield "an object needs properties"
    for name in node.get("required", ()):
        if name not in properties:
            yield f"requires {name}, which it does not have"
        elif "default" in properties[name]:
            yield f"requires {name}, which has a default"


def _of_names(node: Schema, kept: frozenset[str]) -> Iterator[str]:
    for name, part in node.get("properties", {}).items():
        if not part.get("description"):
            yield f"{name} has no description"
        if name == "conditions" and (part.get(LIST_TYPE), part.get(LIST_KEYS)) != ("map", ["type"]):
            yield "conditions are a list map keyed by type"
        if name in kept:
            continue
        if not _CAMEL.fullmatch(name):
            yield f"{name} is not camelCase"
        if part.get("format") == "date-time" and not name.endswith("Time"):
            yield f"{name} is a time, so its name ends with Time"
        if part.get("type") == "integer" and _DURATION.search(name) and "Seconds" not in name:
            yield f"{name} is a duration, so its name says Seconds"
        if set(part.get("properties", ())) == {"name"} and not name.endswith("Ref"):
            yield f"{name} is a reference, so its name ends with Ref"


def _fits(default: Any, node: Schema) -> bool:
    if node.get(INT_OR_STRING):
        return isinstance(default, int | str)
    if isinstance(default, bool):
        return node.get("type") == "boolean"
    if "enum" in node and default not in node["enum"]:
        return False
    return isinstance(default, _PYTHON[node["type"]])
