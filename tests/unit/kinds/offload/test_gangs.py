"""Which pods belong to a gang."""

import pytest

from skysail.base.names import Label
from skysail.claims.gangs import GangRef
from skysail.kinds.offload.plan.gangs import (
    MemberGroup,
    Owner,
    ends_together,
    gang,
    gang_ref,
    has_ranks,
    member_groups,
    sibling_selector,
)
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
    groups = member_groups(kind, spec)
    assert (None if groups is None else sum(group.size for group in groups)) == expected


@pytest.mark.parametrize(
    ("metadata", "spec", "owners", "expected"),
    [
        ({}, {}, (), ""),
        ({}, {}, (Owner(kind="Job", name="a"),), ""),
        ({}, {"subdomain": "s"}, (Owner(kind="Job", name="a", groups=(MemberGroup(pods=4),)),), "Job a"),
        ({}, {}, (Owner(kind="Job", name="a", groups=(MemberGroup(pods=4),)),), ""),
        ({}, {"subdomain": "s"}, (Owner(kind="Job", name="a", groups=(MemberGroup(pods=1),)),), ""),
        ({}, {}, (Owner(kind="PyTorchJob", name="p", groups=(MemberGroup(pods=2),)),), "PyTorchJob p"),
        ({"labels": {"training.kubeflow.org/job-name": "p"}}, {}, (), "training job p"),
        (
            {"labels": {"training.kubeflow.org/job-name": "p"}},
            {},
            (Owner(kind="PyTorchJob", name="p", groups=(MemberGroup(pods=1),)),),
            "",
        ),
        (
            {"labels": {"jobset.sigs.k8s.io/jobset-name": "j"}},
            {},
            (
                Owner(kind="Job", name="a", groups=(MemberGroup(pods=1),)),
                Owner(kind="JobSet", name="j", groups=(MemberGroup(pods=1),)),
            ),
            "",
        ),
        (
            {"labels": {"jobset.sigs.k8s.io/jobset-name": "j"}},
            {},
            (Owner(kind="Job", name="a"), Owner(kind="JobSet", name="j", groups=(MemberGroup(pods=3),))),
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
            {"subdomain": "t"},
            (),
            "TrainingJob t",
        ),
        (
            {"labels": {"trainingjob.ml.example.com/uid": "u", "trainingjob.ml.example.com/name": "t"}},
            {},
            (),
            "",
        ),
    ],
)
def test_gang_of_pod(metadata, spec, owners, expected):
    assert gang(pod(spec, **metadata), owners) == expected


INDEX = "batch.kubernetes.io/job-completion-index"
JOB_SET_SPEC = {
    "replicatedJobs": [
        {"name": "driver", "template": {"spec": {}}},
        {"name": "node", "replicas": 2, "template": {"spec": {"parallelism": 3}}},
    ]
}
REPLICA_SPECS = {"pytorchReplicaSpecs": {"Worker": {"replicas": 3}, "Master": {"replicas": 1}}}
JOB_SPEC = {"completionMode": "Indexed", "parallelism": 4}


def owner(kind: str, spec: dict, name: str = "o") -> Owner:
    return Owner(
        kind=kind,
        name=name,
        uid=f"uid-{name}",
        api_version="v",
        groups=member_groups(kind, spec),
        has_ranks=has_ranks(kind, spec),
        ends_together=ends_together(kind, spec),
    )


def kubeflow(role: str, index: str) -> dict[str, dict[str, str]]:
    labels = {"training.kubeflow.org/replica-type": role, "training.kubeflow.org/replica-index": index}
    return {"labels": {"training.kubeflow.org/job-name": "o", **labels}}


def job_set(group: str, job: str, index: str) -> dict[str, dict[str, str]]:
    labels = {"jobset.sigs.k8s.io/replicatedjob-name": group, "jobset.sigs.k8s.io/job-index": job}
    return {"labels": {"jobset.sigs.k8s.io/jobset-name": "o", **labels}, "annotations": {INDEX: index}}


