"""On the real API server: every leaf, bound, enum, required field, unknown field and rule of every kind is enforced.

The refusal names the field; a rule's refusal tells the fix as well.
"""

from __future__ import annotations

import copy
import json

import msgspec
import pytest

from skysail.app.kinds import ALL_KINDS, COMPATIBLE_KINDS
from skysail.kube.api import crd
from skysail.kube.api.conventions import walk
from skysail.kube.api.schema import RULES
from skysail.kube.client import kubeconfig
from skysail.kube.client.http_transport import HttpTransport
from skysail.kube.client.transport import Request
from tests.support import schemas
from tests.support.kubectl import fresh_namespace, get, ok

KINDS = {kind.resource.kind: kind for kind in (*ALL_KINDS, *COMPATIBLE_KINDS)}
STRICT = {"dryRun": "All", "fieldValidation": "Strict"}

# The smallest spec of each kind.
SPECS = {
    "TrainingJob": {"framework": "pytorch", "image": "i", "command": ["train"]},
    "ModalJob": {"image": "i"},
    "TrainJob": {"runtimeRef": {"name": "runtime"}},
    "ModelDeployment": {"modelURI": "u", "runtime": "triton"},
    "MLModel": {"storageSize": "1Gi", "framework": "tensorflow", "expose": True},
    "ModalEndpoint": {"image": "i", "handler": "app.handler"},
    "ModalFunction": {"image": "i", "handler": "app.handler"},
    "CloudInstance": {
        "provider": "simulated",
        "owner": {"kind": "Pod", "name": "p", "namespace": "default", "uid": "u"},
    },
    "OffloadPolicy": {"namespaceSelector": {}, "providers": ["simulated"]},
    "SpendAccount": {"namespace": "default"},
}

# (kind, spec as it is, what it becomes, field and words of the refusal). Without a first spec the object is new.
RULE_CASES = [
    ("TrainingJob", {}, {"framework": "xgboost"}, "spec.framework", "create it with the new value"),
    ("TrainingJob", {}, {"managedBy": "example.com/other"}, "spec.managedBy", "create it with the new value"),
    (
        "TrainingJob",
        None,
        {"elastic": {"min": 3, "max": 2}, "workers": 3},
        "spec.elastic.min",
        "lower min or raise max",
    ),
    ("TrainingJob", None, {"elastic": {"min": 2, "max": 4}}, "spec.workers", "change workers, or widen elastic"),
    (
        "TrainingJob",
        None,
        {"checkpoint": {"claimName": "mine", "size": "1Gi"}},
        "spec.checkpoint.claimName",
        "or remove claimName",
    ),
    ("TrainingJob", None, {"scheduling": {"queue": "team"}}, "spec.scheduling.queue", "set scheduling.gang to"),
    ("TrainingJob", None, {"roles": {"chief": {}}}, "spec.roles", "remove them from roles, worker 0 coordinates"),
    ("ModalJob", None, {"gpu": "T4:x"}, "spec.gpu", "write T4, A100-80GB or H100:2"),
    ("ModalEndpoint", None, {"gpu": "two T4"}, "spec.gpu", "write T4, A100-80GB or H100:2"),
    ("ModalFunction", None, {"gpu": "T4:0"}, "spec.gpu", "write T4, A100-80GB or H100:2"),
    ("ModalEndpoint", None, {"handler": "main"}, "spec.handler", "write module.function, or serve for the image's"),
    ("ModalFunction", None, {"handler": "serve"}, "spec.handler", "write module.function"),
    ("ModalJob", None, {"replicas": 2}, "spec.replicas", "set enable_i6pn to true"),
    ("ModalEndpoint", None, {"min_replicas": 11}, "spec.min_replicas", "lower min_replicas or raise max_replicas"),
    ("ModalEndpoint", None, {"code": {}}, "spec.code.inline", "set either configMapRef or inline"),
    (
        "ModalFunction",
        None,
        {"code": {"inline": "x", "configMapRef": {"name": "c"}}},
        "spec.code.inline",
        "set either configMapRef or inline",
    ),
    ("ModelDeployment", None, {"minReplicas": 3, "maxReplicas": 2}, "spec.minReplicas", "lower minReplicas or raise"),
    ("CloudInstance", {}, {"launch": 1}, "spec", "creates a new CloudInstance"),
    ("TrainJob", {}, {"managedBy": "kueue.x-k8s.io/multikueue"}, "spec.managedBy", "create it with the new value"),
]


