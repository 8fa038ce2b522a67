"""What a tenant writes into the fields of our kinds: names of other namespaces' Secrets, and forms that are refused."""

from __future__ import annotations

import itertools
import json
import secrets
from typing import TYPE_CHECKING, Any

from tests.security.samples import sampled
from tests.security.test_tenants import ml_model, model, training_job
from tests.support.kubectl import ok

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster
    from tests.support.tenant import Attempts, Tenant

Manifest = dict[str, Any]

_PRINT = ["sh", "-c", "env; cat /stolen/* 2>/dev/null; sleep 1000"]
_SHOWN = "trainingjobs,modeldeployments,mlmodels,jobs,pods,deployments,configmaps,controllerrevisions,events"


def _names(namespace: str) -> tuple[str, ...]:
    """Ways to name a Secret of another namespace."""
    path = f"{namespace}/canary"
    return ("canary", path, f"../{path}", f"{namespace}%2fcanary", f"{namespace}.canary", f"{namespace}:canary")


def _thefts(namespace: str) -> Iterator[tuple[str, Manifest]]:
    for place, name in enumerate(_names(namespace)):
        key = {"valueFrom": {"secretKeyRef": {"name": name, "key": "key"}}, "name": "STOLEN"}
        volume = {"name": "stolen", "secret": {"secretName": name, "optional": True}}
        mount = {"name": "stolen", "mountPath": "/stolen"}
        trainer = {"name": "trainer", "env": [key], "volumeMounts": [mount]}
        spec = {"containers": [trainer], "volumes": [volume]}
        whole = {"containers": [{"name": "trainer", "envFrom": [{"secretRef": {"name": name}}]}]}
        yield f"env of a TrainingJob, {name}", training_job(f"env-{place}", command=_PRINT, podTemplate={"spec": spec})
        yield f"envFrom, {name}", training_job(f"from-{place}", command=_PRINT, podTemplate={"spec": whole})
        yield f"env of a model, {name}", model(f"env-{place}", env=[key])
        uri = "s3://bucket/model.onnx"
        yield f"credentials, {name}", model(f"secret-{place}", modelURI=uri, credentialsSecret=name)
        yield f"credentials of an MLModel, {name}", ml_model(f"secret-{place}", modelURL=uri, credentialsSecret=name)


def test_no_field_leads_to_a_secret_of_another_namespace(
    node: Cluster, tenant: Tenant, other_tenant: Tenant, attempts: Attempts
) -> None:
    canary = f"canary-{secrets.token_hex(16)}"
    ok(node, "create", "secret", "generic", "canary", f"--from-literal=key={canary}", "-n", other_tenant.namespace)
    names = []
    for row, manifest in _thefts(other_tenant.namespace):
        done = tenant.kubectl("create", "-f", "-", stdin=json.dumps(manifest))
        names.append(row)
        attempts.record("other namespaces' Secrets: answer", row, held=canary not in done.stderr + done.stdout)
    _until_seen(node, tenant)
    found = _everything(node, tenant.namespace) + node.log("operator") + node.log("agent")
    for row in names:
        attempts.record("other namespaces' Secrets: effect", row, held=canary not in found)


def _until_seen(node: Cluster, tenant: Tenant) -> None:
    """Until the operator has worked on all of them: each has a status, and what came last runs."""

    def has_status() -> bool:
        items = json.loads(tenant.kubectl("get", "trainingjobs,modeldeployments,mlmodels", "-o", "json").stdout)
        return all(item.get("status", {}).get("conditions") for item in items["items"])

    node.until(has_status, "every object to have a status")
    last = training_job("last")
    assert tenant.apply(last).returncode == 0
    phase = ("get", "trainingjob", "last", "-o", "jsonpath={.status.phase}")
    node.until(lambda: tenant.kubectl(*phase).stdout == "Running", "a later job to run")


def _everything(node: Cluster, namespace: str) -> str:
    """All that is written in the namespace but its Secrets, and what its pods have printed."""
    text = ok(node, "get", _SHOWN, "-n", namespace, "-o", "json")
    pods = ok(node, "get", "pods", "-n", namespace, "-o", "name").split()
    return text + "".join(node.kubectl("logs", name, "--all-containers", "-n", namespace).stdout for name in pods)


