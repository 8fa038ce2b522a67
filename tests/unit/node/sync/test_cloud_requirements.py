"""Requirements of a pod at a cloud."""

from __future__ import annotations

import msgspec
import pytest

from skysail.cloud.account import GpuRequest, RegistryCredentials
from skysail.cloud.errors import Rejected
from skysail.node.config import container_config, container_overrides
from skysail.node.pod_types import Pod
from skysail.node.sync.cloud_requirements import lost_retry, requirements, restart_warning, unsupported, warnings

MODAL, RUNPOD = "modal-operator.io/", "runpod.io/"


def pod(*, annotations: dict | None = None, owner: str = "", gpus: int = 0, **spec: object) -> Pod:
    owners = [{"apiVersion": "batch/v1", "kind": owner, "name": "j", "uid": "u-j", "controller": True}]
    container = {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": gpus} if gpus else {}}}
    metadata = {"name": "a", "annotations": annotations or {}, "ownerReferences": owners if owner else []}
    return msgspec.convert({"metadata": metadata, "spec": {"containers": [container], **spec}}, Pod)


@pytest.mark.parametrize(
    ("owner", "index", "work", "job"),
    [
        ("", None, "", ""),
        ("Job", None, "", "u-j"),
        ("Job", "3", "u-j/3", "u-j"),
        ("ReplicaSet", "3", "", ""),
    ],
)
def test_requirements_pod_of_job_names_its_work(owner, index, work, job):
    annotations = {} if index is None else {"batch.kubernetes.io/job-completion-index": index}
    found = requirements(pod(owner=owner, annotations=annotations))
    assert (found.work, found.job) == (work, job)


@pytest.mark.parametrize(
    ("owner", "annotations", "is_cheapest", "may_leave"),
    [
        ("Job", {"skysail.dev/offload": "cheapest"}, True, True),
        ("Job", {"skysail.dev/automatic": "true"}, False, True),
        ("Job", {"skysail.dev/offload": "modal"}, False, False),
        ("Job", {}, False, False),
        ("Job", {f"{RUNPOD}managed": "true"}, False, False),
        ("ReplicaSet", {"skysail.dev/offload": "cheapest"}, True, True),
        ("ReplicaSet", {"skysail.dev/offload": "modal"}, False, False),
        ("StatefulSet", {"skysail.dev/automatic": "true"}, False, False),
        ("DaemonSet", {"skysail.dev/offload": "cheapest"}, True, False),
        ("", {"skysail.dev/offload": "cheapest"}, True, False),
    ],
)
def test_requirements_pod_that_is_replaced_without_a_named_provider_may_leave(
    owner, annotations, is_cheapest, may_leave
):
    found = requirements(pod(owner=owner, annotations=annotations))
    assert (found.is_cheapest, found.may_leave) == (is_cheapest, may_leave)


def test_requirements_carry_the_offload_request():
    written = {
        f"{MODAL}gpu-type": "A100",
        f"{RUNPOD}required-gpu-memory": "40",
        f"{RUNPOD}max-price": "1.5",
        f"{RUNPOD}cloud-type": "COMMUNITY",
        f"{RUNPOD}datacenter-ids": "EU-RO-1",
        f"{RUNPOD}allowed-cuda-versions": "12.4",
        f"{RUNPOD}templateId": "t1",
        "skysail.dev/max-cost-usd": "3",
        "skysail.dev/automatic": "true",
    }
    found = requirements(pod(annotations=written, gpus=2))
    assert found.gpus == GpuRequest("A100", 2)
    assert (found.gpu_memory, found.max_usd_per_hour, found.max_cost_usd) == (40, 3.0, 3.0)
    assert (found.regions, found.cloud_types, found.cuda_versions) == (("EU-RO-1",), ("COMMUNITY",), ("12.4",))
    assert dict(found.options) == {"template-id": "t1", "datacenter-ids": "EU-RO-1", "allowed-cuda-versions": "12.4"}
    assert (found.image, found.is_automatic) == ("i", True)
    assert not requirements(pod()).is_automatic


def test_requirements_hints_of_the_pod_choose_the_gpu_type():
    expression = {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-L4"]}
    required = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    }
    assert requirements(pod(gpus=1, affinity={"nodeAffinity": required})).gpus == GpuRequest("L4", 1)
    selector = {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}
    assert requirements(pod(gpus=1, nodeSelector=selector)).gpus == GpuRequest("T4", 1)


def test_requirements_malformed_annotation_raises_rejected():
    with pytest.raises(Rejected, match="max-price"):
        requirements(pod(annotations={f"{RUNPOD}max-price": "cheap"}))


def test_requirements_seconds_are_the_smaller_limit():
    found = requirements(pod(activeDeadlineSeconds=60, terminationGracePeriodSeconds=0))
    assert (found.seconds, found.grace) == (60.0, 0.0)
    assert (requirements(pod()).seconds, requirements(pod()).grace) == (None, 30.0)
    timeout = {f"{MODAL}timeout": "5"}
    assert requirements(pod(annotations=timeout)).seconds == 5.0
    assert requirements(pod(annotations=timeout, activeDeadlineSeconds=3)).seconds == 3.0


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, False),
        ({"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]}, False),
        ({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}, True),
        ({"envFrom": [{"secretRef": {"name": "s"}}]}, True),
    ],
)
def test_requirements_secret_references_are_seen(fields, expected):
    of = pod(containers=[{"name": "main", "image": "i", **fields}])
    assert requirements(of).uses_secrets == expected


