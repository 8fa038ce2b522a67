from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import yaml
from typer.testing import CliRunner

from skysail.base.errors import UserError
from skysail.claims.limits.offload_policy import OFFLOAD_POLICY
from skysail.claims.limits.spend_account import SPEND_ACCOUNT
from skysail.claims.tracking import offer_publisher
from skysail.cli import main
from skysail.cloud.account import GpuRequest
from skysail.cloud.modal.prices import PriceTable
from skysail.cloud.offers import OfferList
from skysail.cloud.provider import ResourceLimits
from skysail.cloud.simulated.vendors import VENDORS
from skysail.kube.api.resources import CONFIG_MAP, NAMESPACE, NODE
from tests.support.served_api import serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.served_api import Manifest, ServedApi

NODES = {"modal.com": "modal", "runpod-virtual-node": "runpod"}
RUNPOD = {"runpod.io/offload": "true"}
CHEAPEST = {"skysail.dev/offload": "cheapest"}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ServedApi]:
    with serve(tmp_path) as served:
        for name, provider in NODES.items():
            runtime = {"nodeInfo": {"containerRuntimeVersion": f"{provider}://simulated"}}
            served.create(NODE, {"metadata": {"name": name, "labels": {"type": "virtual-kubelet"}}, "status": runtime})
        at = time.time() - 300
        data = {name: msgspec.json.encode(OfferList(vendor.offers, at)).decode() for name, vendor in VENDORS.items()}
        metadata = {"name": offer_publisher.NAME, "namespace": "skysail-system"}
        served.create(CONFIG_MAP, {"metadata": metadata, "data": data})
        served.requests.clear()
        yield served


def add_policy(api: ServedApi, name: str = "default", **spec: Any) -> None:
    usual = {"namespaceSelector": {}, "providers": ["modal", "runpod"], "maxInstances": 10}
    api.create(OFFLOAD_POLICY.resource, {"metadata": {"name": name}, "spec": {**usual, **spec}})


def template(annotations: dict[str, str] | None = None, gpus: int = 1, **spec: Any) -> Manifest:
    limits = {"limits": {"nvidia.com/gpu": gpus}} if gpus else {}
    container = {"name": "main", "image": "busybox", "resources": limits}
    return {
        "metadata": {"annotations": annotations or {}},
        "spec": {"containers": [container], "restartPolicy": "Never", **spec},
    }