class Server:
    """The API server, asked what it thinks of an object."""

    def __init__(self, transport):
        self._transport = transport

    async def post(self, kind, manifest, query=STRICT):
        return await self._send("POST", kind.resource.path("default"), manifest, query)

    async def put(self, kind, manifest, *, subresource="", query=STRICT):
        name = manifest["metadata"]["name"]
        return await self._send("PUT", kind.resource.path("default", name, subresource), manifest, query)

    async def delete(self, kind, name):
        await self._send("DELETE", kind.resource.path("default", name), {}, {})

    async def _send(self, method, path, body, query):
        reply = await self._transport.send(
            Request(
                method=method,
                path=path,
                query=query,
                headers={"Content-Type": "application/json"},
                body=msgspec.json.encode(body),
            )
        )
        return reply.status, msgspec.json.decode(reply.body)


@pytest.fixture
async def server(cluster):
    transport = HttpTransport(kubeconfig.from_file(cluster.kubeconfig))
    yield Server(transport)
    await transport.close()


@pytest.fixture
async def stored(server, kind):
    """A valid object of the kind, as the server has stored it."""
    name = f"stored-{kind.resource.plural}"
    await server.delete(kind, name)
    status, answer = await server.post(kind, new(kind, name), query={"fieldValidation": "Strict"})
    assert status == 201, answer
    yield answer
    await server.delete(kind, name)


def new(kind, name, spec=None):
    return {
        "apiVersion": kind.resource.api_version,
        "kind": kind.resource.kind,
        "metadata": {"name": name},
        "spec": {**copy.deepcopy(SPECS[kind.resource.kind]), **(spec or {})},
    }


def schema_of(kind, part):
    return crd.manifest(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][part]


def refusal(answer):
    """What the server named: (field, message) for each cause."""
    causes = answer.get("details", {}).get("causes", [])
    return [(cause.get("field", ""), cause.get("message", "")) for cause in causes]


async def ask(server, kind, part, wrong, stored):
    manifest = {"apiVersion": kind.resource.api_version, "kind": kind.resource.kind, **wrong.object}
    if part == "spec":
        return await server.post(kind, {**manifest, "metadata": {"name": "wrong"}})
    metadata = {key: stored["metadata"][key] for key in ("name", "resourceVersion")}
    return await server.put(kind, {**manifest, "metadata": metadata}, subresource="status")


parts = pytest.mark.parametrize("part", ["spec", "status"])
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


@kinds
@parts
async def test_every_leaf_with_a_wrong_type_is_refused_by_name(server, kind, part, stored):
    cases = list(schemas.wrong_types(schema_of(kind, part), (part,)))
    assert cases
    assert await not_refused(server, kind, part, cases, stored) == []


@kinds
@parts
async def test_every_bound_and_enum_refuses_what_is_outside(server, kind, part, stored):
    cases = list(schemas.wrong_bounds(schema_of(kind, part), (part,)))
    assert cases
    assert await not_refused(server, kind, part, cases, stored) == []


async def not_refused(server, kind, part, cases, stored):
    wrong = []
    for case in cases:
        _, answer = await ask(server, kind, part, case, stored)
        if not any(field == case.field and case.want in message for field, message in refusal(answer)):
            wrong.append((case.field, case.want, answer.get("message", "accepted")[:500]))
    return wrong


@kinds
@parts
async def test_every_required_field_is_asked_for_by_name(server, kind, part, stored):
    wrong = []
    for case in schemas.missing_fields(schema_of(kind, part), (part,)):
        _, answer = await ask(server, kind, part, case, stored)
        if case.want not in {field for field, message in refusal(answer) if "Required" in message}:
            wrong.append((case.want, answer.get("message", "accepted")[:500]))
    assert wrong == []


@kinds
@parts
async def test_every_unknown_field_is_reported_by_name(server, kind, part, stored):
    wrong = []
    for case in schemas.unknown_fields(schema_of(kind, part), (part,)):
        status, answer = await ask(server, kind, part, case, stored)
        if status != 400 or case.want not in answer["message"]:
            wrong.append((case.want, answer.get("message", "accepted")[:500]))
    assert wrong == []


@pytest.mark.parametrize(("name", "before", "after", "field", "words"), RULE_CASES)
async def test_a_rule_refuses_with_the_field_and_the_fix(server, name, before, after, field, words):
    kind = KINDS[name]
    status, answer = await violate(server, kind, before, after)
    assert status == 422, answer
    assert [found for found, message in refusal(answer) if words in message] == [field]


async def violate(server, kind, before, after):
    if before is None:
        return await server.post(kind, new(kind, "ruled", after))
    await server.delete(kind, "ruled")
    status, stored = await server.post(kind, new(kind, "ruled", before), query={})
    assert status == 201, stored
    try:
        return await server.put(kind, {**stored, "spec": {**stored["spec"], **after}})
    finally:
        await server.delete(kind, "ruled")


def test_every_rule_has_a_refused_example():
    declared = {
        (name, rule["message"])
        for name, kind in KINDS.items()
        for part in ("spec", "status")
        for _, node in walk(schema_of(kind, part), part)
        for rule in node.get(RULES, ())
    }
    shown = {
        next(rule for rule in declared if rule[0] == name and words in rule[1] and word_of(field) in rule[1])
        for name, _, _, field, words in RULE_CASES
    }
    assert declared == shown


