"""The operator as a process, under the generated rights, on the real API server."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from skysail.app.install import install
from skysail.base import clock
from skysail.kinds.training.api.modal_job import MODAL_JOB
from skysail.kube import certificates, events
from skysail.kube.admission import registration
from skysail.kube.api.objects import Meta, Object
from skysail.kube.certificates import KeyPair
from skysail.kube.client import kubeconfig
from skysail.kube.client.client import Client
from skysail.kube.client.http_transport import HttpTransport
from skysail.local.control_plane import credentials
from tests.support.kubectl import TIMEOUT, fresh_namespace

SAMPLES = Path("config/samples")
# Of a second replica in the same local cluster.
OWN = ("--webhook-port=9444", "--progress-port=8083", "--identity=standby")


@pytest.fixture(scope="module", autouse=True)
def audited(cluster) -> int:
    """What other tests on this cluster have done to their operators is before it."""
    return cluster.audited


@pytest.fixture(scope="module")
def namespace(cluster):
    with fresh_namespace(cluster) as name:
        yield name


@pytest.fixture(scope="module")
def samples(cluster, operator):
    """Applied, and gone afterwards but for their namespace: other tests on this cluster count what is in it."""
    done = cluster.kubectl("apply", "-k", str(SAMPLES))
    assert done.returncode == 0, done.stderr
    yield
    files = [f"--filename={path}" for path in SAMPLES.glob("*_*.yaml")]
    done = cluster.kubectl("delete", "--ignore-not-found", *files)
    assert done.returncode == 0, done.stderr


def conditions(cluster, kind: str, name: str, namespace: str) -> dict:
    done = cluster.kubectl("get", kind, name, "-n", namespace, "-o", "json")
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout).get("status", {})
    return {row["type"]: row for row in status.get("conditions", [])}


def until_accepted(cluster, kind: str, name: str, namespace: str) -> dict:
    cluster.until(
        lambda: "Accepted" in conditions(cluster, kind, name, namespace), f"{kind} {name} to have a condition"
    )
    return conditions(cluster, kind, name, namespace)["Accepted"]


def apply(cluster, namespace: str, manifest: dict) -> None:
    command = ("apply", "--validate=strict", "-n", namespace, "-f", "-")
    done = cluster.kubectl(*command, stdin=json.dumps(manifest))
    assert done.returncode == 0, done.stderr


def modal_job(name: str, **spec) -> dict:
    return {
        "apiVersion": "modal-operator.io/v1alpha1",
        "kind": "ModalJob",
        "metadata": {"name": name},
        "spec": {"image": "python:3.11-slim", **spec},
    }


def test_a_gpu_pod_of_the_modal_operator_is_made_valid_on_its_way_in(cluster, operator, namespace):
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "gpu"},
        "spec": {
            "containers": [
                {"name": "c", "image": "x", "resources": {"requests": {"nvidia.com/gpu": 1}}},
                {"name": "d", "image": "x"},
            ]
        },
    }
    apply(cluster, namespace, pod)
    shown = json.loads(cluster.kubectl("get", "pod", "gpu", "-n", namespace, "-o", "json").stdout)
    assert shown["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    for kind, group in (("Job", "batch/v1"), ("Deployment", "apps/v1"), ("StatefulSet", "apps/v1")):
        template = {"metadata": {"labels": {"a": "b"}}, "spec": pod["spec"] | {"restartPolicy": "Always"}}
        spec: dict = {"template": template, "selector": {"matchLabels": {"a": "b"}}, "replicas": 0}
        if kind == "Job":
            template["spec"]["restartPolicy"] = "Never"
            spec = {"template": template, "suspend": True}
        if kind == "StatefulSet":
            spec["serviceName"] = "x"
        apply(cluster, namespace, {"apiVersion": group, "kind": kind, "metadata": {"name": "gpu"}, "spec": spec})
        path = "jsonpath={.spec.template.spec.containers[0].resources.limits}"
        limits = cluster.kubectl("get", kind, "gpu", "-n", namespace, "-o", path)
        assert json.loads(limits.stdout) == {"nvidia.com/gpu": "1"}
    job = {"template": {"spec": pod["spec"] | {"restartPolicy": "Never"}}}
    cron = {"schedule": "0 0 1 1 *", "suspend": True, "jobTemplate": {"spec": job}}
    apply(cluster, namespace, {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "gpu"}, "spec": cron})


def test_pod_webhook_pods_without_limits_skip_it_and_start_without_operator(cluster, operator, namespace):
    before = cluster.audited
    cluster.signal("operator", signal.SIGSTOP)
    try:
        done = cluster.kubectl("run", "plain", "-n", namespace, "--image=x", "--restart=Never")
        assert done.returncode == 0, done.stderr
    finally:
        # Its lease may have run out meanwhile, and then it would end by itself in the middle of another test.
        cluster.signal("operator", signal.SIGCONT)
        cluster.stop("operator")
        resume(cluster)
    cluster.until(lambda: creation(cluster, before, "plain") is not None, "the pod to be in the audit log")
    row = creation(cluster, before, "plain")
    assert [name for name in row["annotations"] if "webhook" in name] == []


def test_webhook_certificate_that_is_due_is_renewed_under_the_same_authority(cluster, operator, namespace):
    secret = ("secret", "skysail-webhook", "-n", "skysail-system")
    cluster.until_asking()
    cluster.stop("operator")
    kept = webhook_keys(cluster)
    names = ("host.invalid",)
    due = certificates.server(kept.authority, names, now=datetime.now(UTC), valid=timedelta(minutes=1))
    written = {"tls.crt": due.certificate, "tls.key": due.key}
    data = {name: base64.b64encode(value).decode() for name, value in written.items()}
    try:
        done = cluster.kubectl("patch", *secret, "--type=merge", "-p", json.dumps({"data": data}))
        assert done.returncode == 0, done.stderr
    finally:
        resume(cluster)
    renewed = webhook_keys(cluster)
    assert renewed.authority == kept.authority
    assert renewed.is_signed_by_authority
    assert not renewed.server.is_due(datetime.now(UTC))
    cluster.until_asking()


def webhook_keys(cluster) -> registration.Keys:
    done = cluster.kubectl("get", "secret", "skysail-webhook", "-n", "skysail-system", "-o", "json")
    assert done.returncode == 0, done.stderr
    data = {name: base64.b64decode(value) for name, value in json.loads(done.stdout)["data"].items()}
    authority = KeyPair(data["ca.crt"], data["ca.key"])
    return registration.Keys(authority, KeyPair(data["tls.crt"], data["tls.key"]))


def test_event_that_repeats_is_counted_in_its_series(cluster, operator, namespace, monkeypatch):
    """Under the rights of the operator, and without its half minute between two writes."""
    monkeypatch.setattr(events, "_SERIES_INTERVAL", 0.0)
    about = Object(Meta(name="repeats", namespace=namespace, uid="repeats"))
    event = events.ObjectEvent(
        resource=MODAL_JOB.resource, object=about, reason="Repeats", note="Again.", warning=False
    )
    login = cluster.user(credentials.OPERATOR.name, *credentials.OPERATOR.groups)

    async def say_twice() -> None:
        transport = HttpTransport(kubeconfig.from_file(login))
        broadcaster = events.Broadcaster(Client(transport), instance="test", now=clock.now)
        task = asyncio.create_task(broadcaster.run())
        broadcaster.record(event)
        broadcaster.record(event)
        try:
            await asyncio.to_thread(cluster.until, lambda: counted() == "2", "the event to be counted twice")
        finally:
            task.cancel()
            await transport.close()

    def counted() -> str:
        path = "jsonpath={.items[?(@.reason=='Repeats')].series.count}"
        return cluster.kubectl("get", "events.events.k8s.io", "-n", namespace, "-o", path).stdout

    asyncio.run(say_twice())


def creation(cluster, since: int, pod: str) -> dict | None:
    for row in cluster.audit(since):
        about = row.get("objectRef", {})
        if (row["verb"], about.get("resource"), about.get("name")) == ("create", "pods", pod):
            return row
    return None


def resume(cluster) -> None:
    """The module's operator, after another one. Until it leads."""
    cluster.resume("operator")
    cluster.until(lambda: leads(cluster), "the operator to be back")


