"""What a pod asks of a cloud beyond what its containers say."""

from __future__ import annotations

import msgspec
import pytest

from skysail.cloud.instances import Gpus
from skysail.node.manifest import Pod
from skysail.node.wishes import wishes


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
    found = wishes(pod(owner=owner, annotations=annotations))
    assert (found.work, found.job) == (work, job)


@pytest.mark.parametrize(
    ("annotations", "limit", "gpus"),
    [
        ({}, 0, None),
        ({}, 2, Gpus("", 2)),
        ({"modal-operator.io/gpu-type": "T4"}, 0, Gpus("T4", 1)),
        ({"modal-operator.io/gpu-type": "T4"}, 4, Gpus("T4", 4)),
    ],
)
def test_which_gpus(annotations, limit, gpus):
    assert wishes(pod(annotations=annotations, gpus=limit)).gpus == gpus


def test_how_long_it_may_live_and_take_to_end():
    found = wishes(pod(activeDeadlineSeconds=60, terminationGracePeriodSeconds=0))
    assert (found.seconds, found.grace) == (60.0, 0.0)
    assert (wishes(pod()).seconds, wishes(pod()).grace) == (None, 30.0)
