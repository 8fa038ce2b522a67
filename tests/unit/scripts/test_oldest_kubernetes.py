from __future__ import annotations

import subprocess

import yaml

from scripts import oldest_kubernetes
from scripts.chart import CHART, ROOT


def test_oldest_version_is_the_one_that_chart_and_documents_name():
    version = oldest_kubernetes.oldest().version
    minor = version.removeprefix("v").rpartition(".")[0]
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"] == f">={minor}.0-0"
    for page in ("README.md", "docs/install.md"):
        assert version.removeprefix("v") in (ROOT / page).read_text()
    assert f"Kubernetes {minor} or newer" in (ROOT / "docs" / "install.md").read_text()


def test_write_programs_takes_etcd_from_the_current_control_plane(tmp_path):
    for name in ("old", "new"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (tmp_path / name).chmod(0o755)
    programs = tmp_path / "programs"
    programs.mkdir()
    oldest_kubernetes.write_programs(programs, tmp_path / "old", tmp_path / "new")
    printed = {path.name: subprocess.check_output([path, "--flag"], text=True).strip() for path in programs.iterdir()}
    assert printed == {
        "etcd": "new etcd --flag",
        **{
            name: f"old {name} --flag"
            for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
        },
    }


def test_smoke_tests_exist():
    assert [path for path in oldest_kubernetes.SMOKE if not (ROOT / path).is_file()] == []
