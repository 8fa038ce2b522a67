"""What the controller asks of the API server itself, beside what its caches tell."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from skysail.base.names import Label, Reason
from skysail.core.errors import Stale
from skysail.core.pod_pending import PodEvent
from skysail.kinds.serving.api.types import KINDS, ML_MODEL, MODEL_DEPLOYMENT, Download, Failure
from skysail.kinds.serving.caches import Caches
from skysail.kinds.serving.children import manifests
from skysail.kinds.serving.objects import Deployment, Job, Pod
from skysail.kinds.serving.plan import target_revision
from skysail.kinds.serving.plan.download_progress import parse
from skysail.kinds.serving.reconciler import ModelReconciler
from skysail.kinds.serving.spec import revisions
from skysail.kinds.serving.spec.revisions import ControllerRevision
from skysail.kube.api.fields import Condition
from skysail.kube.api.objects import Key, OwnerReference
from skysail.kube.client.client import Client
from skysail.kube.client.errors import Forbidden, Invalid, Unreachable
from skysail.kube.client.transport import Reply
from tests.support.streams import Pieces
from tests.unit.kinds.serving.builders import (
    LATE,
    NOW,
    ago,
    changed,
    claim,
    deployment,
    entry,
    job,
    model,
    preparer,
    server,
    shown,
)
from tests.unit.kinds.serving.samples import TERMS, UID, serving

if TYPE_CHECKING:
    from skysail.kube.client.transport import Request

KEY = Key("shop", "iris")
ITSELF = MODEL_DEPLOYMENT.resource.path("shop", "iris")
REVISIONS = "/apis/apps/v1/namespaces/shop/controllerrevisions"
JOBS = "/apis/batch/v1/namespaces/shop/jobs"
PODS = "/api/v1/namespaces/shop/pods"
DEPLOYMENT_ = "/apis/apps/v1/namespaces/shop/deployments/iris"
EVENTS = "/apis/events.k8s.io/v1/namespaces/shop/events"
BEFORE = "/apis/apps/v1/namespaces/shop/deployments/inference-iris"
CLAIMS = "/api/v1/namespaces/shop/persistentvolumeclaims/flowers-pvc"
LIVE = {ITSELF: {"metadata": {"name": "iris"}}, REVISIONS: {"items": []}, PODS: {"items": []}, EVENTS: {"items": []}}


class Server:
    """Answers by path, or by method and path; what it does not know is not there."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[Request] = []

    async def send(self, request: Request) -> Reply:
        self.asked.append(request)
        answer = self.answers.get(f"{request.method} {request.path}", self.answers.get(request.path))
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            return Reply(status=404, body=b'{"reason": "NotFound"}')
        body = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
        return Reply(status=200, body=body)

    async def open(self, request: Request) -> Pieces:
        return Pieces(await self.send(request))

    async def close(self) -> None: ...

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.asked]


def owned(of):
    """As the API server has it."""
    owner = OwnerReference("v1", "ModelDeployment", "iris", UID, controller=True)
    labels = {**(of.metadata.labels or {}), Label.MODEL_UID: UID}
    metadata = msgspec.structs.replace(of.metadata, owner_references=(owner,), labels=labels)
    return msgspec.structs.replace(of, metadata=metadata)


def stored(of, known):
    """A revision of the history, as the API server has it."""
    manifest = manifests.controller_revision(serving(of), known)
    owner = {"apiVersion": "v1", "kind": "ModelDeployment", "name": "iris", "uid": UID, "controller": True}
    metadata = {**manifest["metadata"], "uid": known.hash, "ownerReferences": [owner]}
    return {**manifest, "metadata": metadata}


async def observed(of, *children, **answers):
    server_ = Server({**LIVE, **answers})
    caches = Caches.create()
    caches.models[MODEL_DEPLOYMENT].put(of)
    into = {Job: caches.jobs, Deployment: caches.deployments}
    for each in children:
        if isinstance(each, Pod):
            caches.pods.put(each)
        elif type(each) in into:
            into[type(each)].put(owned(each))
        else:
            caches.revisions.put(msgspec.convert(stored(of, each), ControllerRevision))
    found = await ModelReconciler(MODEL_DEPLOYMENT, Client(server_), caches, lambda: NOW, TERMS).observe(KEY)
    return found, server_


async def test_a_model_that_is_gone_is_no_snapshot():
    for kind in KINDS:
        assert await ModelReconciler(kind, Client(Server({})), Caches.create(), lambda: NOW, TERMS).observe(KEY) is None


