"""Label selectors, by the rules of the API server."""

from __future__ import annotations

import pytest

from skysail.kube.api import label_selectors
from skysail.kube.api.fields import LabelSelector, LabelSelectorRequirement

LABELS = {"team": "ml", "env": ""}


def requirement(key: str, operator: str, *values: str) -> LabelSelector:
    return LabelSelector(match_expressions=(LabelSelectorRequirement(key, operator, values),))


@pytest.mark.parametrize(
    ("selector", "is_match"),
    [
        (LabelSelector(), True),
        (LabelSelector(match_labels={"team": "ml"}), True),
        (LabelSelector(match_labels={"team": "web"}), False),
        (LabelSelector(match_labels={"tier": ""}), False),
        (requirement("team", "In", "ml", "web"), True),
        (requirement("team", "In", "web"), False),
        (requirement("tier", "In", "gold"), False),
        (requirement("team", "NotIn", "ml"), False),
        (requirement("team", "NotIn", "web"), True),
        (requirement("tier", "NotIn", "gold"), True),
        (requirement("env", "Exists"), True),
        (requirement("tier", "Exists"), False),
        (requirement("env", "DoesNotExist"), False),
        (requirement("tier", "DoesNotExist"), True),
    ],
)
def test_matches_selector_follows_kubernetes(selector, is_match):
    assert label_selectors.matches(selector, LABELS) is is_match


def test_matches_labels_and_expressions_needs_both():
    both = LabelSelector(
        match_labels={"team": "ml"}, match_expressions=(LabelSelectorRequirement("env", "DoesNotExist"),)
    )
    assert not label_selectors.matches(both, LABELS)


@pytest.mark.parametrize(
    ("selector", "error"),
    [
        (LabelSelector(), ""),
        (LabelSelector(match_labels={"kubernetes.io/metadata.name": "team-a", "empty": ""}), ""),
        (LabelSelector(match_labels={"a b": "c"}), "'a b' is no key that a label can have."),
        (LabelSelector(match_labels={"a": "b c"}), "'b c' is no value that a label can have."),
        (requirement("team", "In"), "operator In needs values."),
        (requirement("team", "Exists", "ml"), "operator Exists takes no values."),
        (requirement("-team", "Exists"), "'-team' is no key"),
    ],
)
def test_errors_name_what_no_label_can_meet(selector, error):
    found = list(label_selectors.errors("spec.s", selector))
    assert len(found) == bool(error)
    assert all(row.startswith("spec.s.match") and error in row for row in found)
