"""Converts a msgspec type to the structural schema of a CustomResourceDefinition.

msgspec provides types, enums, bounds, defaults and descriptions. Kubernetes extensions (CEL rules, list keys, free-form
values) come from `extra_json_schema`. This module inlines references, converts `X | None` to an optional field, and
raises `TypeError` for types that a structural schema cannot express.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

Schema = dict[str, Any]

PRESERVE = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"
LIST_TYPE = "x-kubernetes-list-type"
LIST_KEYS = "x-kubernetes-list-map-keys"
RULES = "x-kubernetes-validations"


class Rule(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A CEL rule. The message names the fix. `field_path` names the field, if the rule is declared above that field."""

    rule: str
    message: str
    field_path: str = ""


def cel_rules(*rules: Rule) -> Schema:
    """Return CEL rules of one field for `Meta(extra_json_schema=...)`."""
    return {RULES: [msgspec.to_builtins(rule) for rule in rules]}


def list_map_keys(*keys: str) -> Schema:
    """Return the schema of a list map with these keys: items are merged by key, duplicates are rejected."""
    return {LIST_TYPE: "map", LIST_KEYS: list(keys)}


UNIQUE: Schema = {LIST_TYPE: "set"}
NULLABLE: Schema = {"nullable": True}
FREE_FORM: Schema = {PRESERVE: True}


def structural_schema(type_: Any, *, defaults: bool = True) -> Schema:
    """Return the schema of a type. Use `defaults=False` for a status: the API server must not fill in its fields."""
    (root,), components = msgspec.json.schema_components((type_,), ref_template="{name}")
    return _Converter(components, defaults=defaults).convert(root)


class _Converter:
    def __init__(self, components: Mapping[str, Schema], *, defaults: bool) -> None:
        self._components = components
        self._defaults = defaults

    def convert(self, node: Schema, inside: tuple[str, ...] = ()) -> Schema:
        node, inside = self._inline(node, inside)
        node = _without_null(node)
        node.pop("title", None)
        if "properties" in node:
            node["properties"] = {name: self.convert(part, inside) for name, part in node["properties"].items()}
        if isinstance(node.get("additionalProperties"), dict):
            node["additionalProperties"] = self.convert(node["additionalProperties"], inside)
        if "items" in node:
            node["items"] = self.convert(node["items"], inside)
        if node.get("type") == "array":
            node.setdefault(LIST_TYPE, "atomic")  # Kubernetes' default, written explicitly
        if "enum" in node:
            node["type"] = "string"
        if not node.get("required"):
            node.pop("required", None)
        if not self._defaults or not _is_worth_saying(node):
            node.pop("default", None)
        return node

    def _inline(self, node: Schema, inside: tuple[str, ...]) -> tuple[Schema, tuple[str, ...]]:
        """Replace a reference by its target. Keys beside the reference are more specific and win."""
        choices = [choice for choice in node.get("anyOf", ()) if "$ref" in choice]
        if len(choices) == 1 and len(node["anyOf"]) == 2:  # noqa: PLR2004 (`X | None`)
            node = {**choices[0], **{key: value for key, value in node.items() if key != "anyOf"}}
        if "$ref" not in node:
            return dict(node), inside
        name = node["$ref"]
        if name in inside:
            raise TypeError(f"{name} contains itself: a structural schema cannot be recursive")
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return {**self._components[name], **beside}, (*inside, name)


def _without_null(node: Schema) -> Schema:
    if "anyOf" not in node:
        return node
    choices = [choice for choice in node.pop("anyOf") if choice.get("type") != "null"]
    if len(choices) == 1:
        return {**choices[0], **node}
    if {choice.get("type") for choice in choices} == {"integer", "string"}:
        text = next(choice for choice in choices if choice["type"] == "string")
        bounds = {key: value for key, value in text.items() if key != "type"}
        return {**bounds, **node, "anyOf": [{"type": "integer"}, {"type": "string"}], INT_OR_STRING: True}
    raise TypeError(f"Union of {choices} is not structural: use one type or a free-form value")


def _is_worth_saying(node: Schema) -> bool:
    """Return whether a default has an effect. An empty default has none, unless its properties have defaults."""
    default = node.get("default")
    if default == {}:
        return any("default" in part for part in node.get("properties", {}).values())
    return default not in (None, "", [], ())
