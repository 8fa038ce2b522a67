"""Workloads of `skysail plan`: every kind whose pods may go to a cloud is planned, with the owners that ask for it."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
import yaml

from skysail.base import settings
from skysail.claims.limits.offload_policy import OffloadPolicy
from skysail.claims.limits.spend_account import Reservation, SpendAccountStatus
from skysail.cli.clouds import launch_plan, plan_facts, plan_report, workload_kinds, workloads
from skysail.cli.clouds.plan_facts import ClusterFacts
from skysail.cli.clouds.workloads import InvalidFile
from skysail.cloud.offers import OfferList
from skysail.cloud.simulated.vendors import MODAL, RUNPOD
from skysail.kinds.offload.config import offload_config
from skysail.kinds.serving.spec.config import serving_config
from skysail.kube.api.objects import Meta, Object
from skysail.kube.api.resources import NAMESPACE

SAMPLES = Path(__file__).parents[4] / "config" / "samples"
NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
POD = {"spec": {"containers": [{"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}}
SERVING = serving_config(settings.load({}, {}, None))
EMPTY = SpendAccountStatus()
ASK = {"skysail.dev/offload": "modal"}
BY_REPLICA = {
    "PyTorchJob": "pytorchReplicaSpecs",
    "TFJob": "tfReplicaSpecs",
    "XGBoostJob": "xgbReplicaSpecs",
    "PaddleJob": "paddleReplicaSpecs",
    "JAXJob": "jaxReplicaSpecs",
}


def parse(manifest):
    return workloads.parse(yaml.safe_dump(manifest), "f.yaml", "team", SERVING)


def forecast(content, account=EMPTY, missing=(), **spec):
    allowed = {"namespaceSelector": {}, "providers": ["modal", "runpod"], "maxInstances": 100, **spec}
    policy = msgspec.convert({"metadata": {"name": "default"}, "spec": allowed}, OffloadPolicy)
    known = ClusterFacts(
        policies=(policy,),
        nodes=None,
        offers={vendor.name: OfferList(vendor.offers, NOW.timestamp()) for vendor in (MODAL, RUNPOD)},
        namespace_labels={workload.namespace: {} for workload in content.workloads},
        accounts={workload.namespace: account for workload in content.workloads},
        missing_namespaces=frozenset(missing),
    )
    offload = offload_config(settings.load({}, {}, None))
    return launch_plan.forecast(content.workloads, content.skipped, known, offload, NOW)


@pytest.mark.parametrize(
    ("sample", "kind", "name", "containers"),
    [
        ("modal_v1alpha1_modaljob.yaml", "ModalJob", "training-job", 1),
        ("modal_v1alpha1_modalendpoint.yaml", "ModalEndpoint", "inference-api", 10),
        ("modal_v1alpha1_modalfunction.yaml", "ModalFunction", "data-processor", 10),
        ("trainer_v1alpha1_trainjob.yaml", "TrainJob", "pytorch-distributed", 1),
        ("v1_pod_modal-container.yaml", "Pod", "modal-container", 1),
    ],
)
def test_sample_that_goes_to_modal_is_planned_with_its_price(sample, kind, name, containers):
    content = workloads.parse((SAMPLES / sample).read_text(), sample, "team", SERVING)
    result = forecast(content)
    (plan,) = result.workloads
    assert (plan.kind, plan.name, plan.verdict, plan.message) == (kind, name, "allowed", "")
    assert (plan.place, content.skipped) == ("modal", ())
    assert plan.usd_per_hour == pytest.approx(containers * plan.candidates[0].usd_per_hour)
    assert plan.worst_case_usd


@pytest.mark.parametrize(("provider", "days"), [("modal", 1), ("runpod", 30)])
def test_pod_without_a_deadline_is_planned_for_as_long_as_the_cloud_allows(provider, days):
    manifest = {"kind": "Pod", "metadata": {"name": "p", "annotations": {"skysail.dev/offload": provider}}, **POD}
    (plan,) = forecast(parse(manifest)).workloads
    assert plan.lifetime_seconds == days * 86400
    assert plan.worst_case_usd == pytest.approx(plan.usd_per_hour * 24 * days)


def test_each_app_counts_as_one_instance():
    samples = ("modal_v1alpha1_modalendpoint.yaml", "modal_v1alpha1_modalfunction.yaml")
    text = "---\n".join((SAMPLES / sample).read_text() for sample in samples)
    result = forecast(workloads.parse(text, "f.yaml", "team", SERVING), maxInstances=2)
    assert (len(result.workloads), result.verdict) == (2, "allowed")


@pytest.mark.parametrize("kind", BY_REPLICA)
def test_job_of_the_training_operator_is_planned_by_replica_type(kind):
    groups = {"Master": {"replicas": 1, "template": POD}, "Worker": {"replicas": 3, "template": POD}}
    spec = {BY_REPLICA[kind]: groups, "runPolicy": {"backoffLimit": 2}}
    content = parse({"kind": kind, "metadata": {"name": "mnist", "annotations": ASK}, "spec": spec})
    result = forecast(content)
    assert [(plan.kind, plan.name, plan.pods, plan.place) for plan in result.workloads] == [
        (kind, "mnist", 1, "modal"),
        (kind, "mnist", 3, "modal"),
    ]
    assert any("2 retries" in note for note in result.workloads[0].notes)
    assert plan_report.names(result) == [f"{kind.lower()}.kubeflow.org/mnist"]


def test_job_set_counts_the_pods_of_all_jobs():
    job = {"spec": {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": POD}}
    rows = [{"name": "node", "replicas": 2, "template": job}]
    manifest = {"kind": "JobSet", "metadata": {"name": "set", "annotations": ASK}, "spec": {"replicatedJobs": rows}}
    (plan,) = forecast(parse(manifest)).workloads
    assert (plan.kind, plan.name, plan.pods, plan.parallel, plan.place) == ("JobSet", "set", 4, 4, "modal")


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet", "Deployment"])
def test_controller_that_keeps_pods_is_planned(kind):
    template = {**POD, "metadata": {"annotations": ASK}}
    (plan,) = forecast(
        parse({"kind": kind, "metadata": {"name": "s"}, "spec": {"replicas": 2, "template": template}})
    ).workloads
    assert (plan.name, plan.parallel, plan.place) == ("s", 2, "modal")


def test_train_job_with_a_runtime_of_trainer_is_planned_by_what_it_says_itself():
    trainer = {"numNodes": 2, "image": "i", "resourcesPerNode": {"limits": {"nvidia.com/gpu": 1}}}
    spec = {"runtimeRef": {"name": "modal-own"}, "trainer": trainer}
    (plan,) = forecast(parse({"kind": "TrainJob", "metadata": {"name": "t"}, "spec": spec})).workloads
    assert (plan.place, plan.pods, any("runtime is not read" in note for note in plan.notes)) == ("modal", 2, True)


def test_cap_of_the_object_bounds_the_worst_case_of_all_its_pods():
    asks = {**ASK, "skysail.dev/max-cost-usd": "0.5"}
    spec = {"parallelism": 1, "completions": 5, "backoffLimit": 3, "template": POD}
    (plan,) = forecast(parse({"kind": "Job", "metadata": {"name": "j", "annotations": asks}, "spec": spec})).workloads
    assert plan.worst_case_usd == 0.5
    assert [note for note in plan.notes if "retries" in note] == []
    assert any("at most 0.5 USD" in note for note in plan.notes)


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet", "Deployment"])
def test_each_pod_of_a_server_has_the_whole_cap(kind):
    template = {**POD, "metadata": {"annotations": {**ASK, "skysail.dev/max-cost-usd": "0.5"}}}
    manifest = {"kind": kind, "metadata": {"name": "s"}, "spec": {"replicas": 3, "template": template}}
    (plan,) = forecast(parse(manifest)).workloads
    assert (plan.verdict, plan.worst_case_usd) == ("allowed", pytest.approx(1.5, abs=0.01))
    assert any(note.startswith("The launches of each pod cost at most 0.5 USD") for note in plan.notes)


def gang_of_four(**asks):
    spec = {"parallelism": 4, "completions": 4, "completionMode": "Indexed"}
    template = {"spec": {**POD["spec"], "subdomain": "ranks"}}
    metadata = {"name": "j", "annotations": {**ASK, **asks}}
    return parse({"kind": "Job", "metadata": metadata, "spec": {**spec, "template": template}})


def roles_of_four(**asks):
    rows = {"Master": {"replicas": 1, "template": POD}, "Worker": {"replicas": 3, "template": POD}}
    metadata = {"name": "mnist", "annotations": {**ASK, **asks}}
    return parse({"kind": "PyTorchJob", "metadata": metadata, "spec": {"pytorchReplicaSpecs": rows}})


@pytest.mark.parametrize("gang", [gang_of_four, roles_of_four])
def test_gang_with_a_cap_is_one_launch_that_may_use_all_of_it(gang):
    result = forecast(gang(**{"skysail.dev/max-cost-usd": "5"}))
    assert (result.verdict, result.worst_case_usd) == ("allowed", pytest.approx(5.0, abs=0.01))
    assert result.worst_case_usd <= 5.0
    assert all("leaves no more" in plan.notes[-1] for plan in result.workloads)
    lifetime = int(5 / result.usd_per_hour * 3600)
    assert [plan.lifetime_seconds for plan in result.workloads] == [lifetime] * len(result.workloads)


@pytest.mark.parametrize("gang", [gang_of_four, roles_of_four])
def test_gang_reserves_the_price_of_all_of_its_pods_once(gang):
    result = forecast(gang(), maxInstances=4)
    assert (result.verdict, result.worst_case_usd) == ("allowed", pytest.approx(result.usd_per_hour * 24))


@pytest.mark.parametrize("gang", [gang_of_four, roles_of_four])
def test_gang_starts_as_a_whole_or_not_at_all(gang):
    running = Reservation(claim="other", usd=1.0, at="2026-11-18T11:00:00Z", instances=3)
    for plan in forecast(gang(), SpendAccountStatus(reservations=(running,)), maxInstances=5).workloads:
        assert (plan.verdict, plan.reason) == ("refused", "InstanceLimitReached")
        assert plan.message.startswith("Namespace team has 3 instances")
    for plan in forecast(gang(), maxInstances=3).workloads:
        assert plan.message.startswith("The launch needs 4 instances")


def test_other_kinds_are_named_as_not_planned():
    assert parse({"kind": "ConfigMap", "metadata": {"name": "c"}}).skipped == ("ConfigMap c",)


MODELS = {
    "ModelDeployment": {"modelURI": "https://a.example/m.onnx", "runtime": "fastapi-pytorch", "minReplicas": 2},
    "MLModel": {
        "modelURL": "https://a.example/m.onnx",
        "framework": "onnx",
        "storageSize": "1Gi",
        "replicas": 2,
        "expose": True,
    },
}


def model(kind, annotations, **fields):
    return parse({"kind": kind, "metadata": {"name": "m", "annotations": annotations}, "spec": MODELS[kind] | fields})


@pytest.mark.parametrize("kind", MODELS)
def test_model_at_a_cloud_is_planned_with_the_price_of_its_servers(kind):
    result = forecast(model(kind, {**ASK, "modal-operator.io/gpu": "T4"}))
    (plan,) = result.workloads
    assert (plan.kind, plan.name, plan.place, plan.pods, plan.verdict) == (kind, "m", "modal", 2, "allowed")
    assert result.usd_per_hour == pytest.approx(2 * plan.candidates[0].usd_per_hour)
    assert plan.candidates[0].gpu_type == "T4"
    assert any("one more server" in note for note in plan.notes)


@pytest.mark.parametrize("kind", MODELS)
def test_model_that_asks_for_no_cloud_is_planned_in_the_cluster(kind):
    (plan,) = forecast(model(kind, {})).workloads
    assert (plan.place, plan.pods, plan.notes, plan.usd_per_hour) == ("cluster", 2, (), None)


def test_model_that_the_operator_rejects_has_the_reason_as_a_note():
    (plan,) = forecast(model("ModelDeployment", ASK, modelURI="pvc://claim/m.onnx")).workloads
    assert "in a PVC, which no cloud can mount" in plan.notes[0]


def test_model_with_an_unknown_runtime_is_an_invalid_file():
    with pytest.raises(InvalidFile, match="runtime"):
        model("ModelDeployment", ASK, runtime="abacus")


@pytest.mark.parametrize("kind", [*workload_kinds.WORKLOADS, *workload_kinds.MODELS])
def test_object_without_a_name_is_an_invalid_file(kind):
    with pytest.raises(InvalidFile, match=rf"f.yaml: {kind} cannot be read: it has no name.*metadata.name"):
        parse({"kind": kind, "spec": {}})


@pytest.mark.parametrize("sample", ["modal_v1alpha1_modaljob.yaml", "modal_v1alpha1_modalendpoint.yaml"])
def test_object_with_a_generated_name_is_planned_by_its_prefix(sample):
    manifest = yaml.safe_load((SAMPLES / sample).read_text())
    (plan,) = forecast(parse({**manifest, "metadata": {"generateName": "run-"}})).workloads
    assert (plan.name, plan.verdict) == ("run-", "allowed")


@pytest.mark.parametrize(
    ("fields", "container", "reason"),
    [
        ({}, {"resources": -1}, "got `int` - at `$.containers[0].resources`"),
        ({}, {"resources": {"limits": {"cpu": "-1"}}}, "resources.limits of container main has cpu: -1"),
        ({}, {"resources": {"requests": {"memory": "much"}}}, "'much' is not a quantity"),
        ({}, {"env": [{"name": "A", "valueFrom": 1}]}, "at `$.containers[0].env[0].valueFrom`"),
        ({"nodeSelector": [1]}, {}, "at `$.nodeSelector`"),
        ({"tolerations": [None]}, {}, "at `$.tolerations[0]`"),
        ({"affinity": {"nodeAffinity": 1}}, {}, "at `$.affinity.nodeAffinity`"),
    ],
)
def test_invalid_pod_is_an_invalid_file_with_the_field(fields, container, reason):
    template = {"spec": {"containers": [{"name": "main", "image": "i", **container}], **fields}}
    with pytest.raises(InvalidFile, match=re.escape(reason)) as caught:
        parse({"kind": "StatefulSet", "metadata": {"name": "s"}, "spec": {"template": template}})
    assert str(caught.value).endswith(". Fix the manifest.")


def test_negative_number_of_replicas_is_an_invalid_file():
    with pytest.raises(InvalidFile, match="replicas is -1, which is below 0"):
        parse({"kind": "StatefulSet", "metadata": {"name": "s"}, "spec": {"replicas": -1, "template": POD}})


@pytest.mark.parametrize("text", ["", "---\n", "# nothing\n---\n---\n", "kind: List\nitems: []\n"])
def test_file_without_objects_is_an_invalid_file(text):
    with pytest.raises(InvalidFile, match=r"f\.yaml contains no objects"):
        workloads.parse(text, "f.yaml", "team", SERVING)


@pytest.mark.parametrize("kind", ["ModalJob", "ModalEndpoint", "ModalFunction"])
def test_modal_object_that_admission_rejects_is_an_invalid_file(kind):
    handler = {} if kind == "ModalJob" else {"handler": "app.hello"}
    manifest = {"kind": kind, "metadata": {"name": "m"}, "spec": {"image": "i", "cpu": "-1", **handler}}
    with pytest.raises(InvalidFile, match=r"spec\.cpu is -1, which is not above 0"):
        parse(manifest)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"parallelism": -3}, "parallelism is -3, which is below 0"),
        ({"template": {"spec": {"containers": "foo"}}}, "Expected `array`, got `str` - at `$.containers`"),
    ],
)
def test_job_that_the_api_server_rejects_is_an_invalid_file(fields, reason):
    with pytest.raises(InvalidFile, match=re.escape(reason)):
        parse({"kind": "Job", "metadata": {"name": "j"}, "spec": {"template": POD, **fields}})


def test_workload_in_a_missing_namespace_has_a_note_unless_the_file_creates_it():
    job = {"kind": "Job", "metadata": {"name": "j"}, "spec": {"template": POD}}
    note = "Namespace team does not exist: create it with `kubectl create namespace team`."
    (plan,) = forecast(parse(job), missing=["team"]).workloads
    assert note in plan.notes
    created = {"kind": "List", "items": [{"kind": "Namespace", "metadata": {"name": "team"}}, job]}
    (plan,) = forecast(parse(created), missing=["team"]).workloads
    assert note not in plan.notes


async def test_namespace_that_does_not_exist_is_read_as_missing():
    class Client:
        async def find(self, resource, _, name, __):
            return Object(metadata=Meta(name=name)) if (resource, name) == (NAMESPACE, "there") else None

    missing: set[str] = set()
    for name in ("there", "gone"):
        assert await plan_facts._labels(Client(), name, missing) == {}
    assert missing == {"gone"}
