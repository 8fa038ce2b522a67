"""Names of children: valid wherever they are used, distinct wherever their jobs are."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.kinds.training.children import naming
from tests.unit.kinds.training.samples import names

ROLES = ("worker", "chief", "ps", "evaluator")
LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")


def every_name(name, number=0):
    fixed = [naming.service(name), naming.checkpoints(name), naming.hyperparameters(name)]
    return fixed + [naming.job(name, role, number) for role in ROLES]


@given(names(), st.integers(0, 1_000_000))
def test_names_are_valid_for_every_child(name, number):
    assert all(LABEL.fullmatch(child) for child in every_name(name, number))
    assert LABEL_VALUE.fullmatch(naming.label_value(name))


@given(names(), st.integers(0, 1_000_000), st.integers(0, 99))
def test_every_pod_has_a_valid_host_name(name, number, index):
    hosts = [f"{naming.job(name, role, number)}-{0 if role == 'evaluator' else index}" for role in ROLES]
    assert all(LABEL.fullmatch(host) for host in hosts)


@given(st.lists(names(), unique=True, min_size=2, max_size=4), st.lists(st.integers(0, 99), unique=True, min_size=1))
def test_names_of_two_jobs_or_attempts_are_distinct(some, numbers):
    jobs = [naming.job(name, role, number) for name in some for role in ROLES for number in numbers]
    assert len(set(jobs)) == len(jobs)
    others = [child for name in some for child in every_name(name)[:3]]
    assert len(set(others)) == len(others)
    assert len({naming.label_value(name) for name in some}) == len(some)


def test_a_name_that_fits_is_kept():
    assert naming.job("pytorch-mnist", "worker", 0) == "pytorch-mnist-worker-0"
    assert naming.checkpoints("pytorch-mnist") == "pytorch-mnist-checkpoints"


@pytest.mark.parametrize(
    ("name", "beginning"),
    [("a" * 253, "a" * 36 + "-"), ("my.job", "my-job-"), ("2nd", "t2nd-"), ("b" * 35 + "-" + "c" * 20, "b" * 35 + "-")],
)
def test_a_name_that_does_not_fit_is_still_recognised(name, beginning):
    assert re.fullmatch(re.escape(beginning) + "[a-z2-7]{6}-worker-3", naming.job(name, "worker", 3))


def test_long_names_that_begin_alike_differ():
    assert naming.service("a" * 200) != naming.service("a" * 201)
    assert naming.service("a.b") != naming.service("a-b")


@pytest.mark.parametrize(
    ("key", "variable"),
    [
        ("learningRate", "HYPERPARAM_LEARNINGRATE"),
        ("batch-size", "HYPERPARAM_BATCH_SIZE"),
        ("optimizer.name", "HYPERPARAM_OPTIMIZER_NAME"),
        ("größe", "HYPERPARAM_GR_SSE"),
        ("", "HYPERPARAM_"),
    ],
)
def test_a_hyperparameter_has_the_name_of_a_variable(key, variable):
    assert naming.variable(key) == variable


@given(st.text())
def test_every_hyperparameter_has_a_valid_variable(key):
    assert VARIABLE.fullmatch(naming.variable(key))
