"""Objects from schemas: the wrong values that a schema must refuse, and the defaults that it fills in."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import msgspec

from skysail.kube.api.schema import INT_OR_STRING, PRESERVE, Schema

Steps = tuple[str | int, ...]

WRONG_TYPE = {
    "string": 7,
    "integer": "seven",
    "number": "seven",
    "boolean": "yes",
    "array": "not a list",
    "object": "not an object",
}
RIGHT_TYPE = {"string": "a", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}
ITEM_KEY = "key"


class Wrong(msgspec.Struct, frozen=True):
    """A value that must be refused at this place, and a word of the server's reason."""

    steps: Steps
    value: Any
    want: str

    @property
    def field(self) -> str:
        """The place, as the server writes it."""
        return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.steps).lstrip(".")

    @property
    def object(self) -> dict[str, Any]:
        """The smallest object that has the value in its place."""
        value = self.value
        for step in reversed(self.steps):
            value = [value] if isinstance(step, int) else {step: value}
        return value


def nodes(schema: Schema, steps: Steps) -> Iterator[tuple[Steps, Schema]]:
    """Every place of a schema, through the first item of lists and one key of maps."""
    yield steps, schema
    for name, part in schema.get("properties", {}).items():
        yield from nodes(part, (*steps, name))
    if "items" in schema:
        yield from nodes(schema["items"], (*steps, 0))
    if isinstance(schema.get("additionalProperties"), dict):
        yield from nodes(schema["additionalProperties"], (*steps, ITEM_KEY))


def wrong_types(schema: Schema, steps: Steps) -> Iterator[Wrong]:
    for place, node in nodes(schema, steps):
        if node.get(INT_OR_STRING):
            yield Wrong(place, True, "must be of type")
        elif "type" in node:
            yield Wrong(place, WRONG_TYPE[node["type"]], "must be of type")
        if node.get("type") == "integer":
            yield Wrong(place, 1.5, "must be of type")


def wrong_bounds(schema: Schema, steps: Steps) -> Iterator[Wrong]:
    for place, node in nodes(schema, steps):
        for value, want in _outside(node):
            yield Wrong(place, value, want)


def missing_fields(schema: Schema, steps: Steps) -> Iterator[Wrong]:
    """Every required field, left out. The place of the value is its parent, the place of the error the field."""
    for place, node in nodes(schema, steps):
        for name in node.get("required", ()):
            yield Wrong(place, {}, f"{Wrong(place, None, '').field}.{name}")


def unknown_fields(schema: Schema, steps: Steps) -> Iterator[Wrong]:
    for place, node in nodes(schema, steps):
        if "properties" in node and not node.get(PRESERVE):
            wrong = Wrong((*place, "noSuchField"), 1, "")
            yield Wrong(wrong.steps, 1, f'unknown field "{wrong.field}"')


def with_defaults(schema: Schema, value: Any) -> Any:
    """What the server stores when this is sent."""
    value = copy.deepcopy(value)
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        for name, part in properties.items():
            if name not in value and "default" in part:
                value[name] = copy.deepcopy(part["default"])
        extra = schema.get("additionalProperties") or {}
        return {name: with_defaults(properties.get(name, extra), part) for name, part in value.items()}
    if isinstance(value, list):
        return [with_defaults(schema.get("items", {}), part) for part in value]
    return value


def _outside(node: Schema) -> Iterator[tuple[Any, str]]:
    if "enum" in node:
        yield "no-such-value", "supported values"
    if "minimum" in node:
        yield node["minimum"] - 1, "should be greater than or equal to"
    if "maximum" in node:
        yield node["maximum"] + 1, "should be less than or equal to"
    yield from _outside_text(node)
    yield from _outside_size(node)


def _outside_text(node: Schema) -> Iterator[tuple[Any, str]]:
    if "minLength" in node:
        yield "", "should be at least"
    if "maxLength" in node:
        yield "a" * (node["maxLength"] + 1), "Too long"
    if "pattern" in node:
        yield " ?", "should match"
    if node.get("format") == "date-time":
        yield "yesterday", "must be of type date-time"


def _valid(node: Schema) -> Any:
    """Return a value for one item of a long list. The API server takes minutes to report thousands of errors."""
    if node.get("type", "object") == "object":
        return {name: _valid(node["properties"][name]) for name in node.get("required", ())}
    if node["type"] == "string":
        is_day = "{4}" in node.get("pattern", "")
        return "2026-01-01" if is_day else "2026-01-01T00:00:00Z" if node.get("format") == "date-time" else "a"
    return RIGHT_TYPE[node["type"]]


def _outside_size(node: Schema) -> Iterator[tuple[Any, str]]:
    if "minItems" in node:
        yield [], "should have at least"
    if "maxItems" in node:
        yield [_valid(node["items"])] * (node["maxItems"] + 1), "Too many"
    if "maxProperties" in node:
        part = RIGHT_TYPE[node["additionalProperties"].get("type", "string")]
        yield {f"k{number}": part for number in range(node["maxProperties"] + 1)}, "Too many"
