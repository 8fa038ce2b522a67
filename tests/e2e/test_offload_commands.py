"""`skysail offers`, `plan`, `cost` and `drain`, and `runpod-controller`, on the real plane with simulated clouds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from skysail.app import crds
from skysail.app.kinds import ALL_KINDS
from skysail.base.names import Finalizer
from skysail.claims.limits.offload_policy import DRAIN_POLICY
from skysail.cli.clouds import cleanup, draining
from skysail.kube.api import rbac
from skysail.local import addresses
from skysail.local.cluster.supervisor import Unit
from tests.support import clouds
from tests.support.clouds import NODES, Books, claims, let_go, start_operator
from tests.support.kubectl import TIMEOUT, apply, fresh_namespace, get, ok, pod, until_condition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

Manifest = dict[str, Any]

GPU = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
ASKS = {"runpod.io/offload": "true", "runpod.io/required-gpu-memory": "24"}
POLICY = {
    "apiVersion": "skysail.dev/v1alpha1",
    "kind": "OffloadPolicy",
    "metadata": {"name": "command-tests"},
    "spec": {
        "namespaceSelector": {"matchLabels": {"offload": "allowed"}},
        "providers": ["modal", "runpod"],
        "maxInstances": 3,
        "maxDurationSeconds": 3600,
        "budget": {"amount": 100, "period": "Month"},
    },
}


SAMPLES = Path(__file__).parents[2] / "config" / "samples"
# Rights of the commands that hooks of Helm run.
HOOKS = {"drain": draining.POLICY_RULES, "clean-up": cleanup.POLICY_RULES, "crds": crds.POLICY_RULES}


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    cluster.start_agent()
    start_operator(cluster)
    cluster.until_asking()
    apply(cluster, "default", POLICY)
    yield cluster
    ok(cluster, "delete", "offloadpolicy", "command-tests", "skysail-drain", "--ignore-not-found")
    cluster.end_operator()
    cluster.remove_agent()
    ok(cluster, "delete", "node", *NODES.values(), "--ignore-not-found")
    ok(cluster, "delete", "mutatingwebhookconfiguration", "skysail", "--ignore-not-found")


@pytest.fixture(scope="module")
def books(node: Cluster) -> Books:
    return Books(node)


@pytest.fixture
def namespace(node: Cluster, books: Books) -> Iterator[str]:
    """A namespace that the policy matches. After the test nothing is left at the clouds, and launches are allowed."""
    with fresh_namespace(node) as name:
        ok(node, "label", "namespace", name, "offload=allowed")
        yield name
        ok(node, "delete", "offloadpolicy", "skysail-drain", "--ignore-not-found")
        ok(node, "uncordon", *NODES.values())
        let_go(node, name)
        books.until_let_go(name)


def skysail(node: Cluster, *arguments: str, code: int = 0) -> str:
    done = run_skysail(node, *arguments)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout


def run_skysail(node: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as the administrator, or as the service account of the hook of Helm that runs it."""
    login = hook_login(node, arguments[0]) if arguments[0] in HOOKS else node.kubeconfig
    command = [sys.executable, "-m", "skysail", *arguments]
    env = {**os.environ, "KUBECONFIG": str(login)}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=500)


def hook_login(node: Cluster, command: str) -> Path:
    """Return the kubeconfig of a hook's service account, with the rights that the chart grants to it."""
    name = f"skysail-{command}"
    role = rbac.cluster_role(name, HOOKS[command], {})
    apply(node, "default", role, rbac.binding(role, ("skysail-system", name)))
    return node.user(f"system:serviceaccount:skysail-system:{name}")


def as_json(node: Cluster, *arguments: str, code: int = 0) -> Any:
    return json.loads(skysail(node, *arguments, "-o", "json", code=code))


def job(name: str, *command: str, **spec: Any) -> Manifest:
    template = {"spec": pod("", *command, container=GPU)["spec"]}
    metadata = {"name": name, "annotations": ASKS}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template, **spec}}


def run_job(node: Cluster, namespace: str, name: str = "j") -> Manifest:
    """Start a Job that runs until it is deleted. Returns its claim."""
    apply(node, namespace, job(name, "sleep", "1000"))
    node.until(lambda: [row["status"]["state"] for row in claims(node, namespace)] == ["Running"], "a running instance")
    return claims(node, namespace)[0]


def until_published(node: Cluster) -> None:
    published = ("get", "configmap", "skysail-offers", "-n", "skysail-system", "-o", "jsonpath={.data.runpod}")
    node.until(lambda: "A40" in node.kubectl(*published).stdout, "the offers to be published")


def resume_operator(node: Cluster) -> None:
    """Start the operator again. Returns when it leads and its nodes are ready."""
    node.resume("operator")
    holder = ("get", "lease", "skysail-operator", "-n", "skysail-system", "-o", "jsonpath={.spec.holderIdentity}")
    node.until(lambda: node.kubectl(*holder).stdout != "", "the operator to lead")
    clouds.until_nodes_are_ready(node)


