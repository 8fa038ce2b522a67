"""What a pod is given so that it can report."""

from __future__ import annotations

from typing import Any

from skysail.kinds.training.children.manifests import build_children
from skysail.kinds.training.children.progress_endpoint import ProgressEndpoint, token_audience
from tests.unit.kinds.training.samples import job

REPORTING = ProgressEndpoint("https://skysail-progress.skysail-system.svc:8082", "-----BEGIN CERTIFICATE-----\n")
FOLDER = "/var/run/secrets/kubeflow/trainer"


def template(progress_endpoint: ProgressEndpoint | None = REPORTING, **spec: Any) -> dict[str, Any]:
    [(_, manifest)] = build_children(job(**spec), 0, None, progress_endpoint).jobs
    return manifest["spec"]["template"]


def test_address_token_and_authority_are_where_the_trainer_protocol_has_them():
    container = template()["spec"]["containers"][0]
    env = {row["name"]: row.get("value") for row in container["env"] if row["name"].startswith("KUBEFLOW")}
    assert env == {
        "KUBEFLOW_TRAINER_SERVER_URL": "https://skysail-progress.skysail-system.svc:8082"
        "/apis/ml.example.com/v1alpha1/namespaces/ml-jobs/trainingjobs/mnist/status",
        "KUBEFLOW_TRAINER_SERVER_CA_CERT": f"{FOLDER}/ca.crt",
        "KUBEFLOW_TRAINER_SERVER_TOKEN": f"{FOLDER}/token",
    }
    assert {"name": "kubeflow-trainer-token", "mountPath": FOLDER, "readOnly": True} in container["volumeMounts"]


def test_the_token_is_for_this_job_alone_and_the_authority_comes_with_the_pod():
    made = template()
    [volume] = [row for row in made["spec"]["volumes"] if row["name"] == "kubeflow-trainer-token"]
    token, authority = volume["projected"]["sources"]
    assert token["serviceAccountToken"]["audience"] == token_audience(job())
    assert job().metadata.uid in token_audience(job())
    [item] = authority["downwardAPI"]["items"]
    assert item["fieldRef"]["fieldPath"] == "metadata.annotations['skysail.dev/progress-ca']"
    assert made["metadata"]["annotations"]["skysail.dev/progress-ca"] == REPORTING.authority


def test_annotations_of_the_user_stay_and_ours_cannot_be_taken_away():
    theirs = {"team": "vision", "skysail.dev/progress-ca": "mine"}
    made = template(podTemplate={"metadata": {"annotations": theirs}})
    assert made["metadata"]["annotations"] == {"team": "vision", "skysail.dev/progress-ca": REPORTING.authority}


def test_where_nobody_listens_nothing_is_asked_for():
    made = template(None)
    assert "annotations" not in made["metadata"]
    assert made["spec"]["volumes"] == []
    assert not [row for row in made["spec"]["containers"][0]["env"] if row["name"].startswith("KUBEFLOW")]