@pytest.mark.parametrize(
    ("metadata", "owners", "expected"),
    [
        ({"annotations": {INDEX: "3"}}, (owner("Job", JOB_SPEC),), ("Job", 4, 3)),
        ({"annotations": {INDEX: "4"}}, (owner("Job", JOB_SPEC),), None),
        ({"annotations": {INDEX: "-1"}}, (owner("Job", JOB_SPEC),), None),
        ({}, (owner("Job", JOB_SPEC),), None),
        ({"annotations": {INDEX: "0"}}, (owner("Job", {"completionMode": "Indexed", "parallelism": 1}),), None),
        (kubeflow("master", "0"), (owner("PyTorchJob", REPLICA_SPECS),), ("PyTorchJob", 4, 0)),
        (kubeflow("worker", "2"), (owner("PyTorchJob", REPLICA_SPECS),), ("PyTorchJob", 4, 3)),
        (kubeflow("launcher", "0"), (owner("MPIJob", {"mpiReplicaSpecs": {"Launcher": {}, "Worker": {}}}),), None),
        (job_set("driver", "0", "0"), (owner("Job", {}, "j"), owner("JobSet", JOB_SET_SPEC)), ("JobSet", 7, 0)),
        (job_set("node", "1", "2"), (owner("Job", {}, "j"), owner("JobSet", JOB_SET_SPEC)), ("JobSet", 7, 6)),
        (job_set("other", "0", "0"), (owner("JobSet", JOB_SET_SPEC),), None),
        (
            job_set("node", "0", "0"),
            (owner("JobSet", {"replicatedJobs": [{"name": "a"}, {"name": "node", "dependsOn": [{"name": "a"}]}]}),),
            None,
        ),
        (
            job_set("node", "1", "0"),
            (owner("JobSet", JOB_SET_SPEC), owner("TrainJob", {"trainer": {"numNodes": 7}}, "t")),
            ("JobSet", 7, 4),
        ),
        (
            {"annotations": {INDEX: "1"}, "labels": {Label.TRAINING_JOB_UID: "u"}},
            (owner("Job", JOB_SPEC), owner("TrainingJob", {"workers": 4}, "t")),
            ("Job", 4, 1),
        ),
        (
            {"annotations": {INDEX: "1"}, "labels": {Label.TRAINING_JOB_UID: "u"}},
            (owner("Job", JOB_SPEC), owner("TrainingJob", {"workers": 4, "roles": {"chief": {}}}, "t")),
            None,
        ),
    ],
)
def test_gang_ref_has_owner_size_and_rank(metadata, owners, expected):
    ref = gang_ref(pod({"subdomain": "s"}, **metadata), owners)
    assert (ref and (ref.kind, ref.size, ref.rank)) == expected


@pytest.mark.parametrize(
    ("kind", "spec", "labels", "expected"),
    [
        ("Job", JOB_SPEC, {}, True),
        ("Job", {**JOB_SPEC, "backoffLimit": 0}, {}, False),
        ("Job", {**JOB_SPEC, "successPolicy": {"rules": []}}, {}, False),
        ("Job", JOB_SPEC, {Label.TRAINING_JOB_UID: "u"}, False),
    ],
)
def test_ranks_end_together_where_the_owner_would_restart_one_alone(kind, spec, labels, expected):
    ref = gang_ref(pod({"subdomain": "s"}, annotations={INDEX: "0"}, labels=labels), (owner(kind, spec),))
    assert ref is not None
    assert ref.ends_together == expected


@pytest.mark.parametrize("kind", ["Job", "JobSet", "PyTorchJob"])
def test_sibling_selector_names_the_gang(kind):
    ref = GangRef(api_version="v", kind=kind, name="name-1", uid="uid-1", size=2, rank=0)
    assert sibling_selector(ref).endswith(("=uid-1", "=name-1"))
