"""What pods report about their training, by POST and by a printed line: real pods on the node `local`.

The pods sleep, and what a training program would send is sent from inside them, with the token that they have.
"""

from __future__ import annotations

import json
import secrets
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.kubectl import apply, fresh_namespace, get, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

# As Hugging Face's callback does it, but for what is printed.
POST = """
import json, os, ssl, sys, urllib.error, urllib.request
env, (token, method, body) = os.environ, sys.argv[1:]
if not token:
    token = open(env["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read().strip()
headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
url = env["KUBEFLOW_TRAINER_SERVER_URL"]
request = urllib.request.Request(url, data=body.encode() or None, headers=headers, method=method)
trust = ssl.create_default_context(cafile=env["KUBEFLOW_TRAINER_SERVER_CA_CERT"])
try:
    with urllib.request.urlopen(request, timeout=240, context=trust) as reply:
        print(json.dumps([reply.status, json.load(reply)]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, json.load(error)]))
"""
API_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"
OWN_TOKEN = "/var/run/secrets/kubeflow/trainer/token"


@pytest.fixture(scope="module")
def place(node: Cluster, operator: str) -> Iterator[str]:
    """A namespace with two jobs, each of one worker that runs."""
    with fresh_namespace(node) as namespace:
        for name in ("one", "other"):
            apply(node, namespace, training(name, "sleep 3600", checkpointDir="/checkpoints"))
        for name in ("one", "other"):
            until(node, namespace, name, lambda shown: shown.get("phase") == "Running", "to run")
        yield namespace


def training(name: str, script: str, **spec: Any) -> dict[str, Any]:
    wanted = {"framework": "pytorch", "image": "python:3", "command": ["sh", "-c", script], **spec}
    return {"apiVersion": "ml.example.com/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name}, "spec": wanted}


def shown(node: Cluster, namespace: str, name: str) -> dict[str, Any]:
    return get(node, namespace, "trainingjob", name).get("status", {})


def until(node: Cluster, namespace: str, name: str, is_so: Any, what: str) -> dict[str, Any]:
    node.until(lambda: is_so(shown(node, namespace, name)), f"{name} {what}")
    return shown(node, namespace, name)


def pod(node: Cluster, namespace: str, name: str) -> str:
    label = f"trainingjob.ml.example.com/name={name}"
    return ok(node, "get", "pods", "-n", namespace, "-l", label, "-o", "jsonpath={.items[0].metadata.name}")


def inside(node: Cluster, namespace: str, name: str, *command: str) -> str:
    return ok(node, "exec", "-n", namespace, pod(node, namespace, name), "--", *command)


def post(
    node: Cluster, namespace: str, body: Any, *, name: str = "one", token: str = "", method: str = "POST"
) -> tuple[int, Any]:
    text = body if isinstance(body, str) else json.dumps(body)
    code, answer = json.loads(inside(node, namespace, name, "python3", "-c", POST, token, method, text))
    return code, answer


def test_a_report_as_the_trainer_protocol_has_it_is_in_the_status(node: Cluster, place: str) -> None:
    loss = f"0.{secrets.randbelow(10**6)}1"
    told = {
        "progressPercentage": 41,
        "estimatedRemainingSeconds": 77,
        "metrics": [{"name": "loss", "value": loss}, {"name": "current_step", "value": "120"}],
        "lastUpdatedTime": "2026-01-01T00:00:00.123456+00:00",
    }
    code, answer = post(node, place, {"trainerStatus": told})
    assert (code, answer) == (200, {"trainerStatus": told})
    progress = until(node, place, "one", lambda now: "progress" in now, "to have progress")["progress"]
    assert (progress["percent"], progress["step"], progress["estimatedRemainingSeconds"]) == (41, 120, 77)
    assert {"name": "loss", "value": loss} in progress["metrics"]
    for figure in (
        f'trainingjob_progress_percent{{name="one",namespace="{place}"}} 41.0',
        f'trainingjob_loss{{name="one",namespace="{place}"}} {float(loss)}',
    ):
        node.until(lambda figure=figure: figure in node.get("/metrics")[1], figure)  # type: ignore[misc]


def test_the_last_of_many_reports_is_written_and_few_writes_are_made(node: Cluster, place: str) -> None:
    began = time.monotonic()
    for percent in (50, 51, 52, 53):
        assert post(node, place, {"trainerStatus": {"progressPercentage": percent}}, name="other")[0] == 200
    until(node, place, "other", lambda now: now.get("progress", {}).get("percent") == 53, "to tell the last word")
    took = time.monotonic() - began
    written = [
        row
        for row in node.audit()
        if row["verb"] == "patch"
        and row["responseStatus"]["code"] == 200
        and row["objectRef"].get("subresource") == "status"
        and (row["objectRef"].get("namespace"), row["objectRef"]["name"]) == (place, "other")
    ]
    assert len(written) <= 1 + took / 10, "ten seconds are between two of them, however slow the sender was"


def test_only_a_pod_of_the_job_may_report_for_it(node: Cluster, place: str) -> None:
    uid = get(node, place, "trainingjob", "one")["metadata"]["uid"]
    audience = f"--audience=trainingjobs.ml.example.com/{uid}"
    create = ("create", "token", "default", "-n", place)
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={pod(node, place, 'other')}")
    tokens = {
        "nonsense": "nonsense",
        "of the other job": inside(node, place, "other", "cat", OWN_TOKEN),
        "for the API server": inside(node, place, "one", "cat", API_TOKEN),
        "of no pod": ok(node, *create, audience).strip(),
        "of a pod of the other job": ok(node, *create, audience, *bound).strip(),
        "of the right pod for somebody else": ok(
            node, *create, "--audience=else", bound[0], f"--bound-object-name={pod(node, place, 'one')}"
        ).strip(),
    }
    for whose, token in tokens.items():
        code, answer = post(node, place, {"trainerStatus": {"progressPercentage": 99}}, token=token)
        assert (code, answer["kind"], answer["reason"]) == (401, "Status", "Unauthorized"), whose
        assert "TrainingJob" in answer["message"]
    assert shown(node, place, "one").get("progress", {}).get("percent") != 99


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("{", "is invalid"),
        ("[]", "Expected `object`"),
        ("{}", "set `trainerStatus`"),
        ({"trainerStatus": {"progressPercentage": 101}}, "<= 100"),
        ({"trainerStatus": {"metrics": [{"name": "loss", "value": 0.5}]}}, "metrics[0].value"),
        ({"checkpoint": {"path": "/elsewhere/1"}}, "outside spec.checkpointDir (/checkpoints)"),
        ({"checkpoint": {"path": "/checkpoints/../etc"}}, "outside spec.checkpointDir"),
    ],
)
def test_what_cannot_be_used_is_answered_by_a_sentence(node: Cluster, place: str, body: Any, says: str) -> None:
    code, answer = post(node, place, body)
    assert code == 400
    assert says in answer["message"]


