"""Names of children: as people know them, valid wherever they are used, distinct wherever their models are."""

from __future__ import annotations

import re

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from skysail.kinds.serving.spec import naming
from tests.unit.kinds.training.samples import names

LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def children(found):
    named = {name for name in msgspec.to_builtins(found) if name not in {"model", "services", "predecessor"}}
    return [*found.services, *(getattr(found, name) for name in named if getattr(found, name))]


def test_a_model_deployments_children_have_the_names_that_people_know():
    found = naming.of_deployment("dummy-model")
    assert (found.job, found.deployment, found.autoscaler) == ("validate-dummy-model", "dummy-model", "dummy-model")
    assert found.services == ("dummy-model-service", "svc-dummy-model")
    assert (found.script, found.claim, found.model) == ("dummy-model-validate", "", "dummy-model")
    assert found.predecessor == "inference-dummy-model"


def test_an_ml_models_children_have_the_names_that_people_know():
    found = naming.of_ml_model("mlmodel-sample")
    assert (found.claim, found.job) == ("mlmodel-sample-pvc", "mlmodel-sample-download-job")
    assert (found.deployment, found.services) == ("mlmodel-sample-server", ("mlmodel-sample-service",))
    assert found.revision("0123456789") == "mlmodel-sample-server-0123456789"


@given(names())
def test_names_are_valid_for_every_child(name):
    for found in (naming.of_deployment(name), naming.of_ml_model(name)):
        assert all(LABEL.fullmatch(child) for child in children(found))
        assert LABEL_VALUE.fullmatch(found.model)


@given(st.lists(names(), unique=True, min_size=2, max_size=4))
def test_names_of_two_models_of_a_kind_are_distinct(some):
    for make in (naming.of_deployment, naming.of_ml_model):
        found = [make(name) for name in some]
        for field in ("model", "job", "deployment", "services", "script"):
            assert len({getattr(row, field) for row in found}) == len(some)


def test_a_long_name_is_cut_and_ends_with_a_hash():
    found = naming.of_deployment("a" * 253)
    assert re.fullmatch("a{43}-[a-z2-7]{6}", found.deployment)
    assert found.model == found.deployment
    assert naming.of_deployment("a.b").model == "a.b"
    assert re.fullmatch("a-b-[a-z2-7]{6}-service", naming.of_deployment("a.b").services[0])
