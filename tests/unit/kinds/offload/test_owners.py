"""Owner chains, read from the simulated API server."""

import pytest

from skysail.kinds.offload.objects import Pod
from skysail.kinds.offload.owners import OwnerLookup
from skysail.kinds.offload.plan.facts import placement_facts
from skysail.kinds.offload.plan.placement import Place, decide
from skysail.kube.api.objects import Meta, OwnerReference
from skysail.kube.api.resources import DEPLOYMENT, JOB, Resource
from skysail.kube.client.client import Client
from skysail.kube.client.errors import KubeError, NotServed, Unreachable
from tests.contract.api_dsl import Api
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time
from tests.unit.kinds.offload.samples import gpu_pod, observation

CRON_JOB = Resource("batch", "v1", "cronjobs", "CronJob")
REPLICA_SET = Resource("apps", "v1", "replicasets", "ReplicaSet")
TRAIN_JOB = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob")
JOB_SET = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
KINDS = (CRON_JOB, REPLICA_SET, TRAIN_JOB, JOB_SET)


class Failing(ApiModel):
    """An API server that does not answer reads of one kind."""

    failing = ""
    error: KubeError = Unreachable("no route")

    async def send(self, request):
        if self.failing and f"/{self.failing}/" in request.path:
            raise self.error
        return await super().send(request)


class Cluster:
    def __init__(self):
        self.transport = Failing(World(KINDS))
        self.api = Api(self.transport, "default", None)
        self.now = 0.0
        self.lookup = OwnerLookup(Client(self.transport), lambda: self.now)

    async def create(self, resource, name, owner=None, spec=None, **metadata):
        """Return a reference to a new object."""
        references = [] if owner is None else [reference(owner)]
        manifest = {"metadata": {"name": name, "ownerReferences": references, **metadata}, "spec": spec or {}}
        uid = (await self.api.create(resource, manifest)).ok["metadata"]["uid"]
        return OwnerReference(resource.api_version, resource.kind, name, uid, controller=True)

    async def find(self, owner, namespace="default"):
        return await self.lookup.find(Pod(Meta(name="p", namespace=namespace, owner_references=(owner,))))


def reference(owner):
    return {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
    }


def on_cluster(test):
    def run():
        async def play():
            await test(Cluster())

        virtual_time.run(play())

    run.__name__ = test.__name__
    return run


@on_cluster
async def test_find_walks_up_to_cron_job(cluster):
    cron = await cluster.create(CRON_JOB, "cron", annotations={"runpod.io/offload": "true"})
    job = await cluster.create(JOB, "job", cron, {"completionMode": "Indexed", "parallelism": 3}, labels={"a": "b"})
    found = await cluster.find(job)
    assert [(owner.kind, owner.name, owner.members) for owner in found] == [
        ("Job", "job", 3),
        ("CronJob", "cron", None),
    ]
    assert found[0].labels == {"a": "b"}
    assert found[1].annotations == {"runpod.io/offload": "true"}


@on_cluster
async def test_find_walks_up_to_deployment(cluster):
    deployment = await cluster.create(DEPLOYMENT, "d", annotations={"skysail.dev/offload": "modal"})
    replica_set = await cluster.create(REPLICA_SET, "r", deployment)
    assert [owner.kind for owner in await cluster.find(replica_set)] == ["ReplicaSet", "Deployment"]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"runtimeRef": {"name": "modal-pytorch-runtime"}}, "true"),
        ({"trainer": {"env": [{"name": "MODAL_ENABLED", "value": "1"}]}}, "true"),
        ({"trainer": {"env": [{"name": "MODAL_ENABLED", "value": "false"}]}}, None),
        ({"runtimeRef": {"name": "torch-distributed"}}, None),
        ({}, None),
    ],
)
def test_find_train_job_asks_by_runtime_or_variable(spec, expected):
    async def play():
        cluster = Cluster()
        train_job = await cluster.create(TRAIN_JOB, "t", spec=spec)
        job_set = await cluster.create(JOB_SET, "js", train_job, {"replicatedJobs": [{}]})
        found = await cluster.find(job_set)
        assert [owner.kind for owner in found] == ["JobSet", "TrainJob"]
        assert found[1].annotations.get("modal.com/enabled") == expected

    virtual_time.run(play())