async def test_a_served_model_is_seen_without_a_question():
    of = model()
    known = entry(of, 1, "served")
    snapshot, server_ = await observed(shown(of, revision=1), known, deployment(known), server(of))
    assert server_.asked == []
    assert [each.hash for each in snapshot.history] == [known.hash]
    assert (snapshot.deployment.revision, len(snapshot.pods)) == (known.hash, 1)


async def test_a_deleted_or_wrong_model_is_not_asked_about():
    for of in (model(metadata={"deletion_timestamp": ago(1)}), model(modelURI="nonsense")):
        _, server_ = await observed(of)
        assert server_.asked == []


async def test_a_download_begins_on_the_servers_own_word():
    of = model()
    found, server_ = await observed(of)
    known = serving(of).names.revision(preparer(of).revision)
    assert server_.paths == [ITSELF, REVISIONS, f"{REVISIONS}/{known}", f"{JOBS}/validate-iris", BEFORE]
    assert found.job is None


async def test_a_list_that_lags_is_not_believed_about_what_is_wanted():
    of = model()
    known = entry(of, 1, "served")
    found, _ = await observed(of, **{f"{REVISIONS}/{serving(of).names.revision(known.hash)}": stored(of, known)})
    assert [each.outcome for each in found.history] == ["served"]


async def test_no_download_begins_from_what_is_not_so_any_more():
    with pytest.raises(Stale):
        await observed(model(), **{ITSELF: {"metadata": {"name": "iris", "resourceVersion": "8"}}})


async def test_what_caches_have_not_heard_of_is_found():
    of = model()
    known = entry(of, 1, "served")
    found, _ = await observed(of, **{REVISIONS: {"items": [stored(of, known)]}})
    assert [each.outcome for each in found.history] == ["served"]
    there = msgspec.to_builtins(owned(job(of)))
    found, _ = await observed(of, **{f"{JOBS}/validate-iris": there})
    assert found.job.revision == revisions.hash_of(serving(of).want)


async def test_a_revision_that_cannot_be_read_keeps_no_model_from_being_looked_at():
    of = model()
    bad = stored(of, entry(of)) | {"data": {"want": {"uri": 3}}}
    path = f"{REVISIONS}/{bad['metadata']['name']}"
    found, _ = await observed(of, **{REVISIONS: {"items": [bad]}, path: bad})
    assert (found.history, [each.metadata.name for each in found.unlisted_revisions]) == ((), [bad["metadata"]["name"]])


async def test_a_claim_is_gone_only_on_the_servers_own_word():
    of = model(ml=True)
    known, there = entry(of, 1, "served"), msgspec.to_builtins(owned(claim()))
    caches, paths = Caches.create(), {**LIVE, ML_MODEL.resource.path("shop", "flowers"): {"metadata": {}}}
    caches.models[ML_MODEL].put(of)
    caches.revisions.put(msgspec.convert(stored(of, known), ControllerRevision))
    for answers, is_lost in (({}, True), ({CLAIMS: there}, False)):
        server_ = Server({**paths, **answers})
        snapshot = await ModelReconciler(ML_MODEL, Client(server_), caches, lambda: NOW, TERMS).observe(
            Key("shop", "flowers")
        )
        assert (target_revision.target(snapshot).lost is not None, CLAIMS in server_.paths) == (is_lost, True)


OWNER = {"apiVersion": "v1", "kind": "ModelDeployment", "name": "iris", "uid": UID, "controller": True}


@pytest.mark.parametrize(
    ("metadata", "is_found"),
    [
        ({"ownerReferences": [OWNER]}, True),
        ({"ownerReferences": [{**OWNER, "uid": "another"}], "labels": {"model": "iris", "type": "inference"}}, False),
        ({"labels": {"model": "iris", "type": "inference"}}, True),
        ({"labels": {"model": "roses", "type": "inference"}}, False),
        ({}, False),
    ],
)
async def test_only_what_was_made_for_the_model_is_its_predecessor(metadata, is_found):
    of = model()
    known = entry(of)
    there = {BEFORE: {"metadata": {"name": "inference-iris", "namespace": "shop", **metadata}}}
    found, _ = await observed(of, known, deployment(known), **there)
    assert (found.predecessor is not None) is is_found


