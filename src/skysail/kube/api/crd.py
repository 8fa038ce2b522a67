"""Definition of a custom kind and the CustomResourceDefinition generated from it. Pure."""

from __future__ import annotations

import inspect
import typing
from typing import Any

import msgspec

from skysail.kube.api import conventions
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import CRD, Resource
from skysail.kube.api.schema import Rule, Schema, cel_rules, structural_schema

Manifest = dict[str, Any]

_TYPE_META: Schema = {
    "apiVersion": {
        "type": "string",
        "description": "Version of this schema. Servers convert objects to the newest version that they store.",
    },
    "kind": {"type": "string", "description": "Kind of this object, in CamelCase."},
    "metadata": {"type": "object"},
}


class Column(msgspec.Struct, frozen=True):
    """A column of `kubectl get`. Columns with priority 1 appear with `-o wide` only."""

    name: str
    path: str
    type: str = "string"
    description: str = ""
    priority: int = 0


class Scale(msgspec.Struct, frozen=True, rename="camel"):
    """Paths of the scale subresource, for `kubectl scale` and autoscalers."""

    spec_replicas_path: str
    status_replicas_path: str
    label_selector_path: str


class CustomKind(msgspec.Struct, frozen=True, kw_only=True):
    """One custom kind: its resource, its type and its columns in `kubectl`.

    `struct` has `spec` and `status`; its docstring is the description in `kubectl explain`.
    `rules` are CEL rules of the spec.
    `exempt_names` are field names that break today's conventions but are used in existing manifests.
    `initial_status` is the default status, until a controller writes one.
    """

    resource: Resource
    struct: type[Object]
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ("skysail",)
    columns: tuple[Column, ...] = ()
    scale: Scale | None = None
    rules: tuple[Rule, ...] = ()
    exempt_names: frozenset[str] = frozenset()
    initial_status: msgspec.Struct | None = None

    @property
    def file_name(self) -> str:
        return f"{self.resource.group}_{self.resource.plural}.yaml"


def manifest(kind: CustomKind) -> Manifest:
    """Generate the CustomResourceDefinition. Raises `TypeError` with every violation of the conventions."""
    resource = kind.resource
    schema = _schema(kind)
    breaches = conventions.violations(schema, kept_names=kind.exempt_names)
    if breaches:
        raise TypeError(f"{resource.kind}: " + "; ".join(breaches))
    return {
        "apiVersion": CRD.api_version,
        "kind": CRD.kind,
        "metadata": {"name": resource.crd_name},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": _names(kind),
            "versions": [_version(kind, schema)],
        },
    }


def _names(kind: CustomKind) -> Manifest:
    names: Manifest = {
        "kind": kind.resource.kind,
        "listKind": f"{kind.resource.kind}List",
        "plural": kind.resource.plural,
        "singular": kind.resource.kind.lower(),
        "categories": list(kind.categories),
    }
    if kind.short_names:
        names["shortNames"] = list(kind.short_names)
    return names


def _version(kind: CustomKind, schema: Schema) -> Manifest:
    subresources: Manifest = {"status": {}}
    if kind.scale:
        subresources["scale"] = msgspec.to_builtins(kind.scale)
    age = Column("Age", ".metadata.creationTimestamp", "date")
    return {
        "name": kind.resource.version,
        "served": True,
        "storage": True,
        "subresources": subresources,
        "additionalPrinterColumns": [_column(column) for column in (*kind.columns, age)],
        "schema": {"openAPIV3Schema": schema},
    }


def _column(column: Column) -> Manifest:
    result: Manifest = {"name": column.name, "type": column.type, "jsonPath": column.path}
    if column.description:
        result["description"] = column.description
    if column.priority:
        result["priority"] = column.priority
    return result


def _schema(kind: CustomKind) -> Schema:
    parts = typing.get_type_hints(kind.struct, include_extras=True)
    spec = structural_schema(parts["spec"])
    if kind.rules:
        spec.update(cel_rules(*kind.rules))
    status = structural_schema(parts["status"], defaults=False)
    if kind.initial_status is not None:
        status["default"] = msgspec.to_builtins(kind.initial_status)
    return {
        "type": "object",
        "description": inspect.cleandoc(kind.struct.__doc__ or ""),
        "required": ["spec"],
        "properties": {**_TYPE_META, "spec": spec, "status": status},
    }
