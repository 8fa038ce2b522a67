"""Updates while somebody asks all the time: no request fails, and a bad revision never answers one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.kubectl import apply, get, ok
from tests.support.serving import (
    ask_on,
    condition,
    linear,
    model_deployment,
    offer,
    source,
    told,
    until_ready,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

NAME = "m"
QUESTION = {"features": [[1.0]]}


@pytest.fixture(scope="module")
def operator(cluster: Cluster) -> Iterator[str]:
    """One that does not wait long to see whether a server stays ready."""
    cluster.start_operator("operator", env={"SKYSAIL_MIN_READY_SECONDS": "2"}, restart=True)
    yield "operator"
    cluster.end_operator()


@pytest.fixture
def served(node: Cluster, operator: str, namespace: str) -> str:
    """A namespace with a model that answers 1, and with somebody who asks it."""
    files = {f"m{number}_onnx": linear(np.array([[float(number)]])) for number in (1, 2)}
    offer(node, namespace, **files, broken_onnx=b"\x08\x08\x3a\x00", page_onnx=b"<!DOCTYPE html>")
    apply(node, namespace, model_deployment(NAME, source(namespace, "m1.onnx")))
    until_ready(node, namespace, NAME, 1)
    ask_on(node, namespace, f"http://{NAME}-service:8000/predict", QUESTION)
    until_answer(node, namespace, 1)
    return namespace


def test_a_good_revision_takes_over_and_no_request_fails(node: Cluster, served: str) -> None:
    change(node, served, modelURI=source(served, "m2.onnx"), version="v2")
    model = until_ready(node, served, NAME, 2)
    assert (model["status"]["version"], condition(model, "UpdateFailed").get("status")) == ("v2", "False")
    until_answer(node, served, 2)
    assert took_over(answers(node, served))

    done = skysail(node, "rollback", NAME, "-n", served)
    assert done.stdout.startswith(f"{NAME} goes back to revision 1 (v1, served).")
    until_answer(node, served, 1)
    model = until_ready(node, served, NAME, 1)
    assert condition(model, "RolledBack")["reason"] == "Pinned"
    assert skysail(node, "rollback", NAME, "-n", served, "--undo").returncode == 0
    until_ready(node, served, NAME, 2)
    until_answer(node, served, 2)
    assert set(answers(node, served)) == {"1", "2"}
    # Prepared once each, however often they are served.
    assert len(get(node, served, "controllerrevisions")["items"]) == 2
    # A server that was told to go answers for as long as somebody has not heard of it.
    predict = ("predict", NAME, "-n", served, "--data", "[[21.0]]")
    node.until(lambda: skysail(node, *predict).stdout == '{"predictions":[[42.0]]}\n', "the new one to answer us")


@pytest.mark.parametrize(
    ("spec", "failed", "words"),
    [
        ({"modelURI": "broken.onnx"}, ("Deploy", "CrashLoop", 65), "broken"),
        ({"modelURI": "page.onnx"}, ("Layout", "UnsupportedFormat", 65), "which is a web page"),
        ({"modelURI": "missing.onnx"}, ("Download", "NotFound", 78), "missing.onnx"),
        ({"modelURI": "m2.onnx", "sha256": "0" * 64}, ("Download", "ChecksumMismatch", 65), "sha256"),
        ({"modelURI": "m2.onnx", "validateScript": "refuses.py"}, ("Validate", "ValidationFailed", 37), "37"),
        ({"modelURI": "m2.onnx", "validateScript": "nowhere.py"}, ("Validate", "ScriptNotFound", 78), "nowhere.py"),
        ({"modelURI": "m2.onnx", "resources": {"requests": {"cpu": "-1"}}}, ("Deploy", "InvalidSpec", None), '"-1"'),
    ],
)
def test_a_bad_revision_never_answers_and_is_told(
    node: Cluster, served: str, spec: dict[str, Any], failed: tuple[str, str, int | None], words: str
) -> None:
    apply(node, served, script_of(NAME, "refuses.py", "raise SystemExit(37)"))
    change(node, served, **{**spec, "modelURI": source(served, spec["modelURI"])}, version="v2")
    node.until(lambda: "failure" in get(node, served, "modeldeployment", NAME)["status"], "the failure to be told")
    node.until(
        lambda: condition(get(node, served, "modeldeployment", NAME), "UpdateFailed").get("status") == "True",
        "UpdateFailed",
    )
    model = get(node, served, "modeldeployment", NAME)
    failure = model["status"]["failure"]
    assert (failure["step"], failure["reason"], failure.get("exitCode")) == failed, failure
    assert words in failure["message"] + failure.get("log", "")
    assert (model["status"]["phase"], model["status"]["version"]) == ("Ready", "v1")
    assert condition(model, "Ready")["status"] == "True"
    assert condition(model, "UpdateFailed")["reason"] in {failed[1], "UpdateFailed"}
    count = told(node, served)[-1].count
    node.until(lambda: told(node, served)[-1].count > count + 100, "the one who asks to go on")
    assert answers(node, served) == ["1"]

    mended = {"validateScript": "", "sha256": None, "resources": {"requests": {"cpu": "100m"}}}
    change(node, served, modelURI=source(served, "m2.onnx"), version="v3", **mended)
    node.until(lambda: get(node, served, "modeldeployment", NAME)["status"]["version"] == "v3", "the good one")
    until_answer(node, served, 2)
    assert took_over(answers(node, served))
    assert condition(get(node, served, "modeldeployment", NAME), "UpdateFailed")["status"] == "False"


def test_servers_come_and_go_with_their_load(node: Cluster, served: str) -> None:
    """The autoscaler is the real one, and what it sees is the real use."""
    change(node, served, autoscale=True, minReplicas=1, maxReplicas=2, targetCPUUtilizationPercentage=1)
    node.until(lambda: replicas(node, served) == 2, "the load to be shared")
    change(node, served, targetCPUUtilizationPercentage=1000)
    ok(node, "patch", "hpa", NAME, "-n", served, "--type=merge", "-p", CONCURRENCY)
    node.until(lambda: replicas(node, served) == 1, "one server to be enough")
    change(node, served, autoscale=False, minReplicas=2)
    node.until(lambda: replicas(node, served) == 2, "a fixed number of servers")
    assert node.kubectl("get", "hpa", NAME, "-n", served).returncode != 0
    assert answers(node, served) == ["1"]


def test_deleted_under_load_it_takes_everything_with_it(node: Cluster, served: str) -> None:
    ok(node, "delete", "modeldeployment", NAME, "-n", served)
    kinds = "deployments,replicasets,jobs,hpa,controllerrevisions"
    node.until(lambda: ok(node, "get", kinds, "-n", served, "-o", "name") == "", "its children to go")
    node.until(lambda: told(node, served)[-1].answer.startswith("failed"), "nobody to answer")


CONCURRENCY = '{"spec": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}}}'


def change(node: Cluster, namespace: str, **spec: Any) -> None:
    ok(node, "patch", "modeldeployment", NAME, "-n", namespace, "--type=merge", "-p", json.dumps({"spec": spec}))


def answers(node: Cluster, namespace: str) -> list[str]:
    """Each answer that differs from the one before, in order, in short."""
    short = [row.answer.removeprefix('{"predictions":[[').removesuffix(".0]]}") for row in told(node, namespace)]
    return [answer for place, answer in enumerate(short) if place == 0 or short[place - 1] != answer]


def took_over(seen: list[str]) -> bool:
    """The old one answered first, then both for as long as the new one was on trial, and no request failed."""
    return (seen[0], set(seen)) == ("1", {"1", "2"})


def until_answer(node: Cluster, namespace: str, answer: int) -> None:
    node.until(lambda: answers(node, namespace)[-1:] == [str(answer)], f"{answer} to be answered")


def replicas(node: Cluster, namespace: str) -> int:
    return get(node, namespace, "deployment", NAME)["status"].get("readyReplicas", 0)


def script_of(model: str, name: str, text: str) -> dict[str, Any]:
    metadata = {"name": f"{model}-validate"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {name: text}}


def skysail(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    command = [sys.executable, "-m", "skysail", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
