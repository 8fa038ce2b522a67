"""The chart installed by the real Helm on a real control plane, with the operator in pods of its own image.

CI runs those that show promises; `make test-chart-all` runs all.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from scripts import helm
from scripts.chart import ROOT
from tests.chart.conftest import (
    CLOUD_MOUNT,
    CLOUD_SETTINGS,
    Release,
    cloud_options,
    cloud_volume,
    creates,
    expose_clouds,
    offloaded,
    release,
)
from tests.support.kubectl import TIMEOUT, fresh_namespace, ok

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.cluster import Cluster

CRDS = sorted((ROOT / "charts" / "skysail" / "crds").glob("*.yaml"))
UPGRADE = ROOT / "tests" / "upgrade" / "0.1.yaml"
# Clouds are pretended: nothing in this test may cost money.
MOCK = "--set=testing.mockModal=true"
SMALL = ("--set=replicaCount=1", "--set=proxy.replicaCount=1")
COMMAND = (
    "helm upgrade --install modal-operator ./charts/modal-operator --namespace modal-system --create-namespace "
    "--set testing.mockModal=false"
)
WORKERS = "trainingjob.ml.example.com/worker"


@pytest.fixture
def install(plane: Cluster, binary: Path) -> Iterator[Any]:
    """Return a release of a preset. Afterwards nothing of it is left, whatever happened."""
    begun: list[Release] = []

    def begin(name: str) -> Release:
        begun.append(release(plane, binary, name))
        return begun[-1]

    yield begin
    for one in begun:
        plane.kubectl("delete", "cloudinstances", "--all", TIMEOUT)
        one.helm("uninstall", one.preset.release, "--ignore-not-found", "--no-hooks", "--wait")
        if one.preset.namespace != "kube-system":
            plane.kubectl("delete", "namespace", one.preset.namespace, "--ignore-not-found", TIMEOUT)
    remove_leftovers(plane)


def remove_crds(plane: Cluster) -> None:
    for file in CRDS:
        ok(plane, "delete", "-f", str(file), "--ignore-not-found", TIMEOUT)


def remove_leftovers(plane: Cluster) -> None:
    """Delete what `skysail clean-up` deletes, after a release that was removed without its hooks."""
    ok(plane, "delete", "node", "modal.com", "runpod-virtual-node", "--ignore-not-found")
    for kind in ("lease/skysail-operator", "secret/skysail-webhook", "cm/skysail-launches", "cm/skysail-offers"):
        ok(plane, "delete", "-n", "kube-system", kind, "--ignore-not-found")


def apply_policy_kind(plane: Cluster) -> None:
    (file,) = (file for file in CRDS if "offloadpolicies" in file.name)
    ok(plane, "apply", "-f", str(file))
    ok(plane, "wait", "--for=condition=Established", "-f", str(file), TIMEOUT)


def pod(name: str, **annotations: str) -> dict[str, Any]:
    container = {"name": "main", "image": "busybox", "resources": {"requests": {"nvidia.com/gpu": 1}}}
    metadata = {"name": name, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def training(name: str, seconds: int) -> dict[str, Any]:
    spec = {"framework": "pytorch", "image": "busybox", "command": ["sleep", str(seconds)], "workers": 2}
    metadata = {"name": name}
    return {"apiVersion": "ml.example.com/v1alpha1", "kind": "TrainingJob", "metadata": metadata, "spec": spec}


def create(plane: Cluster, namespace: str, manifest: dict[str, Any]) -> None:
    ok(plane, "create", "-n", namespace, "-f", "-", stdin=json.dumps(manifest))


def listed(plane: Cluster, *arguments: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = json.loads(ok(plane, "get", *arguments, "-o", "json"))["items"]
    return items


def can(plane: Cluster, account: str, *action: str) -> bool:
    return plane.kubectl("auth", "can-i", *action, f"--as=system:serviceaccount:{account}").stdout.strip() == "yes"


def cluster_objects(plane: Cluster) -> set[str]:
    names = ok(plane, "get", "clusterrole,clusterrolebinding,mutatingwebhookconfiguration,node", "-o", "name")
    return set(names.split())


@pytest.mark.on_demand
def test_install_default_preset_trains_offloads_and_leaves_nothing(plane, install):
    before = cluster_objects(plane)
    one = install("default")
    notes = one.install(MOCK)
    assert "testing.mockModal is true" in notes
    assert "Succeeded" in one.helm("test", "skysail")
    ready = listed(plane, "pods", "-n", "skysail-system", "-l", "control-plane=controller-manager")
    assert len(ready) == 2
    with pytest.raises(helm.HelmFailed, match="ClusterRole"):
        # A cluster has one Skysail.
        install("modal-operator").install(*SMALL)
    # The namespace of the operator enforces nothing by itself with --create-namespace, so ask for it here.
    enforced = plane.kubectl(
        "label", "namespace", "skysail-system", "pod-security.kubernetes.io/enforce=restricted", "--dry-run=server"
    )
    assert "violate" not in enforced.stderr
    with fresh_namespace(plane) as namespace:
        plane.until_asking()
        create(plane, namespace, training("sleeps", 1))
        create(plane, namespace, pod("gpu", **{"modal-operator.io/offload": "true"}))
        ok(plane, "wait", "pod/gpu", "-n", namespace, "--for=jsonpath={.status.phase}=Running", TIMEOUT)
        ok(plane, "wait", "trainingjob/sleeps", "-n", namespace, "--for=jsonpath={.status.phase}=Succeeded", TIMEOUT)
        assert ok(plane, "get", "pod", "gpu", "-n", namespace, "-o", "jsonpath={.spec.nodeName}") == "modal.com"
        one.uninstall()
        assert listed(plane, "cloudinstances") == []
        assert listed(plane, "pods", "-n", namespace, "--field-selector=spec.nodeName=modal.com") == []
        assert listed(plane, "offloadpolicies") == []
        left = ok(plane, "get", "lease,secret,job,deployment", "-n", "skysail-system", "-o", "name")
        assert left == ""
        assert cluster_objects(plane) == before
        # The CRDs and the users' objects stay, and no finalizer holds them.
        ok(plane, "delete", "trainingjob", "sleeps", "-n", namespace, TIMEOUT)


def test_install_modal_operator_command_of_its_document_works_as_written(plane, binary, install):
    one = install("modal-operator")
    helm.run(binary, *shlex.split(COMMAND)[1:], kubeconfig=plane.kubeconfig)
    one.kubectl("rollout", "status", "deployment/modal-operator", TIMEOUT)
    assert can(plane, "modal-system:modal-operator", "update", "pods/status")
    assert can(plane, "modal-system:modal-operator", "update", "pods", "--subresource=status")
    assert not can(plane, "modal-system:modal-operator", "update", "pods")
    # The log of a pod that has just become ready may not have been collected yet.
    plane.until(lambda: '"message"' in one.kubectl("logs", "deployment/modal-operator"), "the log of the Deployment")
    service = json.loads(one.kubectl("get", "service", "modal-operator", "-o", "json"))
    assert [row["port"] for row in service["spec"]["ports"]] == [8080, 8081]
    metrics = plane.kubectl(
        "get", "--raw", "/api/v1/namespaces/modal-system/services/modal-operator:8081/proxy/metrics"
    )
    assert "skysail_leader" in metrics.stdout

    def settings() -> dict[str, Any]:
        shown = one.kubectl("get", "cm", "modal-operator-settings", "-o", "jsonpath={.data.settings\\.yaml}")
        found: dict[str, Any] = yaml.safe_load(shown)
        return found

    assert (settings()["mock_clouds"], settings()["offload_auto"]) == (False, "Always")
    # As NOTES and docs/install.md say it.
    chart = ("modal-operator", "./charts/modal-operator", "--reset-then-reuse-values", "--no-hooks")
    one.helm("upgrade", *chart, "--set=log.level=debug")
    assert (settings()["mock_clouds"], settings()["log_level"]) == (False, "debug")


@pytest.mark.on_demand
@pytest.mark.parametrize(
    ("name", "account", "action"),
    [
        ("model-operator", "model-operator-system:model-operator-controller-manager", ("create", "deployments")),
        (
            "mlmodel-operator",
            "demo-mlmodel-operator-system:demo-mlmodel-operator-controller-manager",
            ("create", "persistentvolumeclaims"),
        ),
        ("runpod-controller", "kube-system:runpod-controller", ("create", "pods", "--subresource=binding")),
        (
            "ml-training-operator",
            "ml-operator-system:ml-training-operator-controller-manager",
            ("create", "pods"),
        ),
    ],
)
def test_install_preset_runs_under_the_names_of_its_document(plane, install, name, account, action):
    one = install(name)
    one.install(*SMALL, MOCK)
    assert one.name == account.split(":")[1]
    assert can(plane, account, *action)
    assert listed(plane, "pods", "-n", one.preset.namespace, "-l", "control-plane=controller-manager")
    nodes = {row["metadata"]["name"] for row in listed(plane, "nodes")}
    expected = {"runpod-virtual-node"} if name == "runpod-controller" else {"runpod-virtual-node", "modal.com"}
    plane.until(lambda: {row["metadata"]["name"] for row in listed(plane, "nodes")} >= expected, "the nodes")
    assert ("modal.com" in nodes) <= (name != "runpod-controller")


def test_install_node_that_exists_already_is_taken_over(plane, install):
    """`deploy/virtual-node-setup.yaml` comes before the operator, and nothing is scheduled on it by accident."""
    ok(plane, "apply", "-f", str(ROOT / "deploy" / "virtual-node-setup.yaml"))
    assert "runpod.io/virtual" in ok(plane, "get", "node", "runpod-virtual-node", "-o", "jsonpath={.spec.taints}")
    install("runpod-controller").install(*SMALL, MOCK)
    ok(plane, "wait", "node/runpod-virtual-node", "--for=condition=Ready", TIMEOUT)
    assert "runpod.io/virtual" in ok(plane, "get", "node", "runpod-virtual-node", "-o", "jsonpath={.spec.taints}")


@pytest.mark.on_demand
def test_install_crd_of_another_project_is_named_and_kept(plane, install):
    remove_crds(plane)
    definition = yaml.safe_load(CRDS[2].read_text())
    del definition["metadata"]["labels"]
    ok(plane, "create", "-f", "-", stdin=json.dumps(definition))
    one = install("default")
    with pytest.raises(helm.HelmFailed) as refused:
        one.install(*SMALL)
    sentence = f"CRD {definition['metadata']['name']} exists and was not installed by Skysail: remove it, or replace it"
    assert sentence in str(refused.value)
    assert "crds.takeOver=true" in str(refused.value)
    assert "labels" not in json.loads(ok(plane, "get", "-f", str(CRDS[2]), "-o", "json"))["metadata"]
    one.install(*SMALL, "--set=crds.takeOver=true")
    shown = json.loads(ok(plane, "get", "-f", str(CRDS[2]), "-o", "json"))
    assert shown["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "skysail"


@pytest.mark.parametrize("preset", helm.PRESETS, ids=lambda preset: preset.name)
def test_manifests_every_preset_passes_a_dry_run_on_the_server(plane, preset):
    """Also under the strictest pod security standard, which its namespace asks for."""
    created = preset.namespace != "kube-system"
    if created:
        ok(plane, "create", "namespace", preset.namespace)
        ok(plane, "label", "namespace", preset.namespace, "pod-security.kubernetes.io/warn=restricted")
    if preset.has_policy:
        apply_policy_kind(plane)
    try:
        done = plane.kubectl("apply", "--dry-run=server", "-f", str(ROOT / preset.file))
        assert done.returncode == 0, done.stderr
        assert "would violate" not in done.stderr
    finally:
        if created:
            ok(plane, "delete", "namespace", preset.namespace, TIMEOUT)


def test_manifests_of_the_runpod_controller_allow_runpod_after_its_two_commands(plane):
    """On an empty cluster, as its document has them: without a policy nothing would leave the cluster."""
    remove_crds(plane)
    files = [ROOT / "deploy" / name for name in ("virtual-node-setup.yaml", "runpod-controller.yaml")]
    try:
        ok(plane, "apply", "-f", str(files[0]))
        ok(plane, "wait", "--for=condition=Established", "crd/offloadpolicies.skysail.dev", TIMEOUT)
        ok(plane, "apply", "-f", str(files[1]))
        ok(plane, "rollout", "status", "deployment/runpod-controller", "-n", "kube-system", TIMEOUT)
        shown = {row["metadata"]["name"]: row["spec"]["providers"] for row in listed(plane, "offloadpolicies")}
        assert shown == {"default": ["runpod"]}
    finally:
        for file in reversed(files):
            ok(plane, "delete", "-f", str(file), "--ignore-not-found", TIMEOUT)
        remove_leftovers(plane)


def test_manifests_installer_installs_and_removes_everything(plane):
    """`kubectl apply -f dist/install.yaml`, once, on an empty cluster."""
    remove_crds(plane)
    try:
        ok(plane, "apply", "-f", str(ROOT / "dist" / "install.yaml"))
        ok(plane, "rollout", "status", "deployment/skysail", "-n", "skysail-system", TIMEOUT)
        ok(plane, "apply", "-f", str(ROOT / "dist" / "default-policy.yaml"))
        assert [row["metadata"]["name"] for row in listed(plane, "offloadpolicies")] == ["default"]
    finally:
        ok(plane, "delete", "-f", str(ROOT / "dist" / "install.yaml"), "--ignore-not-found", TIMEOUT)
        remove_leftovers(plane)


@pytest.mark.on_demand
def test_upgrade_from_0_1_and_back_does_not_touch_running_work(plane, install, tmp_path):
    """A training in the cluster and a pod at a cloud, whose instance is launched once and billed all the time."""
    one = install("default")
    expose_clouds(plane)
    first = released_chart(tmp_path, cloud_volume(plane))
    one.helm("install", "skysail", str(first), "--create-namespace", "--wait", "--timeout=10m")
    ok(plane, "apply", "-f", str(ROOT / "dist" / "default-policy.yaml"))
    plane.until_asking()
    with fresh_namespace(plane) as namespace:
        create(plane, namespace, training("keeps-running", 3600))
        create(plane, namespace, offloaded("gpu"))
        plane.until(lambda: running(plane, namespace) == 2, "two workers to run")
        ok(plane, "wait", "pod/gpu", "-n", namespace, "--for=jsonpath={.status.phase}=Running", TIMEOUT)
        before, paid = workers(plane, namespace), instances(plane, namespace)
        # The policy of 0.1 was applied by itself, and becomes part of the release.
        ok(plane, "delete", "-f", str(ROOT / "dist" / "default-policy.yaml"))
        one.install(*cloud_options(plane))
        assert (workers(plane, namespace), instances(plane, namespace)) == (before, paid)
        ok(plane, "get", "trainingjob", "keeps-running", "-n", namespace)
        one.helm("rollback", "skysail", "1", "--wait", "--timeout=10m")
        assert (workers(plane, namespace), instances(plane, namespace)) == (before, paid)
        assert len(creates(plane, paid[0])) == 1
        # The operator that is back works: it ends the training and the instance.
        ok(plane, "delete", "trainingjob/keeps-running", "pod/gpu", "-n", namespace, TIMEOUT)
        plane.until(lambda: workers(plane, namespace) == set(), "the workers to end")
        plane.until(lambda: listed(plane, "cloudinstances") == [], "the instance to end")


def instances(plane: Cluster, namespace: str) -> tuple[str, str, str]:
    """Return the pod at the cloud, its claim and its instance."""
    (claim,) = listed(plane, "cloudinstances")
    pod_ = json.loads(ok(plane, "get", "pod", "gpu", "-n", namespace, "-o", "json"))
    assert pod_["status"]["phase"] == "Running"
    return pod_["metadata"]["uid"], claim["metadata"]["uid"], claim["status"]["instanceId"]


def running(plane: Cluster, namespace: str) -> int:
    rows = listed(plane, "pods", "-n", namespace, "-l", WORKERS)
    return sum(row["status"].get("phase") == "Running" for row in rows)


def workers(plane: Cluster, namespace: str) -> set[tuple[str, int]]:
    """The pods of the training and how often their container was started."""
    rows = listed(plane, "pods", "-n", namespace, "-l", WORKERS)
    return {(row["metadata"]["uid"], row["status"]["containerStatuses"][0]["restartCount"]) for row in rows}


def released_chart(folder: Path, volume: dict[str, Any]) -> Path:
    """Return a chart that installs what release 0.1 installed, with the simulated clouds of the node as its clouds."""
    documents = [row for row in yaml.safe_load_all(UPGRADE.read_text()) if row]
    for row in documents:
        if row["kind"] == "Deployment":
            spec = row["spec"]["template"]["spec"]
            spec["volumes"].append(volume)
            spec["containers"][0]["volumeMounts"].append(CLOUD_MOUNT)
        if row["kind"] == "ConfigMap" and "settings.yaml" in row["data"]:
            settings = {**yaml.safe_load(row["data"]["settings.yaml"]), **CLOUD_SETTINGS}
            row["data"]["settings.yaml"] = yaml.safe_dump(settings)
    chart = folder / "skysail"
    (chart / "templates").mkdir(parents=True)
    (chart / "crds").mkdir()
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: skysail\nversion: 0.1.0\n")
    crds = [row for row in documents if row["kind"] == "CustomResourceDefinition"]
    rest = [row for row in documents if row["kind"] not in {"CustomResourceDefinition", "Namespace"}]
    (chart / "crds" / "all.yaml").write_text(yaml.safe_dump_all(crds))
    (chart / "templates" / "all.yaml").write_text(yaml.safe_dump_all(rest))
    return chart


@pytest.mark.on_demand
def test_upgrade_crds_command_updates_ours_and_names_another_projects(plane):
    remove_crds(plane)
    definition = yaml.safe_load(CRDS[0].read_text())
    del definition["metadata"]["labels"]
    ok(plane, "create", "-f", "-", stdin=json.dumps(definition))
    done = skysail(plane, "crds", "apply")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "--take-over" in done.stderr
    assert skysail(plane, "crds", "apply", "--take-over").returncode == 0
    assert skysail(plane, "crds", "apply").returncode == 0


def skysail(plane: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / ".venv" / "bin" / "skysail"), *arguments, f"--kubeconfig={plane.kubeconfig}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)