def test_a_tenants_own_secrets_are_in_no_status_event_or_log(node: Cluster, tenant: Tenant, attempts: Attempts) -> None:
    """The programs that have them fail, and say nothing: what is told of a failure must not hold them."""
    canary = f"canary-{secrets.token_hex(16)}"
    ok(node, "create", "secret", "generic", "own", f"--from-literal=key={canary}", "-n", tenant.namespace)
    key = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "own", "key": "key"}}}
    trainer = {"spec": {"containers": [{"name": "trainer", "env": [key]}]}}
    whole = {"spec": {"containers": [{"name": "trainer", "envFrom": [{"secretRef": {"name": "own"}}]}]}}
    fails: dict[str, Any] = {"command": ["sh", "-c", "exit 3"], "restartPolicy": "Never"}
    server = "s3://bucket/model.onnx"
    rows = (
        training_job("failing", podTemplate=trainer, **fails),
        training_job("failing-whole", podTemplate=whole, **fails),
        training_job("running", podTemplate=trainer),
        training_job("without-program", podTemplate=trainer, command=["/nowhere"], restartPolicy="Never"),
        training_job("without-image", podTemplate=trainer, image="registry.invalid/none:1"),
        training_job("suspended", podTemplate=trainer, suspend=True),
        model("env", env=[key]),
        model("credentials", modelURI=server, credentialsSecret="own"),
        model("from-host", modelURI="https://models.example.com/m.onnx", credentialsSecret="own"),
        model("from-hub", modelURI="hf://owner/name", credentialsSecret="own"),
        model("from-registry", modelURI="oci://registry.invalid/m:1", credentialsSecret="own"),
        ml_model("credentials", modelURL=server, credentialsSecret="own"),
    )
    for manifest in rows:
        done = tenant.kubectl("create", "-f", "-", stdin=json.dumps(manifest))
        assert done.returncode == 0, done.stderr
    _until_seen(node, tenant)
    shown = _everything(node, tenant.namespace)
    claims = ok(node, "get", "cloudinstances", "-o", "json")
    logs = {name: node.log(name) for name in ("operator", "agent")}
    for manifest in rows:
        name = f"{manifest['kind']} {manifest['metadata']['name']}"
        attempts.record("canary secrets", f"{name}: objects, events and logs of pods", held=canary not in shown)
        attempts.record("canary secrets", f"{name}: claims", held=canary not in claims)
        for log, text in logs.items():
            attempts.record("canary secrets", f"{name}: log of the {log}", held=canary not in text)


_LABEL_SELECTOR = {"trainingjob.ml.example.com/uid": "00000000-0000-0000-0000-000000000000"}
# Refused by schema, rule or webhook. Each of them would take over something that is Skysail's own, or lead inside.
_REFUSED: dict[str, Manifest] = {
    "label by which pods are found": training_job(podTemplate={"metadata": {"labels": _LABEL_SELECTOR}}),
    "label of the Job controller": training_job(podTemplate={"metadata": {"labels": {"job-name": "x"}}}),
    "restart policy of pods": training_job(podTemplate={"spec": {"restartPolicy": "Always"}}),
    "host name of pods": training_job(podTemplate={"spec": {"hostname": "x"}}),
    "containers that replace ours": training_job(podTemplate={"spec": {"containers": {"name": "x"}}}),
    "a container without name": training_job(podTemplate={"spec": {"containers": [{"image": "x"}]}}),
    "variables of ours": training_job(
        podTemplate={"spec": {"containers": [{"name": "trainer", "env": [{"name": "WORLD_SIZE", "value": "9"}]}]}}
    ),
    "checkpoints over the token": training_job(checkpointDir="/var/run/secrets/kubernetes.io/serviceaccount"),
    "checkpoints over the root": training_job(checkpointDir="/"),
    "a list as hyperparameter": training_job(hyperparameters={"a": ["b"]}),
    "no workers": training_job(workers=0),
    "more workers than numbers": training_job(workers=2**40),
    "metadata of a cloud": model(modelURI="http://169.254.169.254/latest/meta-data"),
    "the API server": model(modelURI="https://10.0.0.1/api"),
    "Teredo": model(modelURI="http://[2001:0:7f00:1::1]/m.onnx"),
    "a password in the address": model(modelURI="https://me:secret@example.com/m.onnx"),
    "a folder of others": model(modelURI="pvc://claim/../other"),
    "a script at the metadata": model(validateScript="http://169.254.169.254/x.py"),
    "control characters in a script": model(validateScript="a\nb.py"),
    "a variable of the server": model(env=[{"name": "MODEL_URI", "value": "x"}]),
    "no size": ml_model(storageSize="-1Gi"),
    "no address": ml_model(modelURL=""),
    "loopback": ml_model(modelURL="http://127.0.0.1/m.tar.gz"),
    "an unknown framework": ml_model(framework="sh"),
}
# Other ways to write the same object.
_WAYS = (("create", "-f", "-"), ("apply", "--server-side", "-f", "-"), ("create", "--validate=false", "-f", "-"))


@sampled(5)
def test_what_is_refused_is_refused_by_every_way_to_write_it(tenant: Tenant, attempts: Attempts, step: int) -> None:
    for (row, manifest), way in list(itertools.product(_REFUSED.items(), _WAYS))[::step]:
        done = tenant.kubectl(*way, stdin=json.dumps(manifest))
        attempts.record("admission", f"{row} by {' '.join(way[:2])}", held=done.returncode != 0, detail=manifest)


def test_what_is_refused_is_refused_as_a_change(tenant: Tenant, attempts: Attempts) -> None:
    good = {manifest["kind"]: manifest for manifest in (training_job(suspend=True), model(), ml_model())}
    for manifest in good.values():
        assert tenant.apply(manifest).returncode == 0
    for row, manifest in _REFUSED.items():
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        patch = json.dumps({"spec": manifest["spec"]})
        done = tenant.kubectl("patch", kind, name, "--type=merge", "-p", patch)
        attempts.record("admission of changes", row, held=done.returncode != 0, detail=manifest)
