"""Hostile values in every annotation and label that is read or written: nothing follows but an error or a default."""

from __future__ import annotations

import json

import msgspec
import pytest
from msgspec.structs import replace

from skysail.base.names import Annotation, Label
from skysail.claims.requirements import annotations
from skysail.claims.requirements.annotations import parse
from skysail.claims.requirements.types import OffloadRequest, PodSpecView
from skysail.claims.types import CloudInstance, CloudInstanceSpec, CloudInstanceStatus, OwnerRef
from skysail.kinds.offload.plan import pod_annotations
from skysail.kinds.offload.plan.snapshot import CloudPodSnapshot
from skysail.kube.api.objects import Meta, Object
from skysail.node.config import cloud_pod
from skysail.node.pod_types import Pod
from skysail.node.sync.cloud_requirements import requirements

MODAL = "modal-operator.io/"
ATTACKS = {
    "foreign id": "uid=other-team/7d0f6a52-2f1e-4c0e-9a55-9d2c3f1f9c0b",
    "forged owner": '{"ownerReferences":[{"kind":"Job","name":"j","uid":"u","controller":true}]}',
    "forged Kopf state": '{"success":true,"started":"2026-01-01T00:00:00"}',
    "oversize": "A" * 200_000,
    "oversize number": "9" * 5_000,
    "newline": "true\nrunpod.io/offload: true",
    "quote": "\"'; touch /tmp/pwned #",
    "template braces": "{{ .Values.token }} {0.__class__} $(KUBERNETES_SERVICE_HOST) ${HOME} %s",
    "NUL": "true\0",
    "path": "../../../etc/passwd",
    "lookalike": "\uff54\uff52\uff55\uff45",
    "lone surrogate": "\ud800",
    "terminal escape": "\x1b[2J\x07",
    "not a number": "+nan",
    "endless": "-1e999",
    "nested": '{"x":' + "[" * 100_000 + "]" * 100_000 + "}",
}
# Free text of the tenant's own container: it arrives verbatim, and nowhere else.
FREE_TEXT = {f"{MODAL}command", f"{MODAL}env-NAME", f"{MODAL}handler"}
KEYS = sorted({*map(str, annotations._READ), *map(str, annotations._WRITTEN), f"{MODAL}env-NAME", f"{MODAL}unknown"})
LABELS = (Label.MODAL_WORKLOAD_TYPE, Label.RUNPOD_OFFLOAD, Label.RUNPOD_MANAGED)
# Annotations that Skysail writes on pods and reads again, each as Skysail writes it.
OURS = {
    Annotation.AUTOMATIC.value: "true",
    Annotation.CHECKPOINT_VOLUME.value: "7d0f6a52-2f1e-4c0e-9a55-9d2c3f1f9c0b",
    Annotation.CLOUD_CHECKPOINT.value: '{"provider":"modal","path":"/checkpoints/3","step":3}',
    Annotation.PERIOD.value: "1",
    Annotation.DEADLINE.value: "2026-01-01T12:00:00Z",
}
# An ordinary mistake. No hostile value may do more than this one.
MISTAKE = "!"
MAX_MESSAGE_LENGTH = 300


def effect(request: OffloadRequest) -> OffloadRequest:
    """Return the request without what is only reported. A request with errors is never launched."""
    if request.errors:
        return OffloadRequest()
    return replace(request, warnings=(), not_honoured=(), unknown=(), overrides=None)


def messages(request: OffloadRequest) -> list[str]:
    return [*request.errors, *(warned.message for warned in request.warnings)]


@pytest.mark.parametrize("base", [{}, {f"{MODAL}use-modal": "true"}, {"skysail.dev/offload": "runpod"}], ids=str)
def test_parse_hostile_annotation_has_no_more_effect_than_a_mistake(base, record_property):
    tried = 0
    for key in KEYS:
        mistake = parse({**base, key: MISTAKE}, {}, PodSpecView())
        for name, value in ATTACKS.items():
            found = parse({**base, key: value}, {}, PodSpecView())
            assert key in FREE_TEXT or effect(found) == effect(mistake), (key, name)
            assert all(text.isprintable() and len(text) <= MAX_MESSAGE_LENGTH for text in messages(found)), (key, name)
            tried += 1
    assert tried == len(KEYS) * len(ATTACKS)
    record_property("attempts without effect", tried)


def test_parse_hostile_label_has_no_more_effect_than_a_mistake():
    for key in LABELS:
        mistake = parse({}, {key: MISTAKE}, PodSpecView())
        for name, value in ATTACKS.items():
            assert effect(parse({}, {key: value}, PodSpecView())) == effect(mistake), (key, name)