def test_requirements_secret_volume_and_registry_credentials_use_secrets():
    assert requirements(pod(volumes=[{"name": "v", "secret": {"secretName": "s"}}])).uses_secrets
    credentials = RegistryCredentials("r.example.com", "u", "p")
    found = requirements(pod(), credentials)
    assert (found.uses_secrets, found.registry_credentials) == (True, credentials)


def test_requirements_container_mode_names_the_image_that_runs():
    of = container_overrides.apply(pod(annotations={f"{MODAL}use-modal": "true", f"{MODAL}image": "python:3.11"}))
    assert (requirements(of).image, requirements(of).seconds) == ("python:3.11", 300.0)


def test_unsupported_errors_are_rejected_and_the_rest_is_ignored():
    written = {
        f"{RUNPOD}max-price": "cheap",
        f"{MODAL}timeout": "soon",
        f"{MODAL}handler": "app.run",
        f"{MODAL}retries": "3",
        f"{MODAL}gpus": "T4",
        f"{RUNPOD}pod-id": "forged",
        "example.com/mine": "x",
    }
    found = unsupported(pod(annotations=written), "modal")
    assert [f"[{RUNPOD}max-price]" in sentence for sentence in found.rejected] == [True]
    named = [sentence.split(":")[0] for sentence in found.ignored]
    assert named == [f"metadata.annotations[{MODAL}{name}]" for name in ("handler", "gpus", "retries")]
    (warning,) = warnings(pod(annotations=written))
    assert f"[{MODAL}timeout]" in warning


def test_unsupported_volumes_of_the_cluster_are_rejected_by_path():
    volumes = [
        {"name": "a", "emptyDir": {}},
        {"name": "b", "persistentVolumeClaim": {"claimName": "c"}},
        {"name": "d", "hostPath": {"path": "/etc"}},
        {"name": "kube-api-access-x", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
    ]
    of = container_config.without_service_account(pod(volumes=volumes))
    paths = [sentence.split(":")[0] for sentence in unsupported(of, "modal").rejected]
    assert paths == ["spec.volumes[1].persistentVolumeClaim", "spec.volumes[2].hostPath"]
    assert [volume.name for volume in of.spec.volumes] == ["a", "b", "d"]


def test_unsupported_many_annotations_stay_short():
    written = {f"{MODAL}env-{number}": "x" for number in range(500)} | {f"{MODAL}use-modal": "true"}
    written |= {f"{RUNPOD}unknown-{number}": "x" for number in range(500)}
    found = unsupported(pod(annotations=written), "modal")
    assert (len(found.rejected), found.rejected[-1]) == (21, "And 480 more.")
    assert len(found.ignored[0]) < 600


@pytest.mark.parametrize(
    ("resources", "cpu", "memory"),
    [
        ({}, None, None),
        ({"limits": {"cpu": "64", "memory": "512Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}}, 64.0, 512 * 2**30),
        ({"requests": {"cpu": "1500m", "memory": "1Gi"}}, 1.5, 2**30),
        ({"limits": {"cpu": "2"}, "requests": {"memory": "1Gi"}}, 2.0, 2**30),
    ],
)
def test_the_size_of_the_machine_is_the_limits_or_else_the_requests(resources, cpu, memory):
    found = requirements(pod(containers=[{"name": "main", "image": "i", "resources": resources}])).size
    assert (found.cpu, found.memory) == (cpu, memory)


def test_cpu_and_memory_of_container_mode_count_for_the_size_of_the_machine():
    annotations = {f"{MODAL}use-modal": "true", f"{MODAL}image": "i", f"{MODAL}cpu": "8", f"{MODAL}memory": "1Gi"}
    found = requirements(container_overrides.apply(pod(annotations=annotations))).size
    assert (found.cpu, found.memory) == (16.0, 2**30)


@pytest.mark.parametrize(
    ("fields", "warned"),
    [
        ({}, True),
        ({"restartPolicy": "OnFailure"}, False),
        ({"owner": "ReplicaSet"}, False),
        ({"annotations": {f"{MODAL}tunnel": "true"}}, False),
        ({"annotations": {f"{MODAL}use-modal": "true"}}, True),
    ],
)
def test_single_run_that_restarts_for_ever_is_warned_about(fields, warned):
    assert bool(restart_warning(pod(**fields))) is warned


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"owner": "Job", "restartPolicy": "OnFailure"}, "loses one retry: only a Job with restartPolicy Never"),
        ({"owner": "Job", "restartPolicy": "Never"}, "loses one retry, unless its podFailurePolicy"),
        ({"owner": "ReplicaSet"}, ""),
        ({}, ""),
    ],
)
def test_job_whose_pod_finds_no_capacity_is_told_what_it_loses(fields, expected):
    found = lost_retry(pod(**fields))
    assert expected in found
    assert bool(found) is bool(expected)