def pod(name: str = "p", annotations: dict[str, str] | None = None, **options: Any) -> Manifest:
    made = template(annotations, **options)
    metadata = {**made["metadata"], "name": name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": made["spec"]}


def job(annotations: dict[str, str] | None = None, *, gpus: int = 1, **spec: Any) -> Manifest:
    metadata = {"name": "j", "annotations": annotations or {}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {"template": template(gpus=gpus), **spec},
    }


def run(api: ServedApi, tmp_path: Path, *manifests: Manifest, arguments: tuple[str, ...] = (), code: int = 0) -> Any:
    file = tmp_path / "file.yaml"
    file.write_text(yaml.safe_dump_all(manifests))
    command = ["plan", "-f", str(file), "--kubeconfig", str(api.kubeconfig), *arguments]
    done = CliRunner().invoke(main.application(), command, catch_exceptions=False)
    assert done.exit_code == code, done.output
    assert api.writes == [], "a plan writes nothing"
    return done.stdout


def planned(api: ServedApi, tmp_path: Path, *manifests: Manifest, code: int = 0) -> Any:
    return json.loads(run(api, tmp_path, *manifests, arguments=("-o", "json"), code=code))


def test_plan_job_that_asks_for_runpod_has_price_and_worst_case(api, tmp_path):
    add_policy(api)
    shown = planned(api, tmp_path, job({**RUNPOD, "runpod.io/required-gpu-memory": "24"}))
    (plan,) = shown["workloads"]
    assert (plan["kind"], plan["place"], plan["node"]) == ("Job", "runpod", "runpod-virtual-node")
    assert (plan["verdict"], plan["rule"], plan["usdPerHour"]) == ("allowed", "asked", 0.44)
    assert (plan["lifetimeSeconds"], plan["worstCaseUsd"]) == (86400, 10.56)
    assert [line["gpuType"] for line in plan["candidates"]] == ["NVIDIA A40", "NVIDIA L4"]
    assert 300 <= plan["candidates"][0]["ageSeconds"] < 360
    assert plan["notes"] == ["Each of up to 6 retries costs up to 10.56 USD more."]
    assert (shown["verdict"], shown["usdPerHour"], shown["worstCaseUsd"]) == ("allowed", 0.44, 10.56)


@pytest.mark.parametrize(
    ("resources", "annotations", "gpus"),
    [
        ({}, {}, None),
        ({"cpu": "8", "memory": "32Gi"}, {}, None),
        ({"cpu": "8", "memory": "32Gi"}, {"modal-operator.io/gpu": "H100:2"}, GpuRequest("H100", 2)),
        ({}, {"modal-operator.io/gpu-type": "T4"}, GpuRequest("T4", 1)),
    ],
)
def test_plan_shows_the_price_that_a_claim_reserves(api, tmp_path, resources, annotations, gpus):
    """The published offers carry the rates of CPU and memory, so that the command needs no account."""
    add_policy(api)
    listed = msgspec.json.encode(PriceTable().offers()).decode()
    api.create(NAMESPACE, {"metadata": {"name": "elsewhere"}})
    metadata = {"name": offer_publisher.NAME, "namespace": "elsewhere"}
    api.create(CONFIG_MAP, {"metadata": metadata, "data": {"modal": listed}})
    api.requests.clear()
    asked = {"skysail.dev/offload": "modal", **annotations}
    manifest = pod(annotations=asked, gpus=1 if "modal-operator.io/gpu-type" in annotations else 0)
    manifest["spec"]["containers"][0]["resources"].setdefault("limits", {}).update(resources)
    shown = run(api, tmp_path, manifest, arguments=("-o", "json", "--operator-namespace", "elsewhere"))
    (plan,) = json.loads(shown)["workloads"]
    size = ResourceLimits(cpu=8.0, memory=32 * 2**30) if resources else ResourceLimits()
    assert plan["usdPerHour"] == PriceTable().usd_per_hour(gpus, size, "")


def test_plan_text_says_place_price_and_worst_case(api, tmp_path):
    add_policy(api, maxDurationSeconds=3600)
    text = run(
        api, tmp_path, job(RUNPOD, parallelism=2, backoffLimit=0), {"kind": "Service", "metadata": {"name": "s"}}
    )
    lines = text.splitlines()
    assert lines[:4] == [
        "Job default/j: allowed",
        "  place       runpod (node runpod-virtual-node)",
        "  price       0.88 USD/h for 2 pods at the same time",
        "  worst case  0.88 USD for 2 pods until the deadline after 60m",
    ]
    assert "Total: 0.88 USD/h, worst case 0.88 USD: allowed." in lines
    assert lines[-1] == "Without pods of their own, or of a kind that is not planned: Service s."


def test_plan_without_policy_is_refused_with_exit_code_3(api, tmp_path):
    shown = planned(api, tmp_path, pod(annotations=RUNPOD), code=3)
    (plan,) = shown["workloads"]
    assert (plan["verdict"], plan["reason"]) == ("refused", "PolicyDenied")
    assert "No OffloadPolicy matches namespace default" in plan["message"]
    assert plan["worstCaseUsd"] is None


@pytest.mark.parametrize(
    ("spec", "manifest", "reason", "words"),
    [
        ({"maxPrice": 0.1}, pod(annotations=RUNPOD), "NoMatchingOffer", "above the cap of 0.1"),
        ({"images": ["good/*"]}, pod(annotations=RUNPOD), "PolicyDenied", "does not allow image busybox"),
        ({"maxInstances": 0}, pod(annotations=RUNPOD), "InstanceLimitReached", "raise spec.maxInstances"),
        ({"maxInstances": 2}, job(RUNPOD, parallelism=3), "InstanceLimitReached", "2 of 3 pods can start now."),
        (
            {"budget": {"amount": 0, "period": "Day"}},
            pod(annotations=RUNPOD),
            "BudgetExhausted",
            "daily budget of 0 USD",
        ),
        (
            {"budget": {"amount": 5, "period": "Day"}, "onBudgetExhausted": "Finish"},
            pod(annotations=RUNPOD),
            "BudgetExhausted",
            "leaves 5.00 USD, and this launch needs 10.56",
        ),
        ({}, pod(annotations={"skysail.dev/offload": "nimbus"}), "InvalidAnnotations", "is no provider"),
        ({}, pod(annotations={**RUNPOD, "modal-operator.io/gpu-type": "B9000"}), "UnknownGpu", "has no GPU B9000"),
    ],
)
def test_plan_refusal_names_reason_and_fix(api, tmp_path, spec, manifest, reason, words):
    add_policy(api, **spec)
    (plan,) = planned(api, tmp_path, manifest, code=3)["workloads"]
    assert (plan["verdict"], plan["reason"]) == ("refused", reason), plan
    assert words in plan["message"]


def test_plan_budget_limits_the_lifetime(api, tmp_path):
    add_policy(api, budget={"amount": 4.4, "period": "Month"})
    (plan,) = planned(api, tmp_path, pod(annotations=RUNPOD))["workloads"]
    assert (plan["lifetimeSeconds"], plan["worstCaseUsd"]) == (36000, 4.4)
    assert "because the monthly budget of 4.4 USD in OffloadPolicy default leaves no more" in plan["notes"][-1]


def test_plan_workloads_of_a_file_share_the_budget(api, tmp_path):
    add_policy(api, budget={"amount": 15, "period": "Month"}, onBudgetExhausted="Finish")
    first, second = planned(api, tmp_path, pod("a", RUNPOD), pod("b", RUNPOD), code=3)["workloads"]
    assert (first["verdict"], second["verdict"]) == ("allowed", "refused")
    assert "leaves 4.44 USD" in second["message"]


def test_plan_counts_reservations_of_the_account(api, tmp_path):
    add_policy(api, maxInstances=1)
    reservation = {"claim": "c", "usd": 1.0, "at": "2026-01-01T00:00:00Z"}
    status = {"reservations": [reservation]}
    account = {"metadata": {"name": "default"}, "spec": {"namespace": "default"}, "status": status}
    api.create(SPEND_ACCOUNT.resource, account)
    (plan,) = planned(api, tmp_path, pod(annotations=RUNPOD), code=3)["workloads"]
    assert plan["reason"] == "InstanceLimitReached"


def test_plan_pod_without_request_runs_in_the_cluster(api, tmp_path):
    shown = planned(api, tmp_path, pod(gpus=0), pod("g"))
    assert [(plan["place"], plan["overflow"], plan["verdict"]) for plan in shown["workloads"]] == [
        ("cluster", "", "allowed"),
        ("cluster", "", "allowed"),
    ]
    assert shown["worstCaseUsd"] == 0


def test_plan_automatic_policy_names_the_cloud_for_overflow(api, tmp_path):
    add_policy(api, automatic=True)
    (plan,) = planned(api, tmp_path, pod())["workloads"]
    assert (plan["place"], plan["overflow"], plan["rule"]) == ("cluster", "runpod", "automatic")
    assert plan["worstCaseUsd"] == 10.56
    text = run(api, tmp_path, pod())
    assert "the cluster; if no node takes the pod, runpod (node runpod-virtual-node)" in text


def test_plan_managed_job_overflows_to_runpod(api, tmp_path):
    add_policy(api)
    (plan,) = planned(api, tmp_path, job({"runpod.io/managed": "true"}))["workloads"]
    assert (plan["place"], plan["overflow"], plan["rule"]) == ("cluster", "runpod", "managed")


def test_plan_cheapest_without_gpu_ranks_all_providers(api, tmp_path):
    add_policy(api)
    (plan,) = planned(api, tmp_path, pod(annotations=CHEAPEST, gpus=0))["workloads"]
    assert (plan["place"], plan["usdPerHour"]) == ("runpod", 0.06)


def test_plan_pod_that_names_the_node_by_hand_has_the_same_limits(api, tmp_path):
    hand = pod(gpus=0, nodeSelector={"kubernetes.io/hostname": "modal.com"}, tolerations=[{"operator": "Exists"}])
    bound = pod(gpus=0, nodeName="modal.com")
    for manifest in (hand, bound):
        (plan,) = planned(api, tmp_path, manifest, code=3)["workloads"]
        assert plan["reason"] == "PolicyDenied"
    add_policy(api)
    (plan,) = planned(api, tmp_path, hand)["workloads"]
    assert (plan["place"], plan["usdPerHour"]) == ("modal", 0.1)


def test_plan_cron_job_and_deployment_inherit_annotations(api, tmp_path):
    add_policy(api)
    cron = {
        "kind": "CronJob",
        "metadata": {"name": "c", "annotations": RUNPOD},
        "spec": {"schedule": "@daily", "jobTemplate": {"spec": {"template": template()}}},
    }
    deployment = {
        "kind": "Deployment",
        "metadata": {"name": "d", "annotations": RUNPOD},
        "spec": {"replicas": 2, "template": template(restartPolicy="Always")},
    }
    shown = planned(api, tmp_path, {"kind": "List", "items": [cron, deployment]})
    first, second = shown["workloads"]
    assert (first["kind"], first["name"], first["place"], first["pods"]) == ("CronJob", "c", "runpod", 1)
    assert "The costs are those of one run." in first["notes"]
    assert (second["kind"], second["name"], second["place"], second["pods"]) == ("Deployment", "d", "runpod", 2)
    assert "Each pod is replaced when it ends" in second["notes"][0]


def test_plan_training_job_of_two_workers_is_a_gang(api, tmp_path):
    add_policy(api, automatic=True)
    manifest = {
        "apiVersion": "ml.example.com/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "t"},
        "spec": {"framework": "pytorch", "workers": 2, "gpuPerWorker": 1, "image": "busybox", "command": ["true"]},
    }
    (plan,) = planned(api, tmp_path, manifest)["workloads"]
    assert (plan["kind"], plan["name"], plan["place"], plan["pods"]) == ("TrainingJob", "t", "cluster", 2)
    assert (plan["overflow"], plan["reason"]) == ("modal", "")
    assert plan["usdPerHour"] == 2 * plan["candidates"][0]["usdPerHour"]


def test_plan_unread_facts_give_exit_code_4_and_name_the_rights(api, tmp_path):
    add_policy(api)
    api.forbidden = {"offloadpolicies"}
    shown = planned(api, tmp_path, pod(annotations=RUNPOD), code=4)
    assert shown["workloads"][0]["verdict"] == "unknown"
    assert shown["unread"] == ["OffloadPolicies: you may not list them, so nothing can be said about permission."]
    api.forbidden = {"spendaccounts"}
    shown = planned(api, tmp_path, pod(annotations=RUNPOD), code=4)
    assert shown["workloads"][0]["usdPerHour"] == 0.44
    assert shown["unread"] == ["SpendAccount default: you may not read it."]
    api.forbidden = {"configmaps"}
    shown = planned(api, tmp_path, pod(annotations=RUNPOD), code=4)
    assert shown["workloads"][0]["place"] == "runpod"
    assert shown["unread"][0].startswith("Offers: You may not read ConfigMap skysail-offers")


def test_plan_without_right_to_nodes_assumes_accounts(api, tmp_path):
    add_policy(api)
    api.forbidden = {"nodes"}
    shown = planned(api, tmp_path, pod(annotations=RUNPOD))
    assert shown["unread"] == ["Nodes: you may not list them, so an account at each cloud is assumed."]


def test_plan_node_that_does_not_exist_means_no_account(api, tmp_path):
    add_policy(api)
    api.call(lambda: api.world.objects[NODE].pop(("", "runpod-virtual-node")))
    (plan,) = planned(api, tmp_path, pod(annotations=RUNPOD), code=3)["workloads"]
    assert plan["reason"] == "NoAccount"


def test_plan_unsupported_field_is_refused_with_its_path(api, tmp_path):
    add_policy(api)
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "x"}}
    (plan,) = planned(api, tmp_path, pod(annotations=RUNPOD, volumes=[volume]), code=3)["workloads"]
    assert (plan["reason"], "spec.volumes[0].persistentVolumeClaim" in plan["message"]) == ("Unsupported", True)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("a: [", "is not valid YAML"),
        ("- 1", "holds a document that is no Kubernetes object"),
        ("kind: Pod\nmetadata: {name: p}\nspec: {}", "Pod p cannot be read: its pod has no containers"),
        ("kind: Job\nmetadata: 7", "Job .*cannot be read"),
        ("kind: TrainingJob\nmetadata: {name: t}\nspec: {workers: -1}", "TrainingJob t cannot be read"),
    ],
)
def test_plan_broken_file_is_named_in_one_sentence(api, tmp_path, text, want):
    file = tmp_path / "broken.yaml"
    file.write_text(text)
    command = ["plan", "-f", str(file), "--kubeconfig", str(api.kubeconfig)]
    with pytest.raises(UserError, match=want):
        CliRunner().invoke(main.application(), command, catch_exceptions=False)