async def test_a_predecessor_is_asked_about_until_it_has_been_followed():
    of = model()
    known = entry(of, 1, "served")
    there = {BEFORE: {"metadata": {"name": "inference-iris", "namespace": "shop", "ownerReferences": [OWNER]}}}
    taking = Condition("Progressing", "True", ago(9), Reason.ADOPTING, "It ends.")
    refused = Condition("Accepted", "False", ago(9), Reason.RECONCILE_FAILED, "Its end was refused.")
    for revision, said, is_asked in ((0, (), True), (1, (), False), (1, (taking,), True), (1, (refused,), True)):
        status = {"revision": revision, "conditions": said}
        found, _ = await observed(shown(of, **status), known, deployment(known), server(of), **there)
        assert (found.predecessor is not None) is is_asked


@pytest.mark.parametrize(
    ("end", "is_asked"), [(None, True), ("", False), ("Complete", True)], ids=["begins", "runs", "is done"]
)
async def test_reconciler_source_pvc_is_read_when_a_pod_is_about_to_mount_it(end, is_asked):
    of = model(modelURI="pvc://weights/iris.onnx")
    path = "/api/v1/namespaces/shop/persistentvolumeclaims/weights"
    answer = {"metadata": {"name": "weights"}, "spec": {"accessModes": ["ReadWriteMany"]}}
    found, server_ = await observed(of, *([] if end is None else [job(of, end)]), **{path: answer})
    assert (path in server_.paths, found.source is not None and found.source.is_multi_node) == (is_asked, is_asked)
    missing, _ = await observed(of)
    assert missing.source is None


async def test_a_job_of_somebody_else_is_not_ours():
    of = model()
    found, _ = await observed(of, **{f"{JOBS}/validate-iris": msgspec.to_builtins(job(of))})
    assert found.job is None


async def test_servers_are_changed_on_the_servers_own_word():
    of = model()
    old, new = entry(of, 1, "served"), entry(changed(of, version="v2"), 2)
    taken = {DEPLOYMENT_: {"metadata": {"name": "iris"}}}
    found, server_ = await observed(changed(of, version="v2"), old, new, deployment(old), server(of), **taken)
    assert (server_.paths[:2], server_.paths[-1]) == ([ITSELF, REVISIONS], DEPLOYMENT_)
    assert (server_.asked[-1].query["dryRun"], found.preflight_error) == ("All", None)


async def test_what_the_api_server_has_against_servers_is_known_before_they_are_made():
    of = model()
    old, new = entry(of, 1, "served"), entry(changed(of, version="v2"), 2)
    said = 'Deployment.apps "iris" is invalid: spec.template.spec.containers[0].resources: Invalid value: "-1"'
    refusing = {f"PATCH {DEPLOYMENT_}": Invalid(422, "Invalid", said)}
    found, _ = await observed(changed(of, version="v2"), old, new, deployment(old), server(of), **refusing)
    said = 'rejects the Deployment of this model: spec.resources: Invalid value: "-1". Fix the named fields.'
    assert found.preflight_error == f"The API server {said}"
    known, server_ = await observed(of, old, deployment(old), server(of))
    assert (known.preflight_error, DEPLOYMENT_ in server_.paths) == (None, False)


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("containers[0].env[5].valueFrom: Invalid value", "spec.env[0].valueFrom: Invalid value"),
        ("containers[0].env[7].name: Required value", "spec.env[2].name: Required value"),
        ("containers[0].env[0].name: Required value", "spec.template.spec.containers[0].env[0].name: Required value"),
    ],
)
async def test_a_variable_is_named_by_its_place_in_the_spec(told, shown):
    of = model()
    old, new = entry(of, 1, "served"), entry(changed(of, version="v2"), 2)
    refusing = {f"PATCH {DEPLOYMENT_}": Invalid(422, "Invalid", f"spec.template.spec.{told}")}
    found, _ = await observed(changed(of, version="v2"), old, new, deployment(old), server(of), **refusing)
    assert shown in found.preflight_error