def word_of(field):
    """The last part of a field stands in the message of its rule; a rule on the whole spec speaks of the claim."""
    last = field.rpartition(".")[2]
    return "claim" if last == "spec" else last


@pytest.mark.parametrize(
    "spec",
    [
        {"learningRate": "0.001", "optimizer": "adam"},
        {"learningRate": 0.001, "momentum": 0.9, "epochs": 10, "nesterov": True},
    ],
)
async def test_hyperparameters_are_strings_numbers_or_booleans(server, spec):
    kind = KINDS["TrainingJob"]
    status, answer = await server.post(kind, new(kind, "free", {"hyperparameters": spec}))
    assert (status, answer["spec"]["hyperparameters"]) == (201, spec)


@pytest.mark.parametrize("name", ["ModalJob", "ModalEndpoint", "ModalFunction"])
@pytest.mark.parametrize("gpu", [None, "", "T4", "T4:1", "A100-80GB", "H100:8"])
async def test_every_way_to_write_a_gpu_is_accepted_and_kept(server, name, gpu):
    kind = KINDS[name]
    status, answer = await server.post(kind, new(kind, "gpu", {"gpu": gpu}))
    assert (status, answer["spec"]["gpu"]) == (201, gpu)


@pytest.mark.parametrize("kind", [KINDS["MLModel"]], ids=["MLModel"])
async def test_the_first_status_of_an_ml_model_is_legal_and_a_half_one_is_not(server, kind, stored):
    metadata = {key: stored["metadata"][key] for key in ("name", "resourceVersion")}
    first = {**stored, "metadata": metadata, "status": {"phase": "Pending", "observedGeneration": 1}}
    status, answer = await server.put(kind, first, subresource="status")
    assert (status, answer["status"]) == (200, first["status"])
    status, answer = await server.put(kind, {**first, "status": {"phase": "Pending"}}, subresource="status")
    assert status == 422
    assert "status.observedGeneration" in {field for field, _ in refusal(answer)}


@pytest.mark.parametrize("kind", [KINDS["CloudInstance"]], ids=["CloudInstance"])
async def test_a_claim_shows_its_state_before_anybody_has_written_one(cluster, kind, stored):
    (row,) = cluster.kubectl("get", "ci", stored["metadata"]["name"], "--no-headers").stdout.splitlines()
    assert row.split()[1:3] == ["simulated", "Claimed"]


@kinds
async def test_schema_minimal_object_returns_with_defaults_and_decodes_as_our_type(kind, stored):
    sent = SPECS[kind.resource.kind]
    assert stored["spec"] == schemas.with_defaults(schema_of(kind, "spec"), sent)
    assert msgspec.convert(stored, kind.struct, strict=True).metadata.name == stored["metadata"]["name"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("trainingjob", ["A training run of one or more workers", "spec\t<Object> -required-"]),
        ("tj.spec", ["workers\t<integer>", "Number of worker pods.", "enum: jax, pytorch, tensorflow, xgboost"]),
        ("trainingjob.spec.runPolicy", ["backoffLimit\t<integer>", "Number of retries of failed attempts."]),
        ("modaljob.spec", ["gpu\t<string>", "such as T4", "timeout\t<integer>"]),
        ("mlmodel.status", ["phase\t<string> -required-", "observedGeneration\t<integer> -required-"]),
        ("cloudinstance.spec.owner", ["uid\t<string> -required-"]),
    ],
)
def test_explain_tells_what_a_field_is_for(cluster, path, words):
    # What is explained is published some time after the kind is served.
    cluster.until(lambda: cluster.kubectl("explain", path).returncode == 0, f"{path} to be explained")
    told = cluster.kubectl("explain", path)
    assert [word for word in words if word not in told.stdout] == []


@pytest.mark.parametrize(
    ("kind", "short", "spec", "field"),
    [
        ("ModelDeployment", "md", {"modelURI": "https://example.com/m.onnx", "runtime": "triton"}, "minReplicas"),
        ("MLModel", "mlm", {"storageSize": "1Gi", "framework": "tensorflow", "expose": True}, "replicas"),
    ],
)
def test_models_have_defaults_short_names_and_can_be_scaled(cluster, kind, short, spec, field):
    """Without an operator: the API server does all of it."""
    with fresh_namespace(cluster) as namespace:
        resource = KINDS[kind].resource
        manifest = {"apiVersion": resource.api_version, "kind": kind, "metadata": {"name": "m"}, "spec": spec}
        ok(cluster, "create", "-n", namespace, "-f", "-", stdin=json.dumps(manifest))
        assert get(cluster, namespace, short, "m")["spec"][field] == 1
        ok(cluster, "scale", f"{short}/m", "--replicas=3", "-n", namespace)
        assert get(cluster, namespace, short, "m")["spec"][field] == 3