@pytest.mark.parametrize("value", ATTACKS.values(), ids=ATTACKS)
def test_parse_free_text_is_in_the_container_only(value):
    base = {f"{MODAL}use-modal": "true"}
    plain = effect(parse(base, {}, PodSpecView()))
    command = parse({**base, f"{MODAL}command": f"python -c {value}"}, {}, PodSpecView())
    variable = parse({**base, f"{MODAL}env-NAME": value}, {}, PodSpecView())
    if "\0" in value:
        assert command.errors
        assert variable.errors
        return
    assert (effect(command), command.overrides.command) == (plain, ("python", "-c", value.lstrip()))
    assert (effect(variable), variable.overrides.env) == (plain, (("NAME", value),))
    assert effect(parse({**base, f"{MODAL}handler": value}, {}, PodSpecView())) == plain


def test_parse_written_annotations_are_never_read():
    forged = {str(name): "forged" for name in annotations._WRITTEN}
    assert parse(forged, {}, PodSpecView()) == parse({}, {}, PodSpecView())


def launched(annotations: dict[str, str]) -> tuple:
    """Return the pod of a TrainingJob as the cloud runs it, without its annotations, and its requirements."""
    env = [{"name": "RESUME_FROM", "value": "/checkpoints/2"}, {"name": "A", "value": "1"}]
    mounts = [{"name": "checkpoints", "mountPath": "/checkpoints"}]
    spec = {
        "containers": [{"name": "main", "image": "i", "env": env, "volumeMounts": mounts}],
        "volumes": [{"name": "checkpoints", "emptyDir": {}}],
    }
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u-j", "controller": True}
    metadata = {"name": "p", "namespace": "n", "uid": "u", "annotations": annotations, "ownerReferences": [owner]}
    made = cloud_pod.effective(msgspec.convert({"metadata": metadata, "spec": spec}, Pod), "modal")
    return replace(made, metadata=replace(made.metadata, annotations=None)), requirements(made)


@pytest.mark.parametrize("key", OURS)
def test_launch_forged_annotation_of_ours_counts_as_none(key):
    for base in ({}, {f"{MODAL}use-modal": "true"}, OURS):
        others = {name: value for name, value in base.items() if name != key}
        expected = launched(others)
        for name, value in ATTACKS.items():
            assert launched({**others, key: value}) == expected, (key, name)


def test_launch_forged_checkpoint_reaches_the_variable_only():
    def forged(path: str) -> tuple[str, tuple]:
        pod, asked = launched(
            {**OURS, Annotation.CLOUD_CHECKPOINT.value: json.dumps({"provider": "modal", "path": path})}
        )
        (main,) = pod.spec.containers
        resume = "".join(row.value for row in main.env if row.name == "RESUME_FROM")
        kept = tuple(row for row in main.env if row.name != "RESUME_FROM")
        return resume, (replace(pod, spec=replace(pod.spec, containers=(replace(main, env=kept),))), asked)

    _, expected = forged("/checkpoints/3")
    for name, value in ATTACKS.items():
        resume, launch = forged(value)
        assert launch == expected, name
        # A variable of the cluster is not put into the value. A text that is not UTF-8 is no checkpoint.
        assert resume == ("" if name == "lone surrogate" else value.replace("$", "$$")), name


@pytest.mark.parametrize("key", OURS)
def test_plan_forged_annotation_of_ours_is_never_copied(key):
    owner = OwnerRef(kind="Pod", name="p", uid="u", namespace="n")
    status = CloudInstanceStatus(
        state="Running", instance_id="sb-1", app_id="ap-1", deadline_time="2026-11-19T12:00:00Z"
    )
    spec = CloudInstanceSpec(provider="modal", owner=owner)
    claim = CloudInstance(metadata=Meta(name="u-0"), spec=spec, status=status)

    def written(value: str) -> list[dict[str, str]]:
        pod = Object(metadata=Meta(name="p", namespace="n", uid="u", annotations={**OURS, key: value}))
        return [
            action.annotations for action in pod_annotations.plan(CloudPodSnapshot(object=pod, claims=(claim,))).actions
        ]

    expected = written(MISTAKE)
    assert expected == [
        {
            "modal-operator.io/function-id": "sb-1",
            "modal-operator.io/app-id": "ap-1",
            "modal-operator.io/log-url": "https://modal.com/apps/ap-1",
            "skysail.dev/deadline": "2026-11-19T12:00:00Z",
        }
    ]
    assert [name for name, value in ATTACKS.items() if written(value) != expected] == []
