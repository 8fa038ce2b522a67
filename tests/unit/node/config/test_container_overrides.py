"""Container mode: annotations in place of the container's own fields."""

from __future__ import annotations

import msgspec
import pytest

from skysail.cloud import provider
from skysail.node.config import container_config, container_overrides
from skysail.node.config.env import ResolvedReferences
from skysail.node.pod_types import Pod
from tests.unit.node.pods import container, pod

MODAL = "modal-operator.io/"
# Seed 000, lines 217-234.
SAMPLE = {
    "metadata": {
        "name": "modal-container",
        "annotations": {
            f"{MODAL}use-modal": "true",
            f"{MODAL}image": "python:3.11-slim",
            f"{MODAL}command": "python -c print('Hello from Modal!')",
            f"{MODAL}cpu": "1.0",
            f"{MODAL}memory": "512Mi",
            f"{MODAL}gpu": "T4:1",
            f"{MODAL}timeout": "300",
            f"{MODAL}env-PYTHONPATH": "/app",
        },
    },
    "spec": {"containers": [{"name": "placeholder", "image": "busybox", "command": ["sleep", "infinity"]}]},
}


def translated(of: Pod, **resolved: object) -> provider.Container:
    effective = container_overrides.apply(of)
    facts = {"config_maps": {}, "secrets": {}, "services": container_overrides.variables(of), **resolved}
    return container_config.container(effective, effective.spec.containers[0], ResolvedReferences(**facts))


def test_container_mode_sample_is_translated_to_the_container_of_its_annotations():
    made = translated(msgspec.convert(SAMPLE, Pod))
    assert made.name == "placeholder"
    assert made.image == "python:3.11-slim"
    assert made.command == ("python", "-c", "print('Hello from Modal!')")
    assert made.args == ()
    assert made.env == (("PYTHONPATH", "/app"),)
    # One physical core of Modal is two cores of Kubernetes.
    assert made.limits == provider.ResourceLimits(cpu=2.0, memory=512 * 1024**2, gpus=1)


def test_container_mode_keeps_fields_without_annotation():
    source = container("main", command=["run"], args=["x"], resources={"limits": {"cpu": "1", "memory": "1Gi"}})
    made = translated(pod(source, metadata={"annotations": {f"{MODAL}use-modal": "true", f"{MODAL}cpu": "4"}}))
    assert (made.image, made.command, made.args) == ("busybox", ("run",), ("x",))
    assert made.limits == provider.ResourceLimits(cpu=8.0, memory=2**30)


def test_container_mode_variables_yield_to_those_of_the_container():
    written = {f"{MODAL}env-A": "annotation", f"{MODAL}env-B": "annotation", f"{MODAL}env-C": "$(A)"}
    source = container(
        "main",
        env=[{"name": "A", "value": "env"}, {"name": "D", "value": "$(C)"}],
        envFrom=[{"configMapRef": {"name": "c"}}],
    )
    of = pod(source, metadata={"annotations": {f"{MODAL}use-modal": "true", **written}})
    made = translated(of, config_maps={"c": {"B": b"envFrom"}})
    assert dict(made.env) == {"A": "env", "B": "envFrom", "C": "$(A)", "D": "$(A)"}


@pytest.mark.parametrize("text", ["sh -c echo $(A) $A $$ ${A}", "echo $(A) $$"])
def test_container_mode_command_is_not_expanded(text):
    source = container("main", env=[{"name": "A", "value": "expanded"}])
    of = pod(source, metadata={"annotations": {f"{MODAL}use-modal": "true", f"{MODAL}command": text}})
    assert " ".join(translated(of).command) == text


def test_without_container_mode_the_pod_stays_as_it_is():
    of = pod(metadata={"annotations": {f"{MODAL}offload": "true", f"{MODAL}image": "other", f"{MODAL}env-A": "x"}})
    assert container_overrides.apply(of) is of
    assert container_overrides.variables(of) == {}


def test_apply_twice_changes_nothing_more():
    once = container_overrides.apply(msgspec.convert(SAMPLE, Pod))
    assert container_overrides.apply(once) == once
