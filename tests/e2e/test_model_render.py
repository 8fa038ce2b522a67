"""Rendered children of models on the real API server: it takes all of them, and the pods that are made from them."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from skysail.base.settings import Settings
from skysail.core.actions import Owner
from skysail.core.executor import complete_manifest
from skysail.kinds.serving.admission.validation import validate
from skysail.kinds.serving.api.types import ML_MODEL, MODEL_DEPLOYMENT
from skysail.kinds.serving.children import manifests
from skysail.kinds.serving.spec import desired, revisions
from skysail.kinds.serving.spec.config import serving_config
from skysail.kube.api.resources import (
    CONTROLLER_REVISION,
    DEPLOYMENT,
    HORIZONTAL_POD_AUTOSCALER,
    JOB,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    SERVICE,
)
from skysail.kube.client import kubeconfig
from skysail.kube.client.client import APPLY_PATCH, FIELD_MANAGER
from skysail.kube.client.http_transport import HttpTransport
from skysail.kube.client.transport import Request

DRY = {"dryRun": "All", "fieldValidation": "Strict"}
TERMS = serving_config(Settings(allowed_model_hosts=("10.0.0.0/8", "*.svc")))
RESOURCES = {
    resource.kind: resource
    for resource in (
        CONTROLLER_REVISION,
        DEPLOYMENT,
        HORIZONTAL_POD_AUTOSCALER,
        JOB,
        PERSISTENT_VOLUME_CLAIM,
        SERVICE,
    )
}
KEEP = ("0123456789", "abcdef0123")
DIGEST = "sha256:" + "ab" * 32

SOURCES = {
    "https": "https://models.example.com/model.onnx",
    "s3": "s3://bucket/models/iris",
    "hf": "hf://org/name@main",
    "oci": "oci://registry.example.com/team/iris:1",
    "pvc": "pvc://weights/iris",
    "file": "file:///opt/models/iris.onnx",
}
OPTIONS = {
    "nothing more": {},
    "a script": {"validateScript": "validate.py"},
    "a script with an address": {"validateScript": "https://models.example.com/validate.py"},
    "autoscale": {"autoscale": True, "resources": {"requests": {"cpu": "250m"}}, "maxReplicas": 4},
    "gpus": {"resources": {"requests": {"nvidia.com/gpu": 1, "cpu": "1"}, "limits": {"memory": "8Gi"}}},
    "amounts": {"resources": {"requests": {"cpu": 1, "memory": "1024Mi"}, "limits": {"cpu": "1000m", "memory": "1Gi"}}},
    "credentials": {"credentialsSecret": "keys"},
    "variables": {
        "env": [
            {"name": "LABELS", "value": "$(MODEL_PATH)/labels"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
        ]
    },
    "an image": {"runtimeImage": "localhost/fastapi-pytorch:dev", "version": "$(HOME) v2 ö"},
}
DEPLOYMENTS = [
    pytest.param(runtime, {"modelURI": uri, **options}, id=f"{runtime}, {source}, {name}")
    for runtime in ("fastapi-pytorch", "torchserve", "triton")
    for (source, uri), (name, options) in itertools.product(SOURCES.items(), OPTIONS.items())
]
ML_OPTIONS = {
    "nothing more": {},
    "no service": {"expose": False, "replicas": 0},
    "resources": {"resources": {"limits": {"cpu": "2", "nvidia.com/gpu": 1}}},
    "credentials": {"credentialsSecret": "keys", "sha256": "cd" * 32},
}
ML_MODELS = [
    pytest.param(framework, {"modelURL": uri, **options}, id=f"{framework}, {source}, {name}")
    for framework in ("tensorflow", "pytorch", "onnx", "triton", "torchserve")
    for (source, uri), (name, options) in itertools.product(SOURCES.items(), ML_OPTIONS.items())
    if not (source == "file" and "sha256" in options)
]
NAMES = ["a", "1", "1.2", "a" * 50, "a" * 51, "a" * 63, "my.model-with.dots", "x" * 253, ".".join(["9" * 60] * 4)]


class Server:
    """The API server, asked what it thinks of a model, of its children and of their pods."""

    def __init__(self, transport):
        self._transport = transport

    async def deployment(self, *, name="iris", **spec):
        wanted = {"modelURI": SOURCES["https"], "runtime": "triton", "resources": {}, "autoscale": False, **spec}
        return await self._stored(MODEL_DEPLOYMENT, {"name": name}, {"version": "v1", **wanted})

    async def ml_model(self, *, name="flowers", annotations=None, **spec):
        wanted = {"modelURL": SOURCES["https"], "storageSize": "5Gi", "framework": "tensorflow", **spec}
        metadata = {"name": name, "annotations": annotations or {}}
        return await self._stored(ML_MODEL, metadata, {"replicas": 1, "expose": True, **wanted})

    async def _stored(self, kind, metadata, spec):
        """As the server would store it."""
        manifest = {
            "apiVersion": kind.resource.api_version,
            "kind": kind.resource.kind,
            "metadata": {"namespace": "default", **metadata},
            "spec": spec,
        }
        reply = await self._send("POST", kind.resource.path("default"), manifest, DRY, "application/json")
        assert reply.status == 201, reply.body
        return msgspec.json.decode(reply.body, type=kind.struct)

    async def takes(self, serving, manifest):
        """The child as the server would store it."""
        sent = complete_manifest(manifest, Owner(serving.kind.resource, serving.object))
        query = {"fieldManager": FIELD_MANAGER, "force": "true", **DRY}
        reply = await self._send("PATCH", RESOURCES[sent["kind"]].path_of(sent), sent, query, APPLY_PATCH)
        assert reply.status == 201, reply.body
        return msgspec.json.decode(reply.body)

    async def runs(self, template):
        """A pod of the template, past every check of a cluster as it comes."""
        metadata = {**template["metadata"], "generateName": "pod-"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        reply = await self._send("POST", POD.path("default"), pod, DRY, "application/json")
        assert reply.status == 201, reply.body
        return msgspec.json.decode(reply.body)

    async def _send(self, method, path, body, query, content_type):
        headers = {"Content-Type": content_type}
        request = Request(method=method, path=path, query=query, headers=headers, body=msgspec.json.encode(body))
        return await self._transport.send(request)


@pytest.fixture
async def server(cluster):
    transport = HttpTransport(kubeconfig.from_file(cluster.kubeconfig))
    yield Server(transport)
    await transport.close()


def every(serving):
    want = serving.want
    revision = revisions.new_candidate(want)
    revision = msgspec.structs.replace(revision, number=3, digest=DIGEST, bytes=10, files=2, outcome="served")
    found = (
        manifests.prepare_job(serving, want, KEEP, TERMS),
        manifests.pvc(serving),
        manifests.deployment(serving, revision, TERMS),
        *manifests.services(serving, want),
        manifests.autoscaler(serving),
        manifests.controller_revision(serving, revision),
    )
    return [manifest for manifest in found if manifest is not None]


async def all_taken(server, model):
    assert validate(model, TERMS) == ()
    serving = desired.desired_model(model, TERMS)
    for manifest in every(serving):
        answer = await server.takes(serving, manifest)
        assert answer["metadata"]["ownerReferences"][0]["uid"] == model.metadata.uid
        if "template" in answer.get("spec", {}):
            pod = await server.runs(manifest["spec"]["template"])
            assert not any(volume["name"].startswith("kube-api-access") for volume in pod["spec"].get("volumes", ()))


@pytest.mark.parametrize(("runtime", "spec"), DEPLOYMENTS)
async def test_the_server_takes_the_children_of_every_model_deployment(server, runtime, spec):
    await all_taken(server, await server.deployment(runtime=runtime, **spec))


@pytest.mark.parametrize(("framework", "spec"), ML_MODELS)
async def test_the_server_takes_the_children_of_every_ml_model(server, framework, spec):
    await all_taken(server, await server.ml_model(framework=framework, **spec))


@pytest.mark.parametrize("name", NAMES)
async def test_the_server_takes_the_children_of_every_name(server, name):
    wanted = {"autoscale": True, "resources": {"requests": {"cpu": 1}}, "validateScript": "validate.py"}
    await all_taken(server, await server.deployment(name=name, **wanted))
    await all_taken(server, await server.ml_model(name=name))


async def test_the_server_takes_annotations_that_change_the_children(server):
    notes = {"skysail.dev/access-mode": "ReadWriteMany", "skysail.dev/ready-path": "/ping"}
    await all_taken(server, await server.ml_model(annotations={**notes, "skysail.dev/runtime-image": "mine:1"}))


async def test_each_manifest_says_all_that_the_server_would_have_to_guess(server):
    """What the server stores for a port, a probe or a mount is what was sent: so nothing seems to drift."""
    serving = desired.desired_model(await server.deployment(runtime="triton"), TERMS)
    sent = manifests.deployment(serving, revisions.new_candidate(serving.want), TERMS)
    stored = await server.takes(serving, sent)
    (before,), (after,) = (row["spec"]["template"]["spec"]["containers"] for row in (sent, stored))
    assert after["ports"] == [{**port, "protocol": "TCP"} for port in before["ports"]]
    assert after["volumeMounts"] == before["volumeMounts"]
    assert after["lifecycle"] == before["lifecycle"]
    assert "replicas" not in sent["spec"]
    assert stored["spec"]["replicas"] == 1