def test_nothing_can_be_asked_for_there(node: Cluster, place: str) -> None:
    assert post(node, place, "", method="GET")[0] == 405


def test_a_checkpoint_that_was_posted_is_known_when_the_answer_comes(node: Cluster, place: str) -> None:
    step = secrets.randbelow(10**6)
    path = f"/checkpoints/{step}"
    assert post(node, place, {"checkpoint": {"path": path, "step": step}}) == (
        200,
        {"checkpoint": {"path": path, "step": step}},
    )
    known = shown(node, place, "one")["checkpoint"]
    assert (known["path"], known["step"]) == (path, step)


def test_an_attempt_resumes_from_the_line_that_the_last_one_printed(node: Cluster, operator: str, place: str) -> None:
    step = 1 + secrets.randbelow(10**6)
    first = f"echo skysail-checkpoint step={step} path=/checkpoints/{step}; exit 3"
    script = f'[ "$TRAINING_ATTEMPT" = 0 ] && {{ {first}; }}; echo "resumes from $RESUME_FROM at $RESUME_STEP"'
    apply(node, place, training("again", script, checkpointDir="/checkpoints"))
    after = until(node, place, "again", lambda now: now.get("phase") == "Succeeded", "to succeed")
    assert [attempt["cause"] for attempt in after["attempts"]] == ["Failed", "Succeeded"]
    assert after["attempts"][1]["resumedFrom"]["step"] == step
    assert f"resumes from /checkpoints/{step} at {step}" in ok(node, "logs", "-n", place, pod(node, place, "again"))


def test_a_line_that_was_printed_while_no_operator_ran_is_found(node: Cluster, operator: str, place: str) -> None:
    script = (
        "while ! [ -e /checkpoints/go ]; do sleep 0.1; done; echo skysail-checkpoint path=/elsewhere/1; "
        "echo INFO:root:skysail-checkpoint step=7 path=/checkpoints/7; touch /checkpoints/gone; sleep 3600"
    )
    apply(node, place, training("quiet", script, checkpointDir="/checkpoints"))
    until(node, place, "quiet", lambda now: now.get("phase") == "Running", "to run")
    node.stop(operator)
    inside(node, place, "quiet", "touch", "/checkpoints/go")
    inside(node, place, "quiet", "sh", "-c", "while ! [ -e /checkpoints/gone ]; do sleep 0.1; done")
    node.resume(operator)
    known = until(node, place, "quiet", lambda now: "checkpoint" in now, "to have a checkpoint")["checkpoint"]
    assert (known["path"], known["step"]) == ("/checkpoints/7", 7)
    events = ("get", "events", "-n", place, "--field-selector=reason=InvalidCheckpoint", "-o", "json")
    node.until(lambda: json.loads(ok(node, *events))["items"], "the refused line to be told of")
    assert "outside spec.checkpointDir" in json.loads(ok(node, *events))["items"][0]["message"]


def test_checkpoints_outlive_their_job_and_another_one_resumes_from_them(node: Cluster, operator: str) -> None:
    step = 1 + secrets.randbelow(10**6)
    with fresh_namespace(node) as namespace:
        script = f"echo skysail-checkpoint step={step} path=/checkpoints/{step}; touch /checkpoints/{step}; sleep 3600"
        apply(node, namespace, training("mnist", script, checkpointDir="/checkpoints"))
        until(node, namespace, "mnist", lambda now: "checkpoint" in now, "to have a checkpoint")
        ok(node, "delete", "trainingjob", "mnist", "-n", namespace, "--cascade=foreground")
        kept = get(node, namespace, "pvc", "mnist-checkpoints")["metadata"]
        assert (kept.get("ownerReferences"), kept["labels"]["trainingjob.ml.example.com/name"]) == (None, "mnist")
        look = 'ls /checkpoints; echo "resumes from $RESUME_FROM"'
        apply(node, namespace, training("mnist", look, checkpointDir="/checkpoints"))
        more = {"checkpointDir": "/checkpoints", "checkpoint": {"claimName": "mnist-checkpoints"}}
        apply(node, namespace, training("more", look, **more))
        for name in ("mnist", "more"):
            until(node, namespace, name, lambda now: now.get("phase") == "Succeeded", "to succeed")
        fresh, resumed = (ok(node, "logs", "-n", namespace, pod(node, namespace, name)) for name in ("mnist", "more"))
        assert (str(step) in fresh, f"resumes from /checkpoints/{step}" in resumed) == (False, True)
        assert shown(node, namespace, "mnist")["checkpointVolume"]["claimName"].startswith("mnist-checkpoints-")
