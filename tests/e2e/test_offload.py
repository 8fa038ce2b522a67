"""Placement on the real plane: pods and Jobs that ask reach the simulated clouds, by webhook and without it."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from skysail.app import manifests
from skysail.base.names import Condition
from tests.support import owner_chains
from tests.support.clouds import NODES, TAINTS, Books, claims, let_go, start_operator
from tests.support.kubectl import TIMEOUT, apply, fresh_namespace, get, ok, pod, until_phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

Manifest = dict[str, Any]

SAMPLES = Path(__file__).parents[2] / "config" / "samples"
ASKS = {
    "modal": {"modal-operator.io/offload": "true", "modal-operator.io/gpu-type": "T4"},
    "runpod": {"runpod.io/managed": "true", "runpod.io/offload": "true", "runpod.io/required-gpu-memory": "16"},
}
GPU = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
POLICY = {
    "apiVersion": "skysail.dev/v1alpha1",
    "kind": "OffloadPolicy",
    "metadata": {"name": "offload-tests"},
    "spec": {
        "namespaceSelector": {"matchLabels": {"offload": "allowed"}},
        "providers": ["modal", "runpod"],
        "maxInstances": 1000,
        "automatic": True,
    },
}


@pytest.fixture(scope="module", params=["webhook", "overflow"])
def node(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    cluster.start_agent()
    has_webhook = request.param == "webhook"
    env = {"SKYSAIL_AUTOSCALER_WAIT_SECONDS": "1", "SKYSAIL_LAUNCHES_PER_NAMESPACE": "1000"}
    start_operator(cluster, env=env, flags=() if has_webhook else ("--no-webhooks",))
    if has_webhook:
        cluster.until_asking()
    ok(cluster, "delete", "offloadpolicy", "default", "--ignore-not-found")  # it would match every namespace
    apply(cluster, "default", POLICY)
    yield cluster
    ok(cluster, "delete", "offloadpolicy", "offload-tests")
    apply(cluster, "default", manifests.default_policy())
    cluster.end_operator()
    cluster.remove_agent()
    ok(cluster, "delete", "node", *NODES.values(), "--ignore-not-found")
    ok(cluster, "delete", "mutatingwebhookconfiguration", "skysail", "--ignore-not-found")


@pytest.fixture(scope="module")
def books(node: Cluster) -> Books:
    return Books(node)


@pytest.fixture
def namespace(node: Cluster, books: Books) -> Iterator[str]:
    """A namespace that no policy matches. After the test nothing is left at the clouds."""
    with fresh_namespace(node) as name:
        yield name
        let_go(node, name)
        books.until_let_go(name)


@pytest.fixture
def allowed(node: Cluster, namespace: str) -> str:
    """A namespace that a policy matches."""
    ok(node, "label", "namespace", namespace, "offload=allowed")
    return namespace


@pytest.fixture
def has_webhook(request: pytest.FixtureRequest) -> bool:
    return "overflow" not in request.node.callspec.params.values()


def annotated(manifest: Manifest, annotations: dict[str, str]) -> Manifest:
    manifest["metadata"]["annotations"] = annotations
    return manifest


def gpu_pod(name: str, *command: str) -> Manifest:
    return pod(name, *command, container=GPU)


def job(name: str, *command: str, **spec: Any) -> Manifest:
    template = {"spec": gpu_pod("", *command)["spec"]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": template, **spec}}


def pods_of(node: Cluster, namespace: str, job: str) -> list[Manifest]:
    found: list[Manifest] = get(node, namespace, "pods", "-l", f"job-name={job}")["items"]
    return found


def offload_condition(node: Cluster, namespace: str, name: str) -> Manifest:
    """Return the condition of the pod, once it is there."""
    seen: list[Manifest] = []

    def is_there() -> bool:
        rows = get(node, namespace, "pod", name)["status"].get("conditions", ())
        seen[:] = [row for row in rows if row["type"] == Condition.OFFLOAD]
        return bool(seen)

    node.until(is_there, f"pod {name} to say why it is not offloaded")
    return seen[0]


@pytest.mark.parametrize("cloud", list(ASKS))
def test_offload_annotated_pod_runs_at_cloud(node, allowed, books, cloud, has_webhook):
    nonce = secrets.token_hex(8)
    apply(node, allowed, annotated(gpu_pod("p", "sh", "-c", f"echo {nonce}"), ASKS[cloud]))
    until_phase(node, allowed, "p", "Succeeded")
    shown = get(node, allowed, "pod", "p")
    assert shown["spec"]["nodeName"] == NODES[cloud]
    assert ("nodeSelector" in shown["spec"]) is has_webhook
    assert ok(node, "logs", "p", "-n", allowed).strip() == nonce
    assert books.launches(cloud, shown["metadata"]["uid"]) == 1
    if cloud == "runpod":
        assert shown["metadata"]["labels"]["runpod.io/managed"] == "true"


@pytest.mark.parametrize("cloud", list(ASKS))
def test_offload_annotated_job_runs_at_cloud(node, allowed, books, cloud, has_webhook):
    nonce = secrets.token_hex(8)
    apply(node, allowed, annotated(job("j", "sh", "-c", f"echo {nonce}"), ASKS[cloud]))
    node.until(lambda: get(node, allowed, "job", "j")["status"].get("succeeded") == 1, "the Job to succeed")
    (made,) = pods_of(node, allowed, "j")
    assert made["spec"]["nodeName"] == NODES[cloud]
    assert made["metadata"]["annotations"].items() >= ASKS[cloud].items()
    assert ok(node, "logs", made["metadata"]["name"], "-n", allowed).strip() == nonce
    assert books.launches(cloud, made["metadata"]["uid"]) == 1
    assert ("podFailurePolicy" in get(node, allowed, "job", "j")["spec"]) is has_webhook


def test_offload_job_at_runpod_is_annotated_with_id_and_price(node, allowed):
    apply(node, allowed, annotated(job("j", "sleep", "1000"), ASKS["runpod"]))
    node.until(
        lambda: "runpod.io/cost-per-hr" in get(node, allowed, "job", "j")["metadata"]["annotations"],
        "the Job to say what it costs",
    )
    written = get(node, allowed, "job", "j")["metadata"]["annotations"]
    (claim,) = claims(node, allowed)
    assert written["runpod.io/offloaded"] == "true"
    assert written["runpod.io/pod-id"] == claim["status"]["instanceId"]
    assert written["runpod.io/cost-per-hr"] == "0.440000"


def test_offload_managed_job_goes_to_runpod_when_no_node_takes_it(node, allowed):
    apply(node, allowed, annotated(job("j", "true"), {"runpod.io/managed": "true"}))
    node.until(lambda: get(node, allowed, "job", "j")["status"].get("succeeded") == 1, "the Job to succeed")
    (made,) = pods_of(node, allowed, "j")
    assert made["spec"]["nodeName"] == NODES["runpod"]


def test_offload_job_annotated_later_reaches_its_pod(node, allowed):
    # A selector that no node has keeps the pod pending without a rule for it.
    apply(node, allowed, pod_of_job_without_node("j"))
    node.until(lambda: bool(pods_of(node, allowed, "j")), "the Job to have a pod")
    ok(node, "annotate", "job", "j", "-n", allowed, "modal-operator.io/offload=true")
    node.until(lambda: get(node, allowed, "job", "j")["status"].get("succeeded") == 1, "the Job to succeed")
    (made,) = pods_of(node, allowed, "j")
    assert made["spec"]["nodeName"] == NODES["modal"]
    assert made["metadata"]["annotations"]["modal-operator.io/offload"] == "true"


def pod_of_job_without_node(name: str) -> Manifest:
    manifest = job(name, "true")
    spec = manifest["spec"]["template"]["spec"]
    spec["containers"][0].pop("resources")
    spec["nodeSelector"] = {"type": "virtual-kubelet"}
    return manifest


def test_offload_gpu_pod_that_no_node_takes_goes_automatically(node, allowed, books):
    apply(node, allowed, gpu_pod("p", "true"))
    until_phase(node, allowed, "p", "Succeeded")
    shown = get(node, allowed, "pod", "p")
    assert shown["metadata"]["annotations"]["skysail.dev/automatic"] == "true"
    assert shown["spec"]["nodeName"] == NODES["runpod"]
    assert books.launches("runpod", shown["metadata"]["uid"]) == 1


_KUBEFLOW = "kubeflow.org"
_KNATIVE = "serving.knative.dev"
# Owners of pods from the top down, and the kind that makes the pod: Katib, the training operator, KServe and others.
CHAINS: dict[str, tuple[list[tuple[str, str]], str]] = {
    "katib": ([(_KUBEFLOW, "Experiment"), (_KUBEFLOW, "Trial"), (_KUBEFLOW, "PyTorchJob")], "Pod"),
    **{kind.lower(): ([(_KUBEFLOW, kind)], "Pod") for kind in ("TFJob", "XGBoostJob", "MPIJob", "PaddleJob", "JAXJob")},
    "kserve": (
        [
            ("serving.kserve.io", "InferenceService"),
            *((_KNATIVE, kind) for kind in ("Service", "Configuration", "Revision")),
        ],
        "Deployment",
    ),
    "jobset": ([("jobset.x-k8s.io", "JobSet")], "Job"),
    "lws": ([("leaderworkerset.x-k8s.io", "LeaderWorkerSet")], "StatefulSet"),
    "cronjob": ([("batch", "CronJob")], "Job"),
}


def chained(name: str, kind: str) -> Manifest:
    """Return a pod with a GPU that nobody annotates, or an object that makes such a pod."""
    restart = "Never" if kind in {"Pod", "Job"} else "Always"
    made = pod(name, "sleep", "3600", container=GPU, restart=restart)
    made["metadata"]["labels"] = {"chain": name}
    if kind == "Pod":
        return made
    template = {"metadata": {"labels": {"chain": name}}, "spec": made["spec"]}
    selected = {} if kind == "Job" else {"selector": {"matchLabels": {"chain": name}}}
    group = "batch" if kind == "Job" else "apps"
    metadata = {"name": name}
    return {
        "apiVersion": f"{group}/v1",
        "kind": kind,
        "metadata": metadata,
        "spec": {"template": template, **selected},
    }


def test_offload_pods_of_katib_kubeflow_and_kserve_go_where_their_owner_asks(node, allowed):
    with owner_chains.foreign_kinds(node):
        for name, (owners, kind) in CHAINS.items():
            owner_chains.create_chain(node, allowed, owners, chained(name, kind), ASKS["modal"])
        expected = dict.fromkeys(CHAINS, NODES["modal"])
        node.until(lambda: owner_chains.nodes_of(node, allowed) == expected, "the pods of all owners at Modal")
        ok(node, "delete", "cronjobs,deployments,statefulsets,jobs,pods", "--all", "-n", allowed, TIMEOUT)


def test_offload_without_policy_waits_until_one_allows_it(node, namespace, books):
    apply(node, namespace, annotated(gpu_pod("p", "true"), ASKS["modal"]))
    row = offload_condition(node, namespace, "p")
    assert (row["status"], row["reason"]) == ("False", "PolicyDenied")
    assert "create an OffloadPolicy" in row["message"]
    assert claims(node, namespace) == []
    ok(node, "label", "namespace", namespace, "offload=allowed")
    until_phase(node, namespace, "p", "Succeeded")
    assert books.launches("modal", get(node, namespace, "pod", "p")["metadata"]["uid"]) == 1


def test_offload_gang_without_private_network_is_left_alone_and_says_so(node, allowed):
    manifest = job("gang", "true", completionMode="Indexed", completions=2, parallelism=2)
    manifest["spec"]["template"]["spec"]["subdomain"] = "gang"
    apply(node, allowed, annotated(manifest, {"runpod.io/offload": "true"}))
    node.until(lambda: len(pods_of(node, allowed, "gang")) == 2, "the pods of the gang")
    for member in pods_of(node, allowed, "gang"):
        row = offload_condition(node, allowed, member["metadata"]["name"])
        assert row["reason"] == "GangNotOffloaded"
    events = ok(node, "get", "events", "-n", allowed, "-o", "json")
    assert "GangNotOffloaded" in {row["reason"] for row in json.loads(events)["items"]}
    assert claims(node, allowed) == []


def test_offload_malformed_request_launches_nothing_and_says_why(node, allowed):
    apply(node, allowed, annotated(gpu_pod("p", "true"), {"skysail.dev/offload": "aws"}))
    row = offload_condition(node, allowed, "p")
    assert row["reason"] == "InvalidAnnotations"
    assert "modal" in row["message"]
    assert claims(node, allowed) == []


def test_offload_sample_of_container_mode_prints_its_line(node, allowed, has_webhook):
    if not has_webhook:
        pytest.skip("without the webhook the scheduler may run the placeholder in the cluster")
    ok(node, "apply", "-n", allowed, "-f", str(SAMPLES / "v1_pod_modal-container.yaml"))
    printed = "Hello from Modal!"
    node.until(
        lambda: printed in node.kubectl("logs", "modal-container", "-n", allowed).stdout, f"{printed!r} in the log"
    )
    assert get(node, allowed, "pod", "modal-container")["spec"]["nodeName"] == NODES["modal"]


def test_offload_webhook_is_not_called_for_other_pods_and_jobs(node, allowed, has_webhook):
    """Without an offloadable pod a cluster pays nothing: the API server decides by CEL."""
    before = webhook_calls(node)
    plain_job = job("j", "true")
    plain_job["spec"]["template"]["spec"]["containers"][0].pop("resources")
    for manifest in (pod("p", "true"), plain_job):
        dry_run(node, allowed, manifest)
    assert webhook_calls(node) == before
    dry_run(node, allowed, annotated(gpu_pod("p", "true"), ASKS["modal"]))
    assert (webhook_calls(node) > before) is has_webhook


def dry_run(node: Cluster, namespace: str, manifest: Manifest) -> None:
    ok(node, "create", "--dry-run=server", "-n", namespace, "-f", "-", stdin=json.dumps(manifest))


def webhook_calls(node: Cluster) -> float:
    """Return how often the API server called the webhooks of placement."""
    name = "apiserver_admission_webhook_admission_duration_seconds_count"
    rows = [line for line in ok(node, "get", "--raw", "/metrics").splitlines() if line.startswith(name)]
    return sum(float(line.rpartition(" ")[2]) for line in rows if 'name="placement' in line)


FORGERIES: dict[str, Manifest] = {
    "selector and toleration": {
        "nodeSelector": {"kubernetes.io/hostname": NODES["modal"]},
        "tolerations": [{"key": TAINTS["modal"], "operator": "Exists"}],
    },
    "toleration of everything": {
        "nodeSelector": {"type": "virtual-kubelet"},
        "tolerations": [{"operator": "Exists"}],
    },
    "node name": {"nodeName": NODES["runpod"], "tolerations": [{"operator": "Exists"}]},
    "affinity": {
        "tolerations": [{"operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODES["runpod"]]}]}
                    ]
                }
            }
        },
    },
    "selector of the RunPod kubelet": {
        "nodeSelector": {"virtual-kubelet.io/provider": "runpod"},
        "tolerations": [{"key": "virtual-kubelet.io/provider", "value": "runpod", "operator": "Equal"}],
    },
    "label and annotations of a placed pod": {},
}


def test_offload_forged_pods_without_policy_launch_nothing(node, namespace, books):
    """Threat T13: a tenant sends pods to a cloud node by hand."""
    before = {cloud: books.count(cloud, "create") for cloud in NODES}
    for number, spec in enumerate(FORGERIES.values()):
        manifest = pod(f"forged-{number}", "sleep", "1000", **spec)
        if not spec:
            manifest["metadata"]["labels"] = {"runpod.io/managed": "true"}
            manifest["metadata"]["annotations"] = {
                "runpod.io/offloaded": "true",
                "runpod.io/offload": "true",
                "skysail.dev/automatic": "true",
            }
            manifest["spec"]["containers"][0] |= GPU
        apply(node, namespace, manifest)
    witness = "witness"
    apply(node, namespace, annotated(gpu_pod(witness, "true"), ASKS["modal"]))
    offload_condition(node, namespace, witness)
    node.until(
        lambda: all(
            claim["status"].get("state") in {None, "Claimed"} and claim["status"].get("conditions")
            for claim in claims(node, namespace)
        ),
        "the claims to say why they wait",
    )
    assert {cloud: books.count(cloud, "create") for cloud in NODES} == before
