"""Rates from samples, and who is chosen by a selector."""

from __future__ import annotations

import pytest

from skysail.cloud.contract import RunId, Usage
from skysail.node.metrics_api import BadSelector, Rate, Sample, rates, registration, selects

OLD, NEW = RunId("u", "old", 0), RunId("u", "new", 0)


def used(seconds: float, memory: int = 1024) -> Usage:
    return Usage(cpu_seconds=seconds, memory=memory)


def test_a_rate_needs_two_samples():
    before = Sample(100.0, {OLD: used(1.0)})
    after = Sample(110.0, {OLD: used(6.0, 2048), NEW: used(9.0)})
    assert rates(before, after) == {OLD: Rate(0.5, 2048)}


def test_samples_of_one_moment_say_nothing():
    assert rates(Sample(1.0, {OLD: used(1)}), Sample(1.0, {OLD: used(2)})) == {}


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        ("", True),
        ("app=web", True),
        ("app==web,tier=a", True),
        ("app!=web", False),
        ("app=other", False),
        ("none!=x", True),
        ("app", True),
        ("!app", False),
        ("!none", True),
        ("app in (web, api),tier notin (b)", True),
        ("app in (api)", False),
        ("example.com/x=1", False),
    ],
)
def test_a_label_selector_chooses(selector, chosen):
    assert selects(selector, {"app": "web", "tier": "a"}) == chosen


@pytest.mark.parametrize("selector", ["=", "app in web", "a=b c", "(x)"])
def test_what_is_no_selector_is_refused(selector):
    with pytest.raises(BadSelector):
        selects(selector, {"app": "web", "a": "b"})


def test_the_registration_names_its_version():
    made = registration("Y2E=", service=("kube-system", "m"), port=1)
    assert made["metadata"]["name"] == "v1beta1.metrics.k8s.io"
