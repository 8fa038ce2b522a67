"""Label and field selectors, as lists and watches take them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from skysail.kube.api.resources import EVENT, POD
from tests.simulation.statuses import bad_request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from skysail.kube.api.resources import Resource

_SET = re.compile(r"^(\S+)\s+(in|notin)\s+\(([^)]*)\)$")
_COMMA = re.compile(r",(?![^(]*\))")
_FIELDS = {"metadata.name", "metadata.namespace"}
_OTHER_FIELDS = {POD: {"spec.nodeName", "status.phase"}, EVENT: {"regarding.uid", "reason", "type"}}


class Requirement(msgspec.Struct, frozen=True):
    """One term: the value is among these (or is not). No values: the key is there (or is not)."""

    key: str
    values: frozenset[str] | None
    wanted: bool = True

    def holds(self, value: str | None) -> bool:
        found = value is not None if self.values is None else value in self.values
        return found is self.wanted


class Selector(msgspec.Struct, frozen=True):
    """What a list or a watch is narrowed to."""

    namespace: str = ""
    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def matches(self, obj: Mapping[str, Any]) -> bool:
        metadata = obj["metadata"]
        if self.namespace and metadata.get("namespace") != self.namespace:
            return False
        labels = metadata.get("labels", {})
        return all(term.holds(labels.get(term.key)) for term in self.labels) and all(
            term.holds(_field(obj, term.key)) for term in self.fields
        )


def parse(resource: Resource, namespace: str, query: Mapping[str, str]) -> Selector:
    labels = tuple(_requirement(term) for term in _terms(query.get("labelSelector", "")))
    fields = tuple(_requirement(term) for term in _terms(query.get("fieldSelector", "")))
    for term in fields:
        if term.key not in _FIELDS | _OTHER_FIELDS.get(resource, set()):
            raise bad_request(f"field label not supported: {term.key}")
    return Selector(namespace, labels, fields)


def _terms(text: str) -> list[str]:
    return [term.strip() for term in _COMMA.split(text) if term.strip()]


def _requirement(term: str) -> Requirement:
    if found := _SET.match(term):
        values = frozenset(value.strip() for value in found[3].split(","))
        return Requirement(found[1], values, wanted=found[2] == "in")
    for operator, wanted in (("!=", False), ("==", True), ("=", True)):
        key, separator, value = term.partition(operator)
        if separator:
            return Requirement(key.strip(), frozenset({value.strip()}), wanted)
    return Requirement(term.removeprefix("!"), None, wanted=not term.startswith("!"))


def _field(obj: Mapping[str, Any], path: str) -> str:
    value: Any = obj
    for name in path.split("."):
        value = value.get(name, {})
    return value or ""
