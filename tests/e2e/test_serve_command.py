"""`skysail serve` on a cluster with node `local`: a file on this machine becomes a served model."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import onnx_models
from tests.support.kubectl import ok

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.cluster import Cluster


def skysail(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    env: dict[str, Any] = {**os.environ, "SKYSAIL_HOME": str(cluster.home.root), "KUBECONFIG": str(cluster.kubeconfig)}
    command = [sys.executable, "-m", "skysail", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.usefixtures("operator")
def test_serve_uploads_a_model_and_prints_a_request_that_works(node: Cluster, namespace: str, tmp_path: Path) -> None:
    file = onnx_models.save_mixing(tmp_path / "mixing.onnx")
    done = skysail(node, "serve", str(file), "-n", namespace)
    assert done.returncode == 0, done.stderr
    request = re.search(r"skysail (predict .*)", done.stdout)
    assert request is not None, done.stdout
    answer = skysail(node, *shlex.split(request[1]))
    assert list(json.loads(answer.stdout)) == ["predictions"], answer.stderr
    assert ok(node, "get", "pods", "-n", namespace, "-o", "name").count("mixing-upload") == 0

    (tmp_path / "bad.onnx").write_bytes(bytes(100))
    bad = skysail(node, "serve", str(tmp_path / "bad.onnx"), "-n", namespace, "--name", "mixing")
    assert bad.returncode == 1
    assert "mixing does not serve this version" in bad.stderr
    assert skysail(node, *shlex.split(request[1])).stdout == answer.stdout


def test_serve_what_is_not_there_is_said_before_anything_is_created(node: Cluster, namespace: str) -> None:
    done = skysail(node, "serve", "/no/such/model.onnx", "-n", namespace)
    assert done.returncode == 2
    assert "/no/such/model.onnx not found" in done.stderr
    assert ok(node, "get", "pvc", "-n", namespace, "-o", "name") == ""