@pytest.mark.parametrize("is_taken", [True, False])
async def test_a_name_that_another_deployment_has_is_not_the_fault_of_the_revision(is_taken):
    """Whoever makes the servers is told whose it is, and tries again."""

    class Refusing(Server):
        async def send(self, request):
            if request.path == DEPLOYMENT_ and request.method == "PATCH":
                raise Invalid(422, "Invalid", "spec.selector: field is immutable")
            return await super().send(request)

    of, caches = model(), Caches.create()
    new = entry(of)
    caches.models[MODEL_DEPLOYMENT].put(of)
    caches.revisions.put(msgspec.convert(stored(of, new), ControllerRevision))
    live = {**LIVE, REVISIONS: {"items": [stored(of, new)]}}
    taken = {DEPLOYMENT_: {"metadata": {"name": "iris", "uid": "x"}}} if is_taken else {}
    controller = ModelReconciler(MODEL_DEPLOYMENT, Client(Refusing({**live, **taken})), caches, lambda: NOW, TERMS)
    assert ((await controller.observe(KEY)).preflight_error is None) is is_taken


async def test_who_forbids_servers_does_not_condemn_their_revision():
    """It is told where they are asked for, and tried again."""
    of = model()
    old, new = entry(of, 1, "served"), entry(changed(of, version="v2"), 2)
    forbidding = {f"PATCH {DEPLOYMENT_}": Forbidden(403, "Forbidden", 'admission webhook "policy" denied the request')}
    found, _ = await observed(changed(of, version="v2"), old, new, deployment(old), server(of), **forbidding)
    assert found.preflight_error is None


async def test_reconciler_webhook_without_dry_run_is_no_preflight_error():
    of = model()
    old, new = entry(of, 1, "served"), entry(changed(of, version="v2"), 2)
    unable = Invalid(400, "BadRequest", 'admission webhook "policy" does not support dry run')
    refusing = {f"PATCH {DEPLOYMENT_}": unable}
    found, _ = await observed(changed(of, version="v2"), old, new, deployment(old), server(of), **refusing)
    assert found.preflight_error is None


async def test_what_a_download_came_to_is_asked_of_its_pod():
    of = model()
    done = preparer(of, "Succeeded")
    found, server_ = await observed(of, job(of, "Complete"), **{PODS: {"items": [msgspec.to_builtins(done)]}})
    asked = next(request for request in server_.asked if request.path == PODS)
    assert asked.query["labelSelector"] == f"{Label.MODEL_UID}={UID},{Label.REVISION}={done.revision}"
    assert [pod.metadata.name for pod in found.pods] == ["prepare-0"]


async def test_a_list_that_lags_does_not_take_back_what_a_pod_has_said():
    of = model()
    now = preparer(of, "Succeeded", metadata={"resourceVersion": "9"})
    before = msgspec.to_builtins(preparer(of, metadata={"resourceVersion": "5"}))
    found, _ = await observed(of, job(of, "Complete"), now, **{PODS: {"items": [before]}})
    assert [pod.status.phase for pod in found.pods] == ["Succeeded"]


async def test_the_log_of_what_failed_is_read_once():
    of = model()
    bad = preparer(of, "Failed", exit=75)
    answers = {f"{PODS}/prepare-0/log": b"no route\n"}
    found, server_ = await observed(of, job(of, "Failed"), bad, **answers)
    assert found.log == "no route\n"
    assert server_.asked[-1].query == {"container": "fetch", "tailLines": "20"}
    known = Failure(step="Download", reason="x", revision=bad.revision, failure_time=ago(10), attempts=1)
    found, _ = await observed(shown(of, failure=known), job(of, "Failed"), bad, **answers)
    assert found.log is None


async def test_a_log_that_cannot_be_read_is_not_waited_for():
    of = model()
    answers = {f"{PODS}/prepare-0/log": Unreachable("no node")}
    found, _ = await observed(of, job(of, "Failed"), preparer(of, "Failed", exit=1), **answers)
    assert found.log is None


async def test_the_log_of_a_server_that_was_started_again_is_the_earlier_one():
    of = model()
    known = entry(of)
    bad = server(of, ready=False, exit=1, restarts=3)
    answers = {f"{PODS}/server-0/log": b"bad layer\n", DEPLOYMENT_: owned(deployment(known, available=0))}
    found, server_ = await observed(of, known, deployment(known, available=0), bad, **answers)
    assert (found.log, server_.asked[-1].query["previous"]) == ("bad layer\n", "true")
    told = Failure(step="Deploy", reason="CrashLoop", exit_code=1, revision=known.hash, failure_time=ago(1))
    found, _ = await observed(shown(of, failure=told), known, deployment(known, available=0), bad, **answers)
    assert found.log is None


