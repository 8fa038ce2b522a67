"""The admission server, spoken to over HTTP as the API server does."""

import base64
import json

import aiohttp
import pytest
from aiohttp import test_utils

from skysail.kube.admission import server as admission
from skysail.kube.admission.hooks import AdmissionResponse, Hook
from skysail.kube.admission.server import NamespaceScope, WebhookAddress


def hook(admission_response: AdmissionResponse) -> Hook:
    return Hook(name="things", admit=lambda object_, old: admission_response, rules=({"resources": ["things"]},))


async def ask(admission_response: AdmissionResponse, body: bytes) -> tuple[int, dict]:
    async with (
        test_utils.TestServer(admission.application([hook(admission_response)])) as server,
        aiohttp.ClientSession() as session,
        session.post(server.make_url("/admit/things"), data=body) as reply,
    ):
        return reply.status, await reply.json()


REVIEW = json.dumps({"request": {"uid": "u1", "object": {"spec": {}}}}).encode()


async def test_a_patch_goes_back_in_base64_with_the_uid_of_the_request():
    code, review = await ask(AdmissionResponse(patch=({"op": "add", "path": "/x", "value": 1},)), REVIEW)
    response = review["response"]
    assert code == 200
    assert (response["uid"], response["allowed"], response["patchType"]) == ("u1", True, "JSONPatch")
    assert json.loads(base64.b64decode(response["patch"])) == [{"op": "add", "path": "/x", "value": 1}]


async def test_nothing_to_say_is_a_plain_yes():
    _, review = await ask(AdmissionResponse(), REVIEW)
    assert review["response"] == {"uid": "u1", "allowed": True}


async def test_a_refusal_carries_its_sentence():
    _, review = await ask(AdmissionResponse(denied="Say it otherwise.", warnings=("and soon",)), REVIEW)
    assert review["response"]["allowed"] is False
    assert review["response"]["status"]["message"] == "Say it otherwise."
    assert review["response"]["warnings"] == ["and soon"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"request": 3}', b'{"request": {}}', b"\xff\xfe"])
async def test_garbage_is_refused_with_400(body):
    code, answer = await ask(AdmissionResponse(), body)
    assert code == 400
    assert "not an AdmissionReview" in answer["message"]


async def test_a_review_without_an_object_is_answered():
    code, review = await ask(AdmissionResponse(), b'{"request": {"uid": "u2", "object": null}}')
    assert (code, review["response"]["allowed"]) == (200, True)


def test_the_configuration_fails_open_and_leaves_our_namespace_out():
    manifest = admission.configuration(
        "skysail",
        [hook(AdmissionResponse())],
        WebhookAddress(service=("sys", "svc")),
        b"ca",
        NamespaceScope(excluded=("sys", "kube-system")),
    )
    (entry,) = manifest["webhooks"]
    assert entry["failurePolicy"] == "Ignore"
    assert entry["reinvocationPolicy"] == "IfNeeded"
    assert entry["sideEffects"] == "None"
    assert entry["clientConfig"]["service"] == {"namespace": "sys", "name": "svc", "path": "/admit/things"}
    assert entry["namespaceSelector"]["matchExpressions"][0]["values"] == ["kube-system", "sys"]


def test_an_operator_for_some_namespaces_is_asked_about_those_only():
    assert NamespaceScope(("mine",), ("sys",)).selector()["matchExpressions"] == [
        {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["mine"]}
    ]


async def test_observed_facts_decide_with_the_namespace_of_the_request():
    seen = []

    async def observe(object_):
        seen.append(object_["metadata"]["namespace"])
        return lambda _object, _old: AdmissionResponse(warnings=("observed",))

    observed = Hook(
        name="things", admit=lambda _object, _old: AdmissionResponse(denied="no"), rules=(), observe=observe
    )
    review = json.dumps({"request": {"uid": "u1", "namespace": "team", "object": {"metadata": {"name": "a"}}}})
    async with (
        test_utils.TestServer(admission.application([observed])) as server,
        aiohttp.ClientSession() as session,
        session.post(server.make_url("/admit/things"), data=review.encode()) as reply,
    ):
        response = (await reply.json())["response"]
    assert response == {"uid": "u1", "allowed": True, "warnings": ["observed"]}
    assert seen == ["team"]
