"""A pod as a cloud runs it."""

import msgspec
import pytest

from skysail.base.names import Annotation
from skysail.cloud.checkpoint_volumes import volume_id
from skysail.node.config.cloud_pod import effective, ignored, rejected
from skysail.node.pod_types import Pod

TOKEN = {"name": "kubeflow-trainer-token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
CHECKPOINTS = {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "mnist-checkpoints"}}
SERVER = {"name": "KUBEFLOW_TRAINER_SERVER_URL", "value": "https://progress"}
RESUME = [{"name": "RESUME_FROM", "value": "/checkpoints/3"}, {"name": "RESUME_STEP", "value": "3"}]
UID = {Annotation.CHECKPOINT_VOLUME.value: "uid-1"}


def pod(*names: str, env=(), volumes=(), annotations=None, inits=()) -> Pod:
    mounts = [{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in volumes]
    containers = [{"name": name, "image": "i", "env": list(env), "volumeMounts": mounts} for name in names or ("main",)]
    spec = {
        "containers": containers,
        "volumes": list(volumes),
        "initContainers": [{"name": name, "image": "i"} for name in inits],
    }
    metadata = {"name": "p", "namespace": "n", "uid": "u", "annotations": annotations or {}}
    return msgspec.convert({"metadata": metadata, "spec": spec}, Pod)


def env(of: Pod) -> dict[str, str]:
    return {row.name: row.value for row in of.spec.containers[0].env}


def test_no_token_and_no_server_of_the_cluster_leave_it():
    made = effective(pod(env=[SERVER, {"name": "A", "value": "1"}], volumes=[TOKEN]), "modal")
    assert made.spec.volumes == ()
    assert made.spec.containers[0].volume_mounts == ()
    assert env(made) == {"A": "1"}


def test_the_checkpoint_volume_is_one_of_the_cloud():
    made = effective(pod(volumes=[CHECKPOINTS], annotations=UID), "modal")
    (volume,) = made.spec.volumes
    assert volume.cloud_volume == volume_id("n", "uid-1")
    assert volume.cloud_volume.startswith("uid-1-")
    assert volume.persistent_volume_claim is None
    assert made.spec.containers[0].volume_mounts[0].name == "checkpoints"


def test_a_namespace_cannot_name_a_volume_of_another():
    assert volume_id("n", "uid-1") != volume_id("m", "uid-1")


def test_another_claim_stays_and_is_rejected_elsewhere():
    made = effective(pod(volumes=[CHECKPOINTS]), "modal")
    assert made.spec.volumes[0].persistent_volume_claim is not None


@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [
        (None, {}),
        (
            {"provider": "modal", "path": "/checkpoints/9", "step": 9},
            {"RESUME_FROM": "/checkpoints/9", "RESUME_STEP": "9"},
        ),
        ({"provider": "modal", "path": "/checkpoints/9"}, {"RESUME_FROM": "/checkpoints/9"}),
        ({"provider": "runpod", "path": "/checkpoints/9", "step": 9}, {}),
        ({"provider": 1}, {}),
    ],
)
def test_only_a_checkpoint_of_this_cloud_is_resumed(checkpoint, expected):
    known = {} if checkpoint is None else {Annotation.CLOUD_CHECKPOINT.value: msgspec.json.encode(checkpoint).decode()}
    made = effective(pod(env=RESUME, volumes=[CHECKPOINTS], annotations={**UID, **known}), "modal")
    assert env(made) == expected


def test_injected_containers_do_not_run_and_are_named():
    of = pod("main", "istio-proxy", inits=("vault-agent-init", "init-pytorch"))
    made = effective(of, "modal")
    assert [container.name for container in made.spec.containers] == ["main"]
    assert made.spec.init_containers == ()
    (sentence,) = ignored(of)
    assert "istio-proxy, vault-agent-init, init-pytorch" in sentence
    assert list(ignored(pod("main"))) == []


def test_a_pod_of_injected_containers_alone_is_left_alone():
    of = pod("istio-proxy")
    assert effective(of, "modal") == of
    assert list(ignored(of)) == []


def test_the_collector_of_katib_is_rejected_with_the_fix():
    (sentence,) = rejected(pod("main", "metrics-logger-and-collector"))
    assert "Push" in sentence
    assert list(rejected(pod("main"))) == []
