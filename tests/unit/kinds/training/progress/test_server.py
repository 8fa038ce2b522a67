"""Who may report, and what the server answers to everybody else."""

from __future__ import annotations

import random
from typing import Any, Self

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer

from skysail.kinds.training.caches import Caches
from skysail.kinds.training.children.progress_endpoint import path, token_audience
from skysail.kinds.training.progress.auth import NotAuthorized, ReporterAuthenticator, StaleAttempt
from skysail.kinds.training.progress.server import ProgressServer, ReportRateLimiter
from skysail.kinds.training.progress.status_writer import StatusWriter
from skysail.kube.api.objects import Key, OwnerReference
from skysail.kube.client.client import Client
from skysail.kube.client.transport import Reply
from tests.unit.kinds.training.builders import NOW, attempt, child, job, pod, status
from tests.unit.kinds.training.samples import UID
from tests.unit.kinds.training.test_reconciler import labelled, owned

KEY = Key("ml-jobs", "mnist")
TRAINING = job(checkpointDir="/checkpoints", status=status(attempt(0), phase="Running"))
BEARER = "Bearer right"


class ApiServer:
    """Knows one token, and whose it is."""

    def __init__(self, **changes: Any) -> None:
        self.reviews = 0
        self._user = {
            "username": "system:serviceaccount:ml-jobs:default",
            "extra": {
                "authentication.kubernetes.io/pod-name": ["mnist-worker-0-0-0"],
                "authentication.kubernetes.io/pod-uid": ["worker-0-0-0"],
            },
            **changes,
        }
        self.audiences = [token_audience(TRAINING)]
        self.knows_audiences = True

    async def send(self, request: Any) -> Reply:
        self.reviews += 1
        spec = msgspec.json.decode(request.body)["spec"]
        valid = [each for each in spec["audiences"] if each in self.audiences]
        right = {"authenticated": True, "user": self._user, "audiences": valid if self.knows_audiences else []}
        is_right = spec["token"] == "right" and (valid or not self.knows_audiences)
        answer = right if is_right else {"authenticated": False}
        return Reply(status=201, body=msgspec.json.encode({"status": answer}))


def made(of: Any) -> Any:
    """A pod as the Job controller makes it."""
    owner = OwnerReference("batch/v1", "Job", "mnist-worker-0", f"worker-{of.attempt}", controller=True)
    of = labelled(of)
    return msgspec.structs.replace(of, metadata=msgspec.structs.replace(of.metadata, owner_references=(owner,)))


def caches(*pods: Any, training: Any = TRAINING) -> Caches:
    known = Caches.create()
    known.training.put(training)
    known.jobs.put(owned(child(training)))
    for each in pods or (made(pod(0)),):
        known.pods.put(each)
    return known


def reporters(
    server: ApiServer | None = None, known: Caches | None = None, clock: Any = lambda: 0.0
) -> ReporterAuthenticator:
    return ReporterAuthenticator(Client(server or ApiServer()), known or caches(), clock)


async def test_a_pod_of_the_job_may_report():
    assert await reporters().check(KEY, BEARER) == TRAINING


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Basic right", "Bearer wrong", "right", "Bearer rïght", "Bearer " + "x" * 20_000],
)
async def test_who_has_no_token_of_the_job_may_not(header):
    with pytest.raises(NotAuthorized, match="not valid for TrainingJob ml-jobs/mnist"):
        await reporters().check(KEY, header)


async def test_a_stranger_does_not_learn_which_jobs_there_are():
    with pytest.raises(NotAuthorized, match="not valid for TrainingJob ml-jobs/missing"):
        await reporters().check(Key("ml-jobs", "missing"), BEARER)


async def test_a_token_for_another_job_of_the_same_name_is_worth_nothing():
    server = ApiServer()
    server.audiences = ["trainingjobs.ml.example.com/another-uid"]
    with pytest.raises(NotAuthorized):
        await reporters(server).check(KEY, BEARER)


async def test_a_server_that_does_not_look_at_audiences_is_not_believed():
    server = ApiServer()
    server.knows_audiences = False
    with pytest.raises(NotAuthorized):
        await reporters(server).check(KEY, BEARER)


FOREIGN = {
    "of no pod": ({"extra": {}}, None),
    "of a user": ({"username": "mallory"}, None),
    "of another namespace": ({"username": "system:serviceaccount:other:default"}, None),
    "of an earlier pod of that name": (
        {
            "extra": {
                "authentication.kubernetes.io/pod-name": ["mnist-worker-0-0-0"],
                "authentication.kubernetes.io/pod-uid": ["another"],
            }
        },
        None,
    ),
    "of a pod that somebody made and labelled": ({}, labelled(pod(0, metadata={"ownerReferences": []}))),
    "of a pod without our label": ({}, msgspec.structs.replace(made(pod(0)), metadata=pod(0).metadata)),
}