def test_offers_running_operator_ranks_published_prices(node):
    until_published(node)
    shown = as_json(node, "offers", "--gpu-memory", "24", "--count", "2")
    first = shown["offers"][0]
    assert (first["provider"], first["gpuType"], first["usdPerHour"]) == ("runpod", "NVIDIA A40", 0.88)
    assert 0 <= first["ageSeconds"] < 3600
    prices = [row["usdPerHour"] for row in shown["offers"]]
    assert prices == sorted(prices)
    assert "has no GPU" in skysail(node, "offers", "--all")


def test_plan_says_what_then_happens_and_writes_nothing(node, namespace, tmp_path: Path):
    until_published(node)
    file = tmp_path / "job.yaml"
    dear = job("j", "sleep", "1000")
    dear["metadata"]["annotations"] = {**ASKS, "runpod.io/max-price": "0.01"}
    file.write_text(json.dumps(dear))
    refused = as_json(node, "plan", "-f", str(file), "-n", namespace, code=3)
    assert refused["workloads"][0]["reason"] == "NoMatchingOffer"
    file.write_text(json.dumps(job("j", "sleep", "1000", backoffLimit=0)))
    since = node.audited
    shown = as_json(node, "plan", "-f", str(file), "-n", namespace)
    requests = [row for row in node.audit(since) if row["user"]["username"] == "skysail:admin"]
    assert {row["verb"] for row in requests} == {"get", "list"}
    (plan,) = shown["workloads"]
    assert (plan["place"], plan["lifetimeSeconds"], plan["worstCaseUsd"]) == ("runpod", 3600, 0.44)
    claim = run_job(node, namespace)
    first = claim["spec"]["candidates"][0]
    assert (claim["spec"]["provider"], first["gpuType"]) == (plan["place"], plan["candidates"][0]["gpuType"])
    assert claim["status"]["usdPerHour"] == plan["usdPerHour"]
    assert claim["status"]["reservedUsd"] == plan["worstCaseUsd"]


def test_cost_running_instance_becomes_past_spend(node, namespace):
    claim = run_job(node, namespace)
    shown = as_json(node, "cost", "-n", namespace)
    (row,) = shown["rows"]
    assert (row["key"], row["instances"], row["usdPerHour"]) == (namespace, 1, claim["status"]["usdPerHour"])
    assert row["runningUsd"] >= 0
    by_owner = skysail(node, "cost", "--by", "owner", "-n", namespace)
    assert f"{namespace}/pod/{claim['spec']['owner']['name']}" in by_owner
    assert "nothing is paid" in by_owner
    ok(node, "delete", "job", "j", "-n", namespace)
    node.until(lambda: not claims(node, namespace), "the claim to be released")
    (past,) = as_json(node, "cost", "-n", namespace, "--by", "gpu")["rows"]
    assert (past["key"], past["instances"], past["runningUsd"]) == ("NVIDIA A40", 0, 0)
    assert past["pastUsd"] > 0


def test_drain_ends_everything_and_stops_launches(node, namespace, books, tmp_path: Path):
    claim = run_job(node, namespace)
    done = as_json(node, "drain", "--yes", "--timeout", "5m")
    (ended,) = [row for row in done["ended"] if row["claim"] == claim["metadata"]["name"]]
    assert ended["instance"] == claim["status"]["instanceId"]
    assert ended["usd"] > 0
    assert (done["left"], done["problems"]) == ([], [])
    assert get(node, "default", "cloudinstances")["items"] == []
    assert books.billed("runpod") == set()
    launches = books.count("runpod", "create")
    # The Job has created another pod, which is kept from clouds.
    replaced = ("get", "pods", "-n", namespace, "-o", "jsonpath={.items[*].status.phase}")
    node.until(lambda: node.kubectl(*replaced).stdout == "Pending", "the Job to replace its pod")
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(job("k", "true")))
    refused = as_json(node, "plan", "-f", str(file), "-n", namespace, code=3)
    assert "skysail-drain" in refused["workloads"][0]["message"]
    assert books.count("runpod", "create") == launches
    again = as_json(node, "drain", "--yes")
    assert (again["ended"], again["left"]) == ([], [])


def create_held(node: Cluster, namespace: str) -> list[str]:
    """Create a sample of each kind of users with a finalizer of an operator before us. Returns their names."""
    samples = [row for file in SAMPLES.glob("*.yaml") for row in yaml.safe_load_all(file.read_text()) if row]
    kinds = {kind.resource.kind: kind.resource.group for kind in ALL_KINDS if kind.resource.namespaced}
    first = {row["kind"]: row for row in samples if row["apiVersion"].partition("/")[0] == kinds.get(row["kind"])}
    assert first.keys() == kinds.keys()
    for row in first.values():
        row["metadata"] = {"name": "held", "finalizers": ["kopf.zalando.org/KopfFinalizerMarker"]}
        apply(node, namespace, row)
    return [f"{kind.lower()}/held" for kind in kinds]


