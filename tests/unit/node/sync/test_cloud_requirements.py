"""What a pod asks of a cloud beyond what its containers say."""

from __future__ import annotations

import msgspec
import pytest

from skysail.cloud.account import GpuRequest
from skysail.node.pod_types import Pod
from skysail.node.sync.cloud_requirements import requirements, unsupported


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
def test_whose_work_it_does(owner, index, work, job):
    annotations = {} if index is None else {"batch.kubernetes.io/job-completion-index": index}
    found = requirements(pod(owner=owner, annotations=annotations))
    assert (found.work, found.job) == (work, job)


@pytest.mark.parametrize(
    ("annotations", "limit", "gpus"),
    [
        ({}, 0, None),
        ({}, 2, GpuRequest("", 2)),
        ({"modal-operator.io/gpu-type": "T4"}, 0, GpuRequest("T4", 1)),
        ({"modal-operator.io/gpu-type": "T4"}, 4, GpuRequest("T4", 4)),
    ],
)
def test_which_gpus(annotations, limit, gpus):
    assert requirements(pod(annotations=annotations, gpus=limit)).gpus == gpus


@pytest.mark.parametrize(
    ("asked", "limit", "complaint"),
    [
        ("H100", 0, ""),
        ("H100:2", 0, ""),
        ("H100:2", 2, ""),
        ("H100", 8, ""),
        ("", 8, ""),
        ("H100:2", 1, "contradicts the containers' limits of 1"),
        *[
            (wrong, 0, "is not a type with a number")
            for wrong in ("H100:two", "H100:0", "H100:-3", "H100:²", ":2", "H100:")
        ],
        ("H100:100000", 0, "is not a type with a number"),
    ],
)
def test_gpus_that_nobody_can_understand_are_told(asked, limit, complaint):
    told = unsupported(pod(annotations={"modal-operator.io/gpu": asked}, gpus=limit)).rejected
    assert [complaint in sentence for sentence in told] == ([True] if complaint else [])


def test_what_would_cost_more_than_was_allowed_is_refused_and_the_rest_is_told():
    asked = {"runpod.io/max-price": "0.1", "modal-operator.io/timeout": "soon", "runpod.io/cloud-type": "COMMUNITY"}
    asked |= {
        "modal-operator.io/env-PYTHONPATH": "/app",
        "modal-operator.io/use-modal": "true",
        "example.com/mine": "x",
    }
    found = unsupported(pod(annotations=asked))
    assert ["timeout" in found.rejected[0], "max-price" in found.rejected[1], len(found.rejected)] == [True, True, 2]
    told = "metadata.annotations[modal-operator.io/env-PYTHONPATH, runpod.io/cloud-type]"
    assert [sentence.split(":")[0] for sentence in found.ignored] == [told]


def test_how_long_it_may_live_and_take_to_end():
    found = requirements(pod(activeDeadlineSeconds=60, terminationGracePeriodSeconds=0))
    assert (found.seconds, found.grace) == (60.0, 0.0)
    assert (requirements(pod()).seconds, requirements(pod()).grace) == (None, 30.0)
    timeout = {"modal-operator.io/timeout": "5"}
    assert requirements(pod(annotations=timeout)).seconds == 5.0
    assert requirements(pod(annotations=timeout, activeDeadlineSeconds=3)).seconds == 3.0
