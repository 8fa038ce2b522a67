"""A msgspec type as the structural schema that a CustomResourceDefinition wants.

msgspec says types, enums, bounds, defaults and descriptions; what only Kubernetes knows (CEL rules, list keys,
free-form values) comes through `extra_json_schema`. This module inlines references, makes `X | None` a plain optional
field and refuses what no structural schema can say.
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
    """A CEL rule. The message tells the user the fix; `field_path` names the field where the rule stands above it."""

    rule: str
    message: str
    field_path: str = ""


def cel(*rules: Rule) -> Schema:
    """Rules for one field, as `Meta(extra_json_schema=...)` takes them."""
    return {RULES: [msgspec.to_builtins(rule) for rule in rules]}


def keyed(*keys: str) -> Schema:
    """A list whose items are known by these fields: merged by key, duplicates refused."""
    return {LIST_TYPE: "map", LIST_KEYS: list(keys)}


UNIQUE: Schema = {LIST_TYPE: "set"}
NULLABLE: Schema = {"nullable": True}
FREE_FORM: Schema = {PRESERVE: True}


def structural(type_: Any, *, defaults: bool = True) -> Schema:
    """The schema of a type. Without defaults for what a controller writes: nobody fills in a status for it."""
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
            node.setdefault(LIST_TYPE, "atomic")  # what Kubernetes assumes anyway, said aloud
        if "enum" in node:
            node["type"] = "string"
        if not node.get("required"):
            node.pop("required", None)
        if not self._defaults or not _is_worth_saying(node):
            node.pop("default", None)
        return node

    def _inline(self, node: Schema, inside: tuple[str, ...]) -> tuple[Schema, tuple[str, ...]]:
        """Put what a reference names in its place; what stands beside the reference is more specific and wins."""
        choices = [choice for choice in node.get("anyOf", ()) if "$ref" in choice]
        if len(choices) == 1 and len(node["anyOf"]) == 2:  # noqa: PLR2004 (`X | None`)
            node = {**choices[0], **{key: value for key, value in node.items() if key != "anyOf"}}
        if "$ref" not in node:
            return dict(node), inside
        name = node["$ref"]
        if name in inside:
            raise TypeError(f"{name} contains itself: a structural schema cannot say that")
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
    raise TypeError(f"A structural schema has no union of {choices}: use one type, or a free-form value")


def _is_worth_saying(node: Schema) -> bool:
    """Whether a default changes anything: absent and empty are the same, unless defaults wait inside."""
    default = node.get("default")
    if default == {}:
        return any("default" in part for part in node.get("properties", {}).values())
    return default not in (None, "", [], ())
