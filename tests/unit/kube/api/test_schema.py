"""A msgspec type becomes the structural schema that the API server wants."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from skysail.kube.api import schema
from skysail.kube.api.schema import Rule, cel_rules, list_map_keys


class Inner(msgspec.Struct, frozen=True):
    """What is inside."""

    size: Annotated[int, Meta(ge=1, le=3)] = 2


class Empty(msgspec.Struct, frozen=True, omit_defaults=True):
    """Nothing to fill in."""

    name: str | None = None


class Outer(msgspec.Struct, frozen=True):
    inner: Annotated[Inner, Meta(description="More specific.")]


class Chain(msgspec.Struct, frozen=True):
    next: Chain | None = None


TABLE = [
    (str, {"type": "string"}),
    (Annotated[int, Meta(ge=1, le=9)], {"type": "integer", "minimum": 1, "maximum": 9}),
    (Annotated[float, Meta(ge=0, le=1)], {"type": "number", "minimum": 0, "maximum": 1}),
    (bool, {"type": "boolean"}),
    (str | None, {"type": "string"}),
    (Literal["b", "a"], {"type": "string", "enum": ["a", "b"]}),
    (Literal["a", "b"] | None, {"type": "string", "enum": ["a", "b"]}),
    (Annotated[str | None, Meta(extra_json_schema=schema.NULLABLE)], {"type": "string", "nullable": True}),
    (
        Annotated[str, Meta(pattern="^a$")] | int,
        {
            "pattern": "^a$",
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
        },
    ),
    (tuple[str, ...], {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "atomic"}),
    (
        Annotated[tuple[Inner, ...], Meta(extra_json_schema=list_map_keys("size"))],
        {
            "type": "array",
            "items": {
                "type": "object",
                "description": "What is inside.",
                "properties": {"size": {"type": "integer", "minimum": 1, "maximum": 3, "default": 2}},
            },
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["size"],
        },
    ),
    (
        Annotated[dict[str, str], Meta(max_length=3)],
        {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 3},
    ),
    (
        dict[str, Annotated[Any, Meta(extra_json_schema=schema.FREE_FORM)]],
        {"type": "object", "additionalProperties": {"x-kubernetes-preserve-unknown-fields": True}},
    ),
    (
        Annotated[str, Meta(extra_json_schema=cel_rules(Rule("self == oldSelf", "make a new one")))],
        {
            "type": "string",
            "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "make a new one"}],
        },
    ),
]


@pytest.mark.parametrize(("type_", "want"), TABLE)
def test_a_type_has_one_schema(type_, want):
    assert schema.structural_schema(type_) == want


def test_what_stands_beside_a_reference_is_more_specific():
    assert schema.structural_schema(Outer)["properties"]["inner"]["description"] == "More specific."


def test_a_type_that_contains_itself_is_refused():
    with pytest.raises(TypeError, match="Chain contains itself"):
        schema.structural_schema(Chain)


def test_a_union_that_no_structural_schema_can_say_is_refused():
    with pytest.raises(TypeError, match=r"Union of .* is not structural"):
        schema.structural_schema(str | bool)


@pytest.mark.parametrize(
    ("type_", "default", "want"),
    [
        (int, 1, 1),
        (int, 0, 0),
        (bool, False, False),
        (str, "x", "x"),
        (str, "", None),
        (str | None, None, None),
        (tuple[str, ...], (), None),
        (dict[str, str], {}, None),
        (Inner, Inner(), {"size": 2}),
        (Empty, Empty(), None),
    ],
)
def test_a_default_is_said_where_it_changes_something(type_, default, want):
    holder = msgspec.defstruct("Holder", [("field", type_, default)])
    assert schema.structural_schema(holder)["properties"]["field"].get("default") == want


def test_schema_default_of_part_without_defaults_is_empty_and_filled_by_server():
    part = msgspec.defstruct("Part", [("size", int, 2)], omit_defaults=True, frozen=True)
    holder = msgspec.defstruct("Holder", [("field", part, part())])
    assert schema.structural_schema(holder)["properties"]["field"]["default"] == {}


def test_a_status_has_no_defaults():
    assert "default" not in schema.structural_schema(Inner, defaults=False)["properties"]["size"]
