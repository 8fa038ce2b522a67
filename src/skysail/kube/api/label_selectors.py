"""Evaluation of label selectors, by the rules of the API server. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from skysail.kube.api.fields import LabelSelector, LabelSelectorRequirement


def matches(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Return whether the labels meet all requirements. An empty selector matches everything."""
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        _is_met(requirement, labels) for requirement in selector.match_expressions
    )


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
