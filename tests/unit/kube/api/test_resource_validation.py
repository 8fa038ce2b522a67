"""What can be said of resources without knowing what they are for."""

from __future__ import annotations

import pytest

from skysail.kube.api import resource_validation
from skysail.kube.api.fields import ResourceRequirements


@pytest.mark.parametrize(
    ("resource", "is_device"),
    [
        ("cpu", False),
        ("hugepages-2Mi", False),
        ("nvidia.com/gpu", True),
        ("amd.com/gpu", True),
        ("kubernetes.io/batch-cpu", False),
        ("storage.kubernetes.io/x", False),
    ],
)
def test_what_has_the_domain_of_a_vendor_is_a_device(resource, is_device):
    assert resource_validation.is_extended_resource(resource) is is_device


def test_every_objection_names_the_field_that_was_asked_about():
    wrong = ResourceRequirements(
        limits={"cpu": 1, "amd.com/gpu": 2, "memory": "1e2.5"}, requests={"cpu": "1001m", "amd.com/gpu": 1}
    )
    found = list(resource_validation.validate("spec.a", wrong))
    assert len(found) == 3
    assert all(sentence.startswith("spec.a") for sentence in found)


def test_equal_amounts_may_be_written_differently():
    same = ResourceRequirements(
        limits={"cpu": "1", "nvidia.com/gpu": "1"}, requests={"cpu": "1000m", "nvidia.com/gpu": 1}
    )
    assert list(resource_validation.validate("spec.a", same)) == []