def leads(cluster) -> bool:
    try:
        return "skysail_leader 1.0" in cluster.get("/metrics")[1] and cluster.get("/readyz")[0] == 200
    except Exception:  # noqa: BLE001 (not listening yet has many faces)
        return False


def test_a_changed_gpu_count_takes_the_limit_along_that_we_set(cluster, operator, namespace):
    def deployment(gpus: int) -> dict:
        container = {"name": "c", "image": "x", "resources": {"requests": {"nvidia.com/gpu": gpus}}}
        template = {"metadata": {"labels": {"a": "more"}}, "spec": {"containers": [container]}}
        spec = {"replicas": 0, "selector": {"matchLabels": {"a": "more"}}, "template": template}
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "more"}, "spec": spec}

    cluster.until_asking()
    apply(cluster, namespace, deployment(1))
    apply(cluster, namespace, deployment(2))
    path = "jsonpath={.spec.template.spec.containers[0].resources}"
    limits = cluster.kubectl("get", "deployment", "more", "-n", namespace, "-o", path)
    assert json.loads(limits.stdout) == {"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "2"}}


def test_another_projects_definition_is_never_replaced_by_our_stand_in(cluster, operator):
    name = "trainjobs.trainer.kubeflow.org"
    cluster.kubectl("label", "crd", name, "app.kubernetes.io/managed-by-", "--overwrite")
    try:
        cluster.until(lambda: name not in cluster.get("/metrics")[1], "the operator to let it go")
        asyncio.run(install(cluster.kubeconfig))
        labels = cluster.kubectl("get", "crd", name, "-o", "jsonpath={.metadata.labels}").stdout
        assert "skysail" not in labels
    finally:
        cluster.kubectl("label", "crd", name, "app.kubernetes.io/managed-by=skysail", "--overwrite")
    cluster.until(lambda: name in cluster.get("/metrics")[1], "the operator to watch it again")


@pytest.mark.parametrize(
    "sample",
    [
        "ml_v1alpha1_trainingjob",
        "mlops_v1_modeldeployment",
        "modal_v1alpha1_modalendpoint",
        "modal_v1alpha1_modalfunction",
        "modal_v1alpha1_modaljob",
        "oda.tmforum.org_v1beta1_mlmodel",
        "trainer_v1alpha1_trainjob",
    ],
)
def test_finalizers_of_the_operators_before_us_do_not_hold_a_deleted_object(cluster, operator, namespace, sample):
    manifest = yaml.safe_load((SAMPLES / f"{sample}.yaml").read_text())
    finalizers = ["kopf.zalando.org/KopfFinalizerMarker"]
    manifest["metadata"] = {"name": "taken-over", "finalizers": finalizers}
    apply(cluster, namespace, manifest)
    kind = f"{manifest['kind']}.{manifest['apiVersion'].partition('/')[0]}".lower()
    done = cluster.kubectl("delete", kind, "taken-over", "-n", namespace, TIMEOUT)
    assert done.returncode == 0, done.stderr


def test_over_three_resyncs_nothing_is_written_but_leases(cluster, operator, namespace):
    """Once all is told that there was to tell: who writes at each resync never comes to that."""
    cluster.stop("operator")
    cluster.start_operator("steady", flags=("--resync-seconds=0.5",))
    try:
        apply(cluster, namespace, modal_job("steady"))
        until_accepted(cluster, "modaljob", "steady", namespace)
        cluster.until(lambda: passes(cluster) > 0, "the first passes")
        cluster.until(lambda: written(cluster) == [], "three resyncs without a write")
    finally:
        cluster.stop("steady")
        resume(cluster)


def written(cluster) -> list[str]:
    """While each object is looked at three times."""
    size, before, objects = cluster.audited, passes(cluster), cached_jobs(cluster)
    assert objects > 0
    cluster.until(lambda: passes(cluster) >= before + 4 * objects, "each object to be looked at three times more")
    return [row["requestURI"] for row in cluster.audit(size) if is_write(row) and "/leases/" not in row["requestURI"]]


def passes(cluster) -> int:
    return metric(cluster, 'controller_runtime_reconcile_total{controller="ModalJob",result="success"}')


def cached_jobs(cluster) -> int:
    return metric(cluster, 'skysail_cache_objects{kind="modaljobs.modal-operator.io"}')


def metric(cluster, name: str) -> int:
    lines = [line for line in cluster.get("/metrics")[1].splitlines() if line.startswith(name)]
    return int(float(lines[0].split()[-1])) if lines else 0


def is_write(row: dict) -> bool:
    return row["user"].get("username") == "system:serviceaccount:skysail-system:skysail" and row["verb"] in {
        "create",
        "update",
        "patch",
        "delete",
    }


def test_nothing_that_the_operator_asked_for_was_forbidden(cluster, operator, audited):
    refused = [
        (row["verb"], row["requestURI"])
        for row in cluster.audit(audited)
        if row["user"].get("username", "").startswith("system:serviceaccount:skysail-system")
        # Nothing can be made in a namespace that ends, which is answered by 403, too.
        and row.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid"
    ]
    assert refused == []


@pytest.mark.parametrize("port", [8080, 8081])
def test_health_readiness_and_metrics_on_both_ports(cluster, operator, port):
    cluster.until(lambda: leads(cluster), "the operator to lead")
    assert cluster.get("/healthz", port) == (200, "ok\n")
    assert cluster.get("/readyz", port) == (200, "ok\n")
    code, page = cluster.get("/metrics", port)
    assert code == 200
    assert "skysail_leader 1.0" in page
    for name in ("workqueue_depth", "controller_runtime_reconcile_total", "skysail_event_loop_lag_seconds"):
        assert name in page


def test_a_kind_that_is_removed_and_comes_back_is_watched_again(cluster, operator, namespace):
    name = "modalfunctions.modal-operator.io"
    definition = cluster.kubectl("get", "crd", name, "-o", "json").stdout
    kept = json.loads(definition)
    kept = {"apiVersion": kept["apiVersion"], "kind": kept["kind"], "metadata": {"name": name}, "spec": kept["spec"]}
    assert cluster.kubectl("delete", "crd", name, TIMEOUT).returncode == 0
    cluster.until(lambda: name not in cluster.get("/metrics")[1], "the kind to be let go")
    assert cluster.get("/readyz")[0] == 200
    apply(cluster, "default", kept)
    cluster.until(
        lambda: cluster.kubectl("get", "modalfunctions").returncode == 0 and name in cluster.get("/metrics")[1],
        "the kind to be watched again",
    )
    function = {
        "apiVersion": "modal-operator.io/v1alpha1",
        "kind": "ModalFunction",
        "metadata": {"name": "again"},
        "spec": {"image": "x", "handler": "a.b"},
    }
    apply(cluster, namespace, function)
    until_accepted(cluster, "modalfunction", "again", namespace)


def test_a_second_replica_waits_warm_and_takes_over_when_the_first_is_stopped(cluster, operator, namespace):
    cluster.until(lambda: leads(cluster), "the first to lead")
    cluster.start_operator("standby", flags=OWN, health_port=8090)
    try:
        assert "skysail_leader 0.0" in cluster.get("/metrics", 8090)[1]
        apply(cluster, namespace, modal_job("before"))
        until_accepted(cluster, "modaljob", "before", namespace)
        cluster.stop("operator")
        # Released on SIGTERM: the successor need not wait until the lease runs out.
        holder = ("get", "lease", "skysail-operator", "-n", "skysail-system", "-o", "jsonpath={.spec.holderIdentity}")
        cluster.until(lambda: cluster.kubectl(*holder).stdout.startswith("standby_"), "the standby to lead")
        apply(cluster, namespace, modal_job("after"))
        until_accepted(cluster, "modaljob", "after", namespace)
    finally:
        cluster.stop("standby")
        resume(cluster)


def run_skysail(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "skysail", *arguments], capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--kubeconfig=/nowhere/config",), ["/nowhere/config", "--kubeconfig", "skysail up"]),
        (("--log-level=loud",), ["log_level", "loud"]),
        (("--config=/nowhere/settings",), ["/nowhere/settings"]),
    ],
)
def test_a_wrong_start_is_one_sentence_and_exit_code_2(arguments, words):
    done = run_skysail("run", *arguments)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_a_cluster_that_does_not_answer_is_one_sentence_and_exit_code_2(cluster, tmp_path):
    text = cluster.kubeconfig.read_text()
    port = next(part for part in text.split("https://127.0.0.1:")[1].split())
    (tmp_path / "config").write_text(text.replace(f"127.0.0.1:{port}", "127.0.0.1:1"))
    done = run_skysail("run", f"--kubeconfig={tmp_path / 'config'}")
    assert done.returncode == 2
    assert "does not answer" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_without_rights_the_operator_says_so_and_ends(cluster):
    stranger = cluster.user("stranger")
    done = run_skysail("run", f"--kubeconfig={stranger}", "--health-port=0", "--webhook-port=0")
    assert done.returncode == 2
    assert "kubectl apply -f config/rbac/role.yaml" in done.stderr
    assert "stranger" in done.stderr


def test_only_the_named_namespaces_are_worked_on(cluster, operator, namespace):
    cluster.stop("operator")
    with fresh_namespace(cluster) as mine:
        cluster.start_operator("narrow", flags=(f"--namespace={mine}",), health_port=8091)
        try:
            apply(cluster, namespace, modal_job("elsewhere"))
            apply(cluster, mine, modal_job("mine"))
            until_accepted(cluster, "modaljob", "mine", mine)
            assert conditions(cluster, "modaljob", "elsewhere", namespace) == {}
        finally:
            cluster.stop("narrow")
            resume(cluster)
