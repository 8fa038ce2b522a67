"""Each name is declared once, is legal where Kubernetes or Prometheus reads it, and has a sentence."""

from __future__ import annotations

import re

import pytest

from skysail.base import names
from skysail.base.names import Annotation, Condition, EventReason, Finalizer, Label, LegacyFinalizer, Metric, Reason

QUALIFIED = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
CAMEL = re.compile(r"[A-Z][A-Za-z0-9]*")
# On an object of somebody else, such as a pod, a condition says whose it is.
CONDITION = re.compile(r"(skysail\.dev/)?[A-Z][A-Za-z0-9]*")
SNAKE = re.compile(r"[a-z][a-z0-9_]*")


@pytest.mark.parametrize("group", names.ALL, ids=lambda group: group.__name__)
def test_no_name_hides_another(group):
    """Of two members with one value, an enum silently makes the second an alias of the first."""
    assert [alias for alias, member in group.__members__.items() if alias != member.name] == []


@pytest.mark.parametrize("group", names.ALL, ids=lambda group: group.__name__)
def test_every_list_and_every_name_has_its_sentence(group):
    assert group.__doc__
    assert [name for name in group if not name.description.endswith(".")] == []


def test_every_list_is_in_the_reference():
    assert set(names.ALL) == set(names.DocumentedName.__subclasses__())


@pytest.mark.parametrize(
    ("group", "shape"),
    [
        (Label, QUALIFIED),
        (Finalizer, QUALIFIED),
        (LegacyFinalizer, QUALIFIED),
        (Condition, CONDITION),
        (Reason, CAMEL),
        (EventReason, CAMEL),
        (Metric, SNAKE),
    ],
)
def test_a_name_is_legal_where_it_is_read(group, shape):
    assert [name for name in group if not shape.fullmatch(name)] == []


def test_an_annotation_is_legal_and_the_prefix_is_so_with_a_name_behind_it():
    assert [name for name in Annotation if not QUALIFIED.fullmatch(name.removesuffix("-"))] == []


def test_a_name_is_its_text():
    assert f"{Label.MANAGED_BY}" == "app.kubernetes.io/managed-by"
    assert Annotation("modal-operator.io/offload") is Annotation.MODAL_OFFLOAD


@pytest.mark.parametrize(
    ("group", "values"),
    [
        (
            Annotation,
            [
                *(
                    f"modal-operator.io/{name}"
                    for name in ("offload", "gpu-type", "tunnel", "tunnel-port", "use-modal")
                ),
                *(f"modal-operator.io/{name}" for name in ("image", "command", "cpu", "memory", "gpu", "timeout")),
                *(f"modal-operator.io/{name}" for name in ("retries", "replicas", "enable-i6pn", "handler", "env-")),
                *(f"runpod.io/{name}" for name in ("managed", "offload", "required-gpu-memory", "cloud-type")),
                *(f"runpod.io/{name}" for name in ("pod-id", "offloaded", "cost-per-hr", "templateId")),
                "modal.com/enabled",
            ],
        ),
        (Label, ["trainingjob.ml.example.com/worker", "runpod.io/managed", "modal-operator.io/workload-type"]),
        (
            LegacyFinalizer,
            [
                "trainingjob.ml.example.com/finalizer",
                "mlops.sathvik.dev/finalizer",
                "mlmodel.finalizer",
                "kopf.zalando.org/KopfFinalizerMarker",
            ],
        ),
        (EventReason, ["WorkersCreated", "TrainingCompleted", "WorkerFailed"]),
        (
            Metric,
            [
                *("modal_jobs_total", "modal_job_duration_seconds", "modal_jobs_active", "modal_gpu_utilization"),
                *("model_deployments_created_total", "model_validations_total"),
            ],
        ),
    ],
)
def test_the_names_that_people_already_use_are_there(group, values):
    assert [value for value in values if value not in set(group)] == []
