"""Every rule of the API server and of the API conventions can be broken, and is then named with its path."""

from __future__ import annotations

import pytest

from skysail.kube.api import conventions

GOOD = {"type": "string", "maxLength": 5, "description": "Good."}


def root(**properties):
    """An object whose spec has these fields."""
    return {
        "description": "An object.",
        "properties": {
            "spec": {"type": "object", "properties": properties or {"good": GOOD}},
            "status": {"type": "object", "properties": {"good": GOOD}},
        },
    }


def test_a_good_schema_has_no_breach():
    assert conventions.violations(root()) == []


@pytest.mark.parametrize(
    ("node", "want"),
    [
        ({"type": "string"}, "a string needs maxLength"),
        ({"type": "string", "enum": ["a", "a"]}, "the enum has duplicates"),
        ({"type": "integer", "minimum": 1}, "a number needs minimum and maximum"),
        ({"type": "number", "maximum": 1}, "a number needs minimum and maximum"),
        ({"type": "array", "items": GOOD, "x-kubernetes-list-type": "atomic"}, "a list needs maxItems"),
        ({"type": "array", "items": GOOD, "maxItems": 1}, "a list needs its list type"),
        (
            {"type": "array", "items": GOOD, "maxItems": 1, "x-kubernetes-list-type": "set", "uniqueItems": True},
            "uniqueItems is forbidden: use list type set",
        ),
        (
            {"type": "array", "items": GOOD, "maxItems": 1, "x-kubernetes-list-type": "map"},
            "a list map needs keys",
        ),
        (
            {
                "type": "array",
                "items": {"type": "object", "properties": {"name": GOOD}},
                "maxItems": 1,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
            "list key name is not required",
        ),
        ({"type": "object"}, "an object needs properties"),
        ({"type": "object", "additionalProperties": GOOD}, "a map needs maxProperties"),
        ({"type": "object", "additionalProperties": True, "maxProperties": 1}, "additionalProperties must be a schema"),
        (
            {"type": "object", "additionalProperties": GOOD, "maxProperties": 1, "properties": {"good": GOOD}},
            "properties and additionalProperties exclude each other",
        ),
        ({"type": "object", "properties": {"good": GOOD}, "required": ["bad"]}, "requires bad, which it does not have"),
        (
            {"type": "object", "properties": {"good": {**GOOD, "default": "a"}}, "required": ["good"]},
            "requires good, which has a default",
        ),
        ({}, "has no type"),
        ({"type": "string", "maxLength": 1, "oneOf": []}, "oneOf is not structural"),
        ({"type": "string", "maxLength": 1, "$ref": "x"}, "$ref is not structural"),
        ({"type": "string", "maxLength": 1, "anyOf": []}, "anyOf is only for int-or-string"),
        ({"type": "string", "maxLength": 1, "default": 1}, "the default 1 is not a valid string"),
        ({"type": "integer", "minimum": 0, "maximum": 1, "default": True}, "the default True is not a valid integer"),
        ({"type": "string", "enum": ["a"], "default": "b"}, "the default 'b' is not a valid string"),
        ({**GOOD, "x-kubernetes-validations": [{"rule": "true"}]}, "rule 'true' has no message"),
    ],
)
def test_a_breach_is_named_with_its_path(node, want):
    assert f"spec.field: {want}" in conventions.violations(root(field={"description": "A field.", **node}))


@pytest.mark.parametrize(
    ("name", "node", "want"),
    [
        ("snake_case", GOOD, "snake_case is not camelCase"),
        ("UpperCase", GOOD, "UpperCase is not camelCase"),
        ("silent", {"type": "string", "maxLength": 5}, "silent has no description"),
        ("started", {**GOOD, "format": "date-time"}, "started is a time, so its name ends with Time"),
        (
            "timeout",
            {"type": "integer", "minimum": 0, "maximum": 1, "description": "How long."},
            "timeout is a duration, so its name says Seconds",
        ),
        (
            "secret",
            {"type": "object", "properties": {"name": GOOD}, "description": "Which."},
            "secret is a reference, so its name ends with Ref",
        ),
        (
            "conditions",
            {"type": "array", "items": GOOD, "maxItems": 1, "x-kubernetes-list-type": "atomic", "description": "All."},
            "conditions are a list map keyed by type",
        ),
    ],
)
def test_a_name_that_people_would_not_guess_is_a_breach(name, node, want):
    assert conventions.violations(root(**{name: node})) == [f"spec: {want}"]


def test_a_name_that_people_already_have_in_their_manifests_is_kept():
    assert conventions.violations(root(snake_case=GOOD), kept_names=frozenset({"snake_case"})) == []


def test_nothing_but_spec_and_status_stands_beside_metadata():
    schema = root()
    schema["properties"]["data"] = GOOD
    assert conventions.violations(schema) == ["data: only spec and status are allowed beside metadata"]


def test_a_kind_has_a_description():
    assert conventions.violations({**root(), "description": ""}) == ["the kind has no description"]


def test_a_breach_is_found_inside_lists_and_maps():
    deep = {
        "type": "array",
        "maxItems": 1,
        "x-kubernetes-list-type": "atomic",
        "description": "A list of maps.",
        "items": {"type": "object", "maxProperties": 1, "additionalProperties": {"type": "string"}},
    }
    assert conventions.violations(root(deep=deep)) == ["spec.deep[].*: a string needs maxLength"]