def test_plan_missing_file_is_named(api, tmp_path):
    command = ["plan", "-f", str(tmp_path / "none"), "--kubeconfig", str(api.kubeconfig)]
    with pytest.raises(UserError, match="none cannot be read"):
        CliRunner().invoke(main.application(), command, catch_exceptions=False)


def test_plan_names_are_those_of_kubectl(api, tmp_path):
    kinds = {"CronJob": "batch/v1", "Deployment": "apps/v1", "TrainingJob": "ml.example.com/v1alpha1"}
    others = [
        {"apiVersion": kinds["CronJob"], "kind": "CronJob", "metadata": {"name": "c"}, "spec": {"jobTemplate": job()}},
        {
            "apiVersion": kinds["Deployment"],
            "kind": "Deployment",
            "metadata": {"name": "d"},
            "spec": {"template": template()},
        },
        {
            "apiVersion": kinds["TrainingJob"],
            "kind": "TrainingJob",
            "metadata": {"name": "t"},
            "spec": {"framework": "pytorch", "image": "i", "command": ["true"]},
        },
    ]
    lines = run(api, tmp_path, pod(), job(gpus=0), *others, arguments=("-o", "name")).splitlines()
    assert lines == ["pod/p", "job.batch/j", "cronjob.batch/c", "deployment.apps/d", "trainingjob.ml.example.com/t"]
