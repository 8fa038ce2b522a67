"""Evaluation of label selectors, by the rules of the API server. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from skysail.kube.api.fields import LabelSelector, LabelSelectorRequirement

_NAME = "[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"([a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_NAME}")
_VALUE = re.compile(f"({_NAME})?")


def errors(where: str, selector: LabelSelector) -> Iterator[str]:
    """Yield a sentence for each part that no label can meet, or that means nothing. `where` is the selector's path."""
    for key, value in sorted(selector.match_labels.items()):
        yield from _label_errors(f"{where}.matchLabels", key, (value,))
    for index, requirement in enumerate(selector.match_expressions):
        path = f"{where}.matchExpressions[{index}]"
        yield from _label_errors(path, requirement.key, requirement.values)
        if requirement.operator in {"In", "NotIn"} and not requirement.values:
            yield f"{path}: operator {requirement.operator} needs values."
        elif requirement.operator in {"Exists", "DoesNotExist"} and requirement.values:
            yield f"{path}: operator {requirement.operator} takes no values."


def matches(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Return whether the labels meet all requirements. An empty selector matches everything."""
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        _is_met(requirement, labels) for requirement in selector.match_expressions
    )


def _label_errors(where: str, key: str, values: tuple[str, ...]) -> Iterator[str]:
    if not _KEY.fullmatch(key):
        yield f"{where}: {key!r} is no key that a label can have."
    for value in values:
        if not _VALUE.fullmatch(value):
            yield f"{where}: {value!r} is no value that a label can have."


def _is_met(requirement: LabelSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            # As in Kubernetes, an object without the label meets NotIn.
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