@pytest.mark.parametrize(("changes", "there"), FOREIGN.values(), ids=FOREIGN)
async def test_a_token_that_is_not_of_a_pod_of_the_job_is_refused(changes, there):
    known = caches() if there is None else caches(there)
    with pytest.raises(NotAuthorized, match="Only pods of the job may report"):
        await reporters(ApiServer(**changes), known).check(KEY, BEARER)


async def test_a_pod_of_an_attempt_that_another_one_followed_comes_too_late():
    training = job(status=status(attempt(0, "Failed"), attempt(1)))
    server = ApiServer()
    server.audiences = [token_audience(training)]
    with pytest.raises(StaleAttempt, match="attempt 1 has started"):
        await reporters(server, caches(training=training)).check(KEY, BEARER)


async def test_a_pod_whose_attempt_has_just_ended_may_still_tell_what_it_saved():
    training = job(status=status(attempt(0, "Suspended")))
    assert await reporters(ApiServer(), caches(training=training)).check(KEY, BEARER) == training


async def test_the_api_server_is_asked_once_a_minute():
    server, now = ApiServer(), 0.0
    asked = reporters(server, clock=lambda: now)
    for _ in range(3):
        await asked.check(KEY, BEARER)
    assert server.reviews == 1
    now = 61.0
    await asked.check(KEY, BEARER)
    assert server.reviews == 2


async def test_a_pod_that_is_gone_may_report_no_more_although_its_token_is_remembered():
    known = caches()
    asked = reporters(known=known)
    await asked.check(KEY, BEARER)
    known.pods.mark_deleted(made(pod(0)))
    with pytest.raises(NotAuthorized):
        await asked.check(KEY, BEARER)


class Visit:
    """A client of the server. Nothing is written: nobody works on what was noted."""

    def __init__(self, *, is_synced: bool = True, is_open: bool = True) -> None:
        self.known = caches()
        if is_synced:
            for cache in (self.known.training, self.known.jobs, self.known.pods):
                cache.synced.set()
        self.now = 0.0
        self.records = StatusWriter(Client(ApiServer()), self.known.training, now=lambda: NOW, rng=random.Random(1))
        self.records.is_open = is_open
        server = ProgressServer(
            reporters(known=self.known),
            self.records,
            self.known,
            report_rate_limiter=ReportRateLimiter(lambda: self.now),
            now=lambda: NOW,
        )
        self._client = TestClient(TestServer(server.application()))

    async def __aenter__(self) -> Self:
        await self._client.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def send(self, body: Any = None, *, method: str = "POST", to: str = path(KEY), token: str = BEARER) -> Any:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        reply = await self._client.request(method, to, data=data, headers={"Authorization": token})
        return reply, await reply.json()


REPORT = {"trainerStatus": {"progressPercentage": 5}}


async def test_what_was_taken_is_sent_back():
    async with Visit() as visit:
        reply, body = await visit.send(REPORT)
        assert (reply.status, body) == (200, REPORT)


REFUSED = {
    "no token": ({"body": REPORT, "token": ""}, 401, "Unauthorized"),
    "no report": ({"body": b"{"}, 400, "BadRequest"),
    "another path": ({"body": REPORT, "to": "/"}, 404, "NotFound"),
    "another method": ({"method": "PUT", "body": REPORT}, 405, "MethodNotAllowed"),
    "too large": ({"body": b"x" * 65_537}, 413, "RequestEntityTooLarge"),
}


@pytest.mark.parametrize(("request_", "code", "reason"), REFUSED.values(), ids=REFUSED)
async def test_every_refusal_is_a_status_with_a_sentence(request_, code, reason):
    async with Visit() as visit:
        reply, body = await visit.send(**request_)
    assert (reply.status, body["kind"], body["code"], body["reason"]) == (code, "Status", code, reason)
    assert body["message"].endswith(".")


@pytest.mark.parametrize("state", [{"is_synced": False}, {"is_open": False}])
async def test_a_process_that_starts_or_stops_asks_for_patience(state):
    async with Visit(**state) as visit:
        reply, _ = await visit.send(REPORT)
    assert (reply.status, reply.headers["Retry-After"]) == (503, "2")


async def test_a_job_that_is_reported_for_without_pause_is_slowed_down():
    async with Visit() as visit:
        codes = [(await visit.send(REPORT))[0].status for _ in range(401)]
        assert (set(codes[:400]), codes[400]) == ({200}, 429)
        visit.now = 10.0
        assert (await visit.send(REPORT))[0].status == 200


def test_a_jobs_rate_is_its_own():
    report_rate_limiter = ReportRateLimiter(lambda: 0.0)
    assert [report_rate_limiter.allows(UID) for _ in range(401)] == [True] * 400 + [False]
    assert report_rate_limiter.allows("another")
