"""Which pods belong to a gang."""

import pytest

from skysail.kinds.offload.plan.gangs import Owner, gang, members
from tests.unit.kinds.offload.samples import pod

REPLICAS = {"Master": {"replicas": 1}, "Worker": {"replicas": 3}}


@pytest.mark.parametrize(
    ("kind", "spec", "expected"),
    [
        ("Job", {"completionMode": "Indexed", "parallelism": 4}, 4),
        ("Job", {"parallelism": 4}, None),
        ("JobSet", {"replicatedJobs": [{"replicas": 2, "template": {"spec": {"parallelism": 2}}}, {}]}, 5),
        ("JobSet", {"replicatedJobs": [{"template": {"spec": {}}}]}, 1),
        ("LeaderWorkerSet", {"leaderWorkerTemplate": {"size": 4}}, 4),
        ("TrainJob", {"trainer": {"numNodes": 2}}, 2),
        ("TrainJob", {}, 1),
        ("PyTorchJob", {"pytorchReplicaSpecs": REPLICAS}, 4),
        ("TFJob", {"tfReplicaSpecs": {"Worker": {}}}, 1),
        ("Deployment", {"replicas": 3}, None),
        ("CronJob", {}, None),
    ],
)
def test_members_of_owner_kind(kind, spec, expected):
    assert members(kind, spec) == expected


@pytest.mark.parametrize(
    ("metadata", "spec", "owners", "expected"),
    [
        ({}, {}, (), ""),
        ({}, {}, (Owner(kind="Job", name="a"),), ""),
        ({}, {"subdomain": "s"}, (Owner(kind="Job", name="a", members=4),), "Job a"),
        ({}, {}, (Owner(kind="Job", name="a", members=4),), ""),
        ({}, {"subdomain": "s"}, (Owner(kind="Job", name="a", members=1),), ""),
        ({}, {}, (Owner(kind="PyTorchJob", name="p", members=2),), "PyTorchJob p"),
        ({"labels": {"training.kubeflow.org/job-name": "p"}}, {}, (), "training job p"),
        (
            {"labels": {"training.kubeflow.org/job-name": "p"}},
            {},
            (Owner(kind="PyTorchJob", name="p", members=1),),
            "",
        ),
        (
            {"labels": {"jobset.sigs.k8s.io/jobset-name": "j"}},
            {},
            (Owner(kind="Job", name="a", members=1), Owner(kind="JobSet", name="j", members=1)),
            "",
        ),
        (
            {"labels": {"jobset.sigs.k8s.io/jobset-name": "j"}},
            {},
            (Owner(kind="Job", name="a"), Owner(kind="JobSet", name="j", members=3)),
            "JobSet j",
        ),
        ({"labels": {"scheduling.x-k8s.io/pod-group": "g"}}, {}, (), "PodGroup g"),
        ({"annotations": {"scheduling.k8s.io/group-name": "g"}}, {}, (), "PodGroup g"),
        ({"labels": {"kueue.x-k8s.io/pod-group-name": "g"}}, {}, (), "pod group g"),
        (
            {
                "labels": {"kueue.x-k8s.io/pod-group-name": "g"},
                "annotations": {"kueue.x-k8s.io/pod-group-total-count": "1"},
            },
            {},
            (),
            "",
        ),
        ({"labels": {"leaderworkerset.sigs.k8s.io/name": "l"}}, {}, (), "LeaderWorkerSet l"),
        (
            {"labels": {"trainingjob.ml.example.com/uid": "u", "trainingjob.ml.example.com/name": "t"}},
            {},
            (),
            "TrainingJob t",
        ),
    ],
)
def test_gang_of_pod(metadata, spec, owners, expected):
    assert gang(pod(spec, **metadata), owners) == expected