@pytest.mark.parametrize(
    ("annotations", "spec", "expected"),
    [
        ({"skysail.dev/offload": "modal"}, {}, ("modal.com", {"skysail.dev/offload": "modal"})),
        ({"skysail.dev/offload": "runpod"}, {}, ("runpod-virtual-node", {"skysail.dev/offload": "runpod"})),
        (
            {"skysail.dev/offload": "cheapest", "runpod.io/required-gpu-memory": "24", "team": "a"},
            {},
            ("runpod-virtual-node", {"skysail.dev/offload": "cheapest", "runpod.io/required-gpu-memory": "24"}),
        ),
        ({}, {"runtimeRef": {"name": "modal-pytorch-runtime"}}, ("modal.com", {"modal.com/enabled": "true"})),
    ],
)
def test_find_request_of_train_job_reaches_the_pod_through_job_set_and_job(annotations, spec, expected):
    async def play():
        cluster = Cluster()
        train_job = await cluster.create(TRAIN_JOB, "t", spec=spec, annotations=annotations)
        job_set = await cluster.create(JOB_SET, "t", train_job, {"replicatedJobs": [{"name": "node", "replicas": 1}]})
        job = await cluster.create(JOB, "t-node-0", job_set, {"completionMode": "Indexed", "parallelism": 1})
        found = await cluster.find(job)
        assert [owner.kind for owner in found] == ["Job", "JobSet", "TrainJob"]
        for stage in ("admission", "overflow"):
            placed = decide(placement_facts(observation(gpu_pod(), stage=stage, owners=found)))
            assert isinstance(placed, Place), placed
            assert (placed.node, placed.annotations) == expected

    virtual_time.run(play())


@on_cluster
async def test_find_owner_with_another_uid_does_not_count(cluster):
    job = await cluster.create(JOB, "job", annotations={"runpod.io/offload": "true"})
    forged = OwnerReference(job.api_version, job.kind, job.name, "other", controller=True)
    (owner,) = await cluster.find(forged)
    assert owner.annotations == {}


@on_cluster
async def test_find_owner_of_another_namespace_does_not_count(cluster):
    job = await cluster.create(JOB, "job", annotations={"runpod.io/offload": "true"})
    (owner,) = await cluster.find(job, namespace="kube-system")
    assert owner.annotations == {}


@on_cluster
async def test_find_owner_of_unknown_kind_ends_chain(cluster):
    (owner,) = await cluster.find(OwnerReference("example.com/v1", "Thing", "t", "u", controller=True))
    assert (owner.kind, owner.annotations) == ("Thing", {})


@on_cluster
async def test_find_owner_of_a_kind_that_is_not_served_is_unknown(cluster):
    """Without the owner, the pod would get a cap of its own in place of the one that it shares."""
    job_set = await cluster.create(JOB_SET, "js", await cluster.create(TRAIN_JOB, "t"))
    cluster.transport.failing, cluster.transport.error = "trainjobs", NotServed(404, "", "404 page not found")
    assert await cluster.find(job_set) is None


@on_cluster
async def test_find_failed_read_is_unknown_and_not_remembered(cluster):
    job = await cluster.create(JOB, "job", await cluster.create(CRON_JOB, "cron"))
    cluster.transport.failing = "cronjobs"
    assert await cluster.find(job) is None
    cluster.transport.failing = ""
    assert [owner.kind for owner in await cluster.find(job)] == ["Job", "CronJob"]


@on_cluster
async def test_find_remembers_owner_until_it_is_forgotten(cluster):
    job = await cluster.create(JOB, "job")
    assert (await cluster.find(job))[0].annotations == {}
    (await cluster.api.merge(JOB, "job", {"metadata": {"annotations": {"a": "b"}}})).ok  # noqa: B018 (asserts)
    assert (await cluster.find(job))[0].annotations == {}
    cluster.lookup.forget(Pod(Meta(name="job", namespace="default", uid=job.uid)))
    assert (await cluster.find(job))[0].annotations == {"a": "b"}


@on_cluster
async def test_find_remembered_owner_expires(cluster):
    job = await cluster.create(JOB, "job")
    await cluster.find(job)
    (await cluster.api.merge(JOB, "job", {"metadata": {"annotations": {"a": "b"}}})).ok  # noqa: B018 (asserts)
    cluster.now = 60.0
    assert (await cluster.find(job))[0].annotations == {"a": "b"}


@on_cluster
async def test_find_chain_is_bounded(cluster):
    owner = None
    for number in range(20):
        owner = await cluster.create(JOB, f"job-{number}", owner)
    assert len(await cluster.find(owner)) == 8
