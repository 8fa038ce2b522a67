"""Caps on the cost of an object: which object has the money, and which cap is the lowest."""

import pytest

from skysail.base.names import Annotation, Reason
from skysail.claims.requirements.cost_cap import CostCap
from skysail.cloud.errors import Rejected
from skysail.kinds.offload.plan.cost_cap import cost_cap, pods_share_cap
from skysail.kinds.offload.plan.gangs import Owner


def chain(*kinds, **caps):
    """Return owners of these kinds, nearest first. The UID of each is its kind."""
    return [
        Owner(kind=kind, name="x", uid=kind, annotations={Annotation.MAX_COST: caps[kind]} if kind in caps else {})
        for kind in kinds
    ]


@pytest.mark.parametrize(
    ("kinds", "uid"),
    [
        ((), ""),
        (("Job",), "Job"),
        (("Job", "TrainingJob"), "TrainingJob"),
        (("Job", "TrainingJob", "ModalJob"), "ModalJob"),
        (("Job", "JobSet", "TrainJob"), "TrainJob"),
        (("PyTorchJob",), "PyTorchJob"),
        (("Job", "CronJob"), "Job"),
        (("PyTorchJob", "Trial", "Experiment"), "Trial"),
    ],
)
def test_all_pods_for_the_same_work_share_one_cap(kinds, uid):
    assert cost_cap(chain(*kinds)).uid == uid


@pytest.mark.parametrize(
    "kinds",
    [
        ("ReplicaSet",),
        ("StatefulSet",),
        ("ReplicaSet", "Deployment"),
        ("StatefulSet", "LeaderWorkerSet"),
        ("ReplicaSet", "Deployment", "ModelDeployment"),
        ("ReplicaSet", "Deployment", "MLModel"),
        ("ReplicaSet", "Deployment", "ModalEndpoint"),
        ("ReplicaSet", "Deployment", "ModalFunction"),
        ("ReplicaSet", "Deployment", "Revision", "Configuration", "Service", "InferenceService"),
    ],
)
def test_each_pod_of_a_server_has_a_cap_of_its_own(kinds):
    owners = chain(*kinds, **{kinds[-1]: "5"})
    assert cost_cap(owners) == CostCap(5.0)
    assert not pods_share_cap(owners)


def test_job_of_a_server_has_a_cap_of_its_own():
    assert cost_cap(chain("Job", "ModelDeployment", Job="2")) == CostCap(2.0, "Job")
    assert pods_share_cap(chain("Job", "ModelDeployment"))


def test_owner_that_cannot_be_looked_up_has_no_money_of_its_own():
    unknown = Owner(kind="RayCluster", name="x")
    assert cost_cap([unknown]) == CostCap()
    assert cost_cap([*chain("Job"), unknown]).uid == "Job"


@pytest.mark.parametrize(
    ("caps", "usd"),
    [
        ({}, None),
        ({"TrainingJob": "5"}, 5.0),
        ({"Job": "7", "TrainingJob": "5"}, 5.0),
        ({"Job": "3", "TrainingJob": "5"}, 3.0),
    ],
)
def test_lowest_cap_of_all_owners_counts(caps, usd):
    assert cost_cap(chain("Job", "TrainingJob", **caps)).usd == usd


def test_cap_on_a_cron_job_holds_for_each_of_its_runs():
    assert cost_cap(chain("Job", "CronJob", CronJob="2")) == CostCap(2.0, "Job")


@pytest.mark.parametrize("text", ["", "-1", "0", "nan", "inf", "5 USD", "1e9"])
def test_malformed_cap_of_an_owner_launches_nothing(text):
    with pytest.raises(Rejected, match="TrainingJob x: metadata") as rejected:
        cost_cap(chain("Job", "TrainingJob", TrainingJob=text))
    assert rejected.value.reason == Reason.INVALID_ANNOTATIONS
