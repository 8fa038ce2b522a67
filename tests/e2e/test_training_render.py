"""Rendered children on the real API server: it takes them as they are, and pods find in them what they need."""

from __future__ import annotations

import itertools
import json

import msgspec
import pytest

from skysail.core.actions import Owner
from skysail.core.executor import complete_manifest
from skysail.kinds.training.api.training_job import TRAINING_JOB, LatestCheckpoint
from skysail.kinds.training.children.manifests import build_children
from skysail.kube.client import kubeconfig
from skysail.kube.client.client import APPLY_PATCH, FIELD_MANAGER
from skysail.kube.client.http_transport import HttpTransport
from skysail.kube.client.transport import Request
from tests.support.kubectl import get, ok, until_condition

DRY = {"dryRun": "All", "fieldValidation": "Strict"}
EVERY_ROLE = {"chief": {}, "parameterServers": {"replicas": 2}, "evaluator": {}}
ROLES = {
    "pytorch": [{}, {"evaluator": {}}],
    "tensorflow": [{}, {"parameterServers": {}}, {"chief": {}}, {"chief": {}, "parameterServers": {}}, EVERY_ROLE],
    "xgboost": [{}, {"evaluator": {"image": "other:1", "command": ["look"]}}],
    "jax": [{}, {"evaluator": {"resources": {"requests": {"cpu": "1"}}}}],
}
OVERLAY = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"note": "x"}},
    "spec": {
        "restartPolicy": "Always",
        "hostname": "mine",
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        "initContainers": [{"name": "side", "image": "s:1", "restartPolicy": "Always"}],
        "containers": [
            {
                "name": "trainer",
                "env": [
                    {"name": "MASTER_PORT", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
                    {"name": "MINE", "value": "$(RANK)"},
                ],
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
            }
        ],
    },
}
OPTIONS = {
    "nothing more": {},
    "two workers": {"workers": 2},
    "a hundred workers": {"workers": 100},
    "gpus": {"gpuPerWorker": 8, "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": 2, "memory": "4Gi"}}},
    "gpus as a request": {"resources": {"requests": {"nvidia.com/gpu": 1}}},
    "data": {"dataVolume": {"claimName": "mnist-data", "readOnly": True}},
    "checkpoints": {"checkpointDir": "/checkpoints/mnist", "checkpointInterval": 5, "workers": 2},
    "checkpoints on a claim": {"checkpointDir": "saved", "checkpoint": {"claimName": "mine", "gracePeriodSeconds": 0}},
    "checkpoints as asked": {
        "checkpoint": {
            "size": "1Gi",
            "storageClassName": "fast",
            "accessMode": "ReadWriteOnce",
            "gracePeriodSeconds": 9,
        }
    },
    "hyperparameters": {
        "hyperparameters": {"learningRate": 0.001, "a.b": "$(x)", "a-b": True, "größe": 2, "": [1], "a_b": {"c": None}}
    },
    "no restarts": {"restartPolicy": "Never", "runPolicy": {"backoffLimit": 7}, "workers": 2},
    "elastic": {"workers": 2, "elastic": {"min": 1, "max": 8}},
    "priority": {"scheduling": {"priorityClass": "high"}},
    "a template": {"workers": 2, "podTemplate": OVERLAY},
}
EVERYTHING = {name: value for option in OPTIONS.values() for name, value in option.items()} | {"workers": 3}
OPTIONS["everything"] = EVERYTHING
CASES = [
    pytest.param(framework, roles, options, id=f"{framework}, {'+'.join(roles) or 'workers'}, {name}")
    for framework, some in ROLES.items()
    for roles, (name, options) in itertools.product(some, OPTIONS.items())
]
NAMES = ["a", "1", "1.2", "a" * 43, "a" * 44, "a" * 63, "my.job-with.dots", "x" * 253, ".".join(["9" * 60] * 4)]


class Server:
    """The API server, asked what it thinks of a job and of its children."""

    def __init__(self, transport):
        self._transport = transport

    async def stored(self, framework, *, name="mnist", **spec):
        """The job as the server would store it."""
        manifest = {
            "apiVersion": TRAINING_JOB.resource.api_version,
            "kind": TRAINING_JOB.resource.kind,
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"framework": framework, "image": "team/train:1", "command": ["python", "train.py"], **spec},
        }
        reply = await self._send("POST", TRAINING_JOB.resource.path("default"), manifest, DRY, "application/json")
        assert reply.status == 201, reply.body
        return msgspec.json.decode(reply.body, type=TRAINING_JOB.struct)

    async def applied(self, job, child, query=DRY):
        """A child as the server stores it, or what it says against it."""
        resource, manifest = child
        sent = complete_manifest(manifest, Owner(TRAINING_JOB.resource, job))
        query = {"fieldManager": FIELD_MANAGER, "force": "true", **query}
        reply = await self._send("PATCH", resource.path_of(sent), sent, query, APPLY_PATCH)
        return reply.status, msgspec.json.decode(reply.body)

    async def _send(self, method, path, body, query, content_type):
        headers = {"Content-Type": content_type}
        request = Request(method=method, path=path, query=query, headers=headers, body=msgspec.json.encode(body))
        return await self._transport.send(request)


