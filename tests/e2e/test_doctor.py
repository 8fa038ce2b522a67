"""`skysail doctor cluster` and `skysail report` on the real control plane."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

from tests.support.kubectl import apply, fresh_namespace

if TYPE_CHECKING:
    from tests.support.cluster import Cluster

CANARY = "canary-5ec2e7-value"


def skysail(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "SKYSAIL_HOME": str(cluster.home.root)}
    command = [sys.executable, "-m", "skysail", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)


def outcomes(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    return {check["name"]: check["outcome"] for report in json.loads(done.stdout) for check in report["checks"]}


def test_doctor_sound_installation_passes_and_a_missing_crd_fails(cluster, operator):
    cluster.until_asking()
    found = outcomes(skysail(cluster, "doctor", "cluster", "-o", "json"))
    passed = ("version", "clock", "crds", "operator", "rbac", "webhooks", "certificates")
    assert {name: found.get(name) for name in passed} == dict.fromkeys(passed, "ok")
    name = "spendaccounts.skysail.dev"
    try:
        assert cluster.kubectl("label", "crd", name, "app.kubernetes.io/managed-by-").returncode == 0
        done = skysail(cluster, "doctor", "cluster")
        assert done.returncode == 1
        assert "skysail crds apply --take-over" in done.stdout
        named = skysail(cluster, "doctor", "cluster", "-o", "name")
        assert (named.returncode, "cluster/crds" in named.stdout.splitlines()) == (1, True)
    finally:
        cluster.kubectl("label", "crd", name, "app.kubernetes.io/managed-by=skysail", "--overwrite")


def test_doctor_cluster_that_does_not_answer_is_one_failed_check(cluster, tmp_path):
    text = cluster.kubeconfig.read_text()
    port = text.split("https://127.0.0.1:")[1].split()[0]
    (tmp_path / "config").write_text(text.replace(f"127.0.0.1:{port}", "127.0.0.1:1"))
    done = skysail(cluster, "doctor", "cluster", "-o", "json", f"--kubeconfig={tmp_path / 'config'}")
    assert done.returncode == 1
    assert outcomes(done) == {"version": "failed"}


def test_report_has_conditions_and_no_secret(cluster, operator, tmp_path):
    with fresh_namespace(cluster) as namespace:
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"key": CANARY}}
        spec = {"framework": "pytorch", "image": "x", "command": ["train", f"--token={CANARY}"]}
        job = {
            "apiVersion": "ml.example.com/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "reported", "annotations": {"note": CANARY}},
            "spec": spec,
        }
        apply(cluster, namespace, secret, job)
        archive = tmp_path / "report.tar.gz"
        done = skysail(cluster, "report", f"--output={archive}")
        assert done.returncode == 0, done.stderr
        with tarfile.open(archive) as tar:
            texts = {member.name: tar.extractfile(member).read().decode() for member in tar.getmembers()}  # type: ignore[union-attr]
    assert "reported" in texts["skysail-report/objects/trainingjobs.ml.example.com.json"]
    assert "kubernetes" in texts["skysail-report/versions.json"]
    assert "crds" in texts["skysail-report/doctor.txt"]
    assert '"message"' in texts["skysail-report/logs/local/operator.log"]
    assert not [name for name, text in texts.items() if CANARY in text]