def test_drain_without_operator_names_instances_and_ends_nothing(node, namespace, books):
    claim = run_job(node, namespace)
    node.stop("operator")
    try:
        held = create_held(node, namespace)
        metadata = {"name": "unlaunched", "finalizers": ["skysail.dev/claim"]}
        apply(node, "default", {**claim, "metadata": metadata, "status": {}})
        done = as_json(node, "drain", "--yes", code=1)
        assert [row["instance"] for row in done["left"]] == [claim["status"]["instanceId"]]
        assert "only an operator can terminate instances" in done["notes"][0]
        assert books.billed("runpod") == {claim["metadata"]["name"]}
        assert node.kubectl("get", "cloudinstance", "unlaunched").returncode != 0
        # Nothing holds an object of a user any more.
        assert len(done["finalizers"]) == len(held)
        ok(node, "delete", *held, "-n", namespace, TIMEOUT)
    finally:
        resume_operator(node)
    done = as_json(node, "drain", "--yes", "--timeout", "5m")
    assert [row["claim"] for row in done["ended"]] == [claim["metadata"]["name"]]
    assert books.billed("runpod") == set()


def test_runpod_controller_serves_only_its_node(node):
    node.stop("operator")
    ok(node, "delete", "node", *NODES.values())
    names = (part.removeprefix("--").partition("=") for part in clouds.flags(node))
    env = {f"SKYSAIL_{name.replace('-', '_').upper()}": value for name, _, value in names}
    env |= {"SKYSAIL_WEBHOOK_HOST": addresses.CLUSTER_IP, "SKYSAIL_DRAIN_SECONDS": "0"}
    argv = (
        sys.executable,
        "-P",
        "-m",
        "skysail.cli.runpod_controller",
        f"--kubeconfig={node.operator_kubeconfig}",
        "--reconcile-interval=5m",
        "--pending-job-threshold=2",
        "--max-pending-time=30s",
        "--max-gpu-price=0.6",
        "--health-server-address=:18080",
    )
    node.control.start_unit(Unit(name="runpod-controller", argv=argv, env=env, restart=False))
    try:
        node.until(lambda: node.kubectl("get", "node", NODES["runpod"]).returncode == 0, "the node of RunPod")
        until_condition(node, "default", f"node/{NODES['runpod']}", "Ready")
        assert node.kubectl("get", "node", NODES["modal"]).returncode != 0
        assert node.get("/healthz", 18080) == (200, "ok\n")
    finally:
        node.stop("runpod-controller")
        resume_operator(node)


def test_clean_up_and_crds_leave_nothing_of_the_operator_and_no_foreign_definition_is_replaced(node):
    """What Helm runs after an uninstallation and before an upgrade, under the rights of its hooks."""
    node.stop("operator")
    node.kubectl("create", "configmap", "skysail-bridge-ports", "-n", "skysail-system")
    apply(node, "default", {**POLICY, "metadata": {"name": DRAIN_POLICY}})
    training = yaml.safe_load((SAMPLES / "ml_v1alpha1_trainingjob.yaml").read_text())
    apply(node, "default", training | {"metadata": {"name": "left", "finalizers": [Finalizer.CLOUD_VOLUME.value]}})
    try:
        done = skysail(node, "clean-up", "--operator-namespace=skysail-system")
        assert "Node modal.com deleted." in done
        assert "TrainingJob default/left released" in done
        ok(node, "delete", "trainingjob", "left", "-n", "default", TIMEOUT)
        left = ok(node, "get", "lease,secret,configmap", "-n", "skysail-system", "-o", "name")
        assert [name for name in left.split() if "/skysail-" in name] == []
        assert node.kubectl("get", "offloadpolicy", DRAIN_POLICY).returncode != 0

        name = "modalfunctions.modal-operator.io"
        ok(node, "delete", "crd", name, TIMEOUT)
        assert f"CRD {name} is current." in skysail(node, "crds", "apply")
        ok(node, "label", "crd", name, "app.kubernetes.io/managed-by-")
        refused = run_skysail(node, "crds", "apply")
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert f"CRD {name} exists and was not installed by Skysail" in refused.stderr
        assert "managed-by" not in ok(node, "get", "crd", name, "-o", "jsonpath={.metadata.labels}")
        skysail(node, "crds", "apply", "--take-over")
        assert "skysail" in ok(node, "get", "crd", name, "-o", "jsonpath={.metadata.labels}")
    finally:
        resume_operator(node)