@pytest.fixture
async def server(cluster):
    transport = HttpTransport(kubeconfig.from_file(cluster.kubeconfig))
    yield Server(transport)
    await transport.close()


def every(made):
    return (*made.claims, *made.shared, *made.jobs)


@pytest.mark.parametrize(("framework", "roles", "options"), CASES)
async def test_the_server_takes_the_children_of_every_job(server, framework, roles, options):
    job = await server.stored(framework, roles=roles, **options)
    for child in every(build_children(job, 1, LatestCheckpoint(path="/checkpoints/120", step=120))):
        status, answer = await server.applied(job, child)
        assert status == 201, answer
        if child[0].kind == "Job":
            variables = [row["name"] for row in answer["spec"]["template"]["spec"]["containers"][0]["env"]]
            assert variables[0] == "JOB_COMPLETION_INDEX"


@pytest.mark.parametrize("name", NAMES)
async def test_the_server_takes_the_children_of_every_name(server, name):
    largest = EVERYTHING | {"workers": 100, "elastic": {"min": 1, "max": 100}}
    job = await server.stored("tensorflow", name=name, roles=EVERY_ROLE, **largest)
    for child in every(build_children(job, 9_999_999, None)):
        status, answer = await server.applied(job, child)
        assert status == 201, answer


async def made_for_real(server, node, namespace, framework, **spec):
    """The job is stored, and so are its children, which are therefore not collected."""
    manifest = {
        "apiVersion": TRAINING_JOB.resource.api_version,
        "kind": TRAINING_JOB.resource.kind,
        "metadata": {"name": "real", "namespace": namespace},
        "spec": {"framework": framework, "image": "busybox", **spec},
    }
    ok(node, "apply", "--validate=strict", "-f", "-", stdin=json.dumps(manifest))
    stored = get(node, namespace, "trainingjobs.ml.example.com", "real")
    job = msgspec.convert(stored, TRAINING_JOB.struct)
    for child in every(build_children(job, 0, None)):
        status, answer = await server.applied(job, child, query={"fieldValidation": "Strict"})
        assert status == 201, answer
    return job


SCRIPT = """
echo "$TRAINING_ATTEMPT $CHECKPOINT_DIR $HYPERPARAM_LEARNINGRATE $HYPERPARAM_TEXT" > $CHECKPOINT_DIR/$(hostname)
echo "{\\"host\\":\\"$(hostname)\\",\\"tf\\":$TF_CONFIG,\\"file\\":$(cat /etc/skysail/hyperparameters.json),"
echo "\\"said\\":\\"$(cat $CHECKPOINT_DIR/$(hostname))\\"}"
"""


async def test_a_program_finds_all_that_it_was_promised(server, node, namespace):
    """On a real node: its index in TF_CONFIG, its host in the cluster, its file, its volume, its hyperparameters."""
    parameters = {"learningRate": 0.001, "text": "$(x)"}
    await made_for_real(
        server,
        node,
        namespace,
        "tensorflow",
        command=["sh", "-c", SCRIPT],
        workers=2,
        roles={"chief": {}},
        hyperparameters=parameters,
        checkpointDir="/saved",
    )
    for name in ("job/real-worker-0", "job/real-chief-0"):
        until_condition(node, namespace, name, "Complete")
    told = set()
    for role, index in (("chief", 0), ("worker", 0), ("worker", 1)):
        chosen = f"trainingjob.ml.example.com/worker={role},batch.kubernetes.io/job-completion-index={index}"
        said = json.loads(ok(node, "logs", "-n", namespace, "--tail=-1", "-l", chosen))
        assert said["tf"]["task"] == {"type": role, "index": index}
        assert said["tf"]["cluster"][role][index] == f"{said['host']}.real-workers:2222"
        assert said["file"] == parameters
        assert said["said"] == "0 /saved 0.001 $(x)"
        told.add(json.dumps(said["tf"]["cluster"]))
    assert len(told) == 1


async def test_elastic_torch_grows_in_place_and_a_claim_cannot_change(server, node, namespace):
    spec = {"command": ["sleep", "600"], "elastic": {"min": 1, "max": 4}, "checkpointDir": "/saved"}
    job = await made_for_real(server, node, namespace, "pytorch", workers=1, **spec)
    larger = msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, workers=4))
    made = build_children(larger, 0, None)
    status, answer = await server.applied(larger, made.jobs[0], query={"fieldValidation": "Strict"})
    assert (status, answer["spec"]["completions"], answer["spec"]["parallelism"]) == (200, 4, 4)
    other = msgspec.structs.replace(job.spec, elastic=None)
    claim = build_children(msgspec.structs.replace(job, spec=other), 0, None).claims[0]
    status, answer = await server.applied(job, claim)
    assert (status, answer["reason"]) == (422, "Invalid")