async def test_servers_are_not_given_up_on_the_word_of_caches_that_lag():
    of = model()
    known = entry(of)
    late, starts = deployment(known, available=0, late=LATE), server(of, ready=False)
    pods = {"items": [server(of, 1, ready=False, exit=37, restarts=1)]}
    found, _ = await observed(of, known, late, starts, **{DEPLOYMENT_: owned(late), PODS: pods})
    assert [pod.metadata.name for pod in found.serving_pods(known.hash)] == ["server-0", "server-1"]
    found, _ = await observed(of, known, late, starts, **{DEPLOYMENT_: owned(deployment(known))})
    assert found.deployment.is_rolled_out
    for changed_meanwhile in ({}, {DEPLOYMENT_: owned(deployment(entry(changed(of, version="v2"))))}):
        with pytest.raises(Stale):
            await observed(of, known, late, starts, **changed_meanwhile)


async def test_reconciler_download_progress_is_read_every_ten_seconds_then_every_minute():
    of = model()
    line = json.dumps({"bytes": 50, "total": 200, "seconds_left": 7.5, "message": "50 B of 200 B"})
    answers = {f"{PODS}/prepare-0/log": line.encode() + b"\n"}
    found, server_ = await observed(of, job(of), preparer(of), **answers)
    assert found.download == Download(bytes=50, total=200, percent=25, remaining_seconds=7, last_updated_time=ago(0))
    assert server_.asked[-1].query["tailLines"] == "1"
    for ran, seconds, is_asked in ((40, 4, False), (40, 10, True), (7200, 30, False), (7200, 60, True)):
        last = Download(bytes=1, last_updated_time=ago(seconds))
        known = shown(of, download=last, candidate=preparer(of).revision)
        found, _ = await observed(known, job(of), preparer(of, ran=ran), **answers)
        assert (found.download is not None) is is_asked


@pytest.mark.parametrize(("ran", "is_asked"), [(1, False), (3, True), (-600, True)])
async def test_reconciler_long_download_progress_is_read_despite_node_clock_skew(ran, is_asked):
    of = model()
    answers = {f"{PODS}/prepare-0/log": b'{"bytes": 5}'}
    found, _ = await observed(of, job(of), preparer(of, ran=ran), **answers)
    assert (found.download is not None) is is_asked


async def test_who_cannot_make_a_pod_is_asked_why():
    """Events are listed by their names, and the newest tells."""
    of = model()
    newest = {"reason": "FailedCreate", "note": "exceeded quota", "deprecatedLastTimestamp": ago(1)}
    told = {"items": [newest, {**newest, "note": "no such account", "deprecatedLastTimestamp": ago(9)}]}
    found, _ = await observed(of, job(of), **{EVENTS: told})
    assert found.create_failure == "exceeded quota"
    found, server_ = await observed(of, job(of, seconds=5), **{EVENTS: told})
    assert (found.create_failure, server_.asked) == (None, [])


async def test_who_does_not_start_on_its_node_is_asked_about():
    of = model()
    told = {"items": [{"reason": "FailedMount", "note": "no such claim", "eventTime": ago(3)}]}
    stuck = preparer(of, "Pending", waiting="ContainerCreating")
    found, _ = await observed(of, job(of), stuck, **{EVENTS: told})
    assert found.pod_event == PodEvent("prepare-0", "FailedMount", "no such claim")


def test_progress_without_a_bottom_is_none():
    assert parse('{"bytes": 5, "x": ' + "[" * 3000 + "]" * 3000 + "}", NOW) is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"bytes": 5}', (5, None, None, None)),
        ('{"bytes": 5, "total": null, "seconds_left": null}', (5, None, None, None)),
        ('{"bytes": 9, "total": 3}', (9, None, None, None)),
        ('{"bytes": -1, "total": 0, "seconds_left": -3}', (0, None, None, None)),
        ('{"bytes": 1, "total": 3, "seconds_left": 1e300}', (1, 3, 33, None)),
    ],
)
def test_progress_is_believed_as_far_as_it_can_be(line, expected):
    found = parse(line, NOW)
    assert (found.bytes, found.total, found.percent, found.remaining_seconds) == expected


@pytest.mark.parametrize("line", ["", "Traceback", "[]", '{"bytes": "many"}', '{"message": "hello"}'])
def test_a_line_that_says_something_else_is_no_progress(line):
    assert parse(line, NOW) is None


def test_each_kind_has_its_cache():
    assert list(Caches.create().models) == [MODEL_DEPLOYMENT, ML_MODEL]
