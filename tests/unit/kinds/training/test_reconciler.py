"""What the controller asks of the API server itself, beside what its caches tell."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from skysail.core.controller import Controller
from skysail.core.errors import Stale
from skysail.core.pod_pending import PodEvent
from skysail.kinds.training.api.training_job import TRAINING_JOB, LatestCheckpoint
from skysail.kinds.training.caches import Caches
from skysail.kinds.training.children import spec_hash
from skysail.kinds.training.reconciler import TrainingJobReconciler
from skysail.kinds.training.snapshot import NameHolder
from skysail.kube.api.fields import PodTemplate
from skysail.kube.api.objects import Key, OwnerReference
from skysail.kube.cache.discovery import Discovery
from skysail.kube.client.client import Client
from skysail.kube.client.errors import Unreachable
from skysail.kube.client.transport import Reply
from tests.support import virtual_time
from tests.support.streams import Pieces
from tests.unit.kinds.training.builders import (
    CHIEF,
    NOW,
    ago,
    attempt,
    changed,
    child,
    deleted,
    disruption,
    job,
    pod,
    status,
)
from tests.unit.kinds.training.samples import UID

if TYPE_CHECKING:
    from skysail.kube.client.transport import Request

KEY = Key("ml-jobs", "mnist")
JOBS = "/apis/batch/v1/namespaces/ml-jobs/jobs"
PODS = "/api/v1/namespaces/ml-jobs/pods"
EVENTS = "/apis/events.k8s.io/v1/namespaces/ml-jobs/events"
ITSELF = TRAINING_JOB.resource.path("ml-jobs", "mnist")
TAKEN = Reply(status=201, body=b'{"metadata": {"name": "tried"}}')


class Server:
    """Answers by path; what it does not know is not there. `trial` answers what is only tried."""

    def __init__(self, answers: dict[str, Any], trial: Reply = TAKEN) -> None:
        self.answers = answers
        self.trial = trial
        self.asked: list[Request] = []

    async def send(self, request: Request) -> Reply:
        self.asked.append(request)
        if "dryRun" in request.query:
            return self.trial
        answer = self.answers.get(request.path)
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
    owner = OwnerReference(TRAINING_JOB.resource.api_version, "TrainingJob", "mnist", UID, controller=True)
    return msgspec.structs.replace(of, metadata=msgspec.structs.replace(of.metadata, owner_references=(owner,)))


def labelled(of):
    labels = {**of.metadata.labels, "trainingjob.ml.example.com/uid": UID}
    return msgspec.structs.replace(of, metadata=msgspec.structs.replace(of.metadata, labels=labels))


def listed(*items):
    return {"items": list(items)}


async def observed(of, *children, **answers):
    server = answers.pop("server", None) or Server(answers.pop("answers", {}))
    caches = Caches.create()
    caches.training.put(of)
    for each in children:
        if type(each).__name__ == "Job":
            caches.jobs.put(owned(each))
        else:
            caches.pods.put(labelled(each))
    snapshot = await TrainingJobReconciler(Client(server), caches, lambda: NOW, **answers).observe(KEY)
    return snapshot, server


async def test_a_job_that_is_gone_is_no_snapshot():
    assert await TrainingJobReconciler(Client(Server({})), Caches.create(), lambda: NOW).observe(KEY) is None


async def test_snapshot_knows_when_the_process_started():
    times = iter((NOW, NOW + timedelta(minutes=5)))
    caches = Caches.create()
    caches.training.put(job(metadata={"deletion_timestamp": ago(3600)}))
    snapshot = await TrainingJobReconciler(Client(Server({})), caches, lambda: next(times)).observe(KEY)
    assert (snapshot.started_at, snapshot.now) == (NOW, NOW + timedelta(minutes=5))


async def test_a_running_job_is_seen_without_a_question():
    of = job(status=status(attempt(0), phase="Running"))
    snapshot, server = await observed(of, child(of), pod(0), pod(1))
    assert server.asked == []
    assert [each.metadata.name for each in (*snapshot.jobs, *snapshot.pods)] == [
        "mnist-worker-0",
        "mnist-worker-0-0-0",
        "mnist-worker-0-1-0",
    ]


async def test_what_is_over_deleted_or_managed_by_others_is_not_asked_about():
    over = job(status=status(attempt(0, "Failed"), phase="Failed"))
    managed = job(managedBy="kueue.x-k8s.io/multikueue")
    gone = job(metadata={"deletion_timestamp": ago(1)}, status=status(attempt(0)))
    for of in (over, managed, gone):
        _, server = await observed(of)
        assert server.asked == []


async def test_reconciler_success_without_seen_pods_reads_the_start_time():
    of = job(status=status(attempt(0)))
    ended = [pod(0, "Succeeded", exit=0), pod(1, "Succeeded", exit=0)]
    snapshot, server = await observed(of, child(of, end="Complete"), answers={PODS: listed(*ended)})
    assert (server.paths, len(snapshot.pods)) == ([PODS], 2)
    known = job(status=status(attempt(0, run_time=ago(40)), phase="Running"))
    assert (await observed(known, child(known, end="Complete"), *ended))[1].asked == []


async def test_an_attempt_begins_on_the_servers_own_word():
    of = job(metadata={"resource_version": "7"})
    _, server = await observed(of, answers={ITSELF: {"metadata": {"name": "mnist", "resourceVersion": "7"}}})
    assert server.paths == [ITSELF]


async def test_the_jobs_of_a_spec_are_tried_once_before_an_attempt_is_made_from_it():
    """Nothing is written. What an attempt was made from before is not tried, nor the only Job of a first one.

    But that one is, where it has a template: the API server leaves out what is misspelt there when it makes the Job.
    """
    itself = {ITSELF: {"metadata": {"name": "mnist", "resourceVersion": "7"}}, JOBS: listed(), PODS: listed()}
    snapshot, server = await observed(job(metadata={"resource_version": "7"}, **CHIEF), answers=itself)
    assert (snapshot.preflight_error, server.asked[-1].query["dryRun"]) == (None, "All")
    assert (await observed(job(metadata={"resource_version": "7"}), answers=itself))[1].paths == [ITSELF]
    template = job(metadata={"resource_version": "7"}, podTemplate={"spec": {"nodeSelektor": {"zone": "a"}}})
    assert f"{JOBS}/mnist-worker-0" in (await observed(template, answers=itself))[1].paths
    known = attempt(0, "Suspended", spec_hash=spec_hash.job_spec_hash(job().spec))
    again = job(metadata={"resource_version": "7"}, status=status(known))
    assert f"{JOBS}/mnist-worker-1" not in (await observed(again, answers=itself))[1].paths
    other = changed(again, image="other:1")
    assert f"{JOBS}/mnist-worker-1" in (await observed(other, answers=itself))[1].paths


UNTYPED = "failed to create typed patch object (ml-jobs/x; batch/v1, Kind=Job): .spec.template.spec."
UNMOUNTED = 'spec.containers[0].volumeMounts[0].name: Not found: "a"'


@pytest.mark.parametrize(
    ("code", "reason", "said", "told"),
    [
        (500, "", f"{UNTYPED}nodeSelektor: not declared", "spec: spec.podTemplate.spec.nodeSelektor: not declared."),
        (
            422,
            "Invalid",
            f'Job.batch "x" is invalid: spec.template.{UNMOUNTED}',
            f"spec: spec.podTemplate.{UNMOUNTED}.",
        ),
        (403, "Forbidden", "admission webhook denied the request: no GPUs", "denied the request: no GPUs."),
        (403, "Forbidden", "exceeded quota: jobs, used: 1, limited: 1", None),
        (400, "BadRequest", 'admission webhook "a" does not support dry run', None),
    ],
    ids=["unknown field", "unknown volume", "policy", "quota", "cannot be asked"],
)
async def test_reconciler_rejected_change_is_known_before_running_attempt_is_ended(code, reason, said, told):
    refused = Reply(status=code, body=msgspec.json.encode({"code": code, "reason": reason, "message": said}))
    of = job(status=status(attempt(0), phase="Running"))
    wrong = changed(of, pod_template=PodTemplate(spec={"nodeSelektor": {"zone": "a"}}))
    snapshot, _ = await observed(wrong, child(of), pod(0), pod(1), server=Server({}, refused))
    assert (snapshot.preflight_error is None) if told is None else (told in snapshot.preflight_error)


async def test_a_strangers_job_that_has_the_name_is_no_word_against_the_spec():
    immutable = Reply(status=422, body=b'{"reason": "Invalid", "message": "field is immutable"}')
    of = job(status=status(attempt(0), phase="Running"))
    server = Server({f"{JOBS}/mnist-worker-1": {"metadata": {"name": "mnist-worker-1"}}}, immutable)
    snapshot, _ = await observed(changed(of, image="other:1"), child(of), pod(0), pod(1), server=server)
    assert snapshot.preflight_error is None


async def test_no_attempt_begins_from_what_is_not_so_any_more():
    of = job(metadata={"resource_version": "7"})
    with pytest.raises(Stale):
        await observed(of, answers={ITSELF: {"metadata": {"name": "mnist", "resourceVersion": "8"}}})


async def test_what_the_caches_have_missed_of_the_last_attempt_is_found_before_the_next():
    of = job(metadata={"resource_version": "7"}, status=status(attempt(0, "Suspended")))
    itself = {"metadata": {"name": "mnist", "resourceVersion": "7"}}
    answers = {ITSELF: itself, JOBS: listed(), PODS: listed(pod(1))}
    snapshot, server = await observed(of, answers=answers)
    assert [each.metadata.name for each in snapshot.pods] == ["mnist-worker-0-1-0"]
    assert server.asked[-1].query == {"labelSelector": f"trainingjob.ml.example.com/uid={UID}"}


CLAIM = "/api/v1/namespaces/ml-jobs/persistentvolumeclaims/mnist-checkpoints"


@pytest.mark.parametrize(
    ("claim", "lost"),
    [
        ({"creationTimestamp": ago(500)}, False),
        ({"creationTimestamp": ago(50)}, True),
        ({"creationTimestamp": ago(500), "deletionTimestamp": ago(5)}, True),
        (None, True),
    ],
    ids=["the same", "another of its name", "on its way out", "gone"],
)
async def test_reconciler_before_resume_checks_that_the_checkpoint_pvc_exists(claim, lost):
    saved = LatestCheckpoint(path="/c/9", save_time=ago(100), claim_name="mnist-checkpoints")
    known = status(attempt(0, "Suspended"), checkpoint=saved)
    of = job(metadata={"resource_version": "7"}, status=known, checkpointDir="/c")
    answers = {ITSELF: {"metadata": {"name": "mnist", "resourceVersion": "7"}}, JOBS: listed(), PODS: listed()}
    if claim is not None:
        answers[CLAIM] = {"metadata": {"name": "mnist-checkpoints", **claim}}
    snapshot, _ = await observed(of, answers=answers)
    assert snapshot.has_lost_checkpoint is lost


async def test_what_is_left_of_one_that_had_the_name_is_waited_for_without_a_question():
    of = job()
    owner = OwnerReference(TRAINING_JOB.resource.api_version, "TrainingJob", "mnist", "another", controller=True)
    old = child(of)
    caches = Caches.create()
    caches.training.put(of)
    caches.jobs.put(
        msgspec.structs.replace(old, metadata=msgspec.structs.replace(old.metadata, owner_references=(owner,)))
    )
    for each in (pod(0, metadata=deleted(5)), pod(1, "Failed")):
        labels = {**each.metadata.labels, "trainingjob.ml.example.com/uid": "another"}
        caches.pods.put(msgspec.structs.replace(each, metadata=msgspec.structs.replace(each.metadata, labels=labels)))
    server = Server({})
    snapshot = await TrainingJobReconciler(Client(server), caches, lambda: NOW).observe(KEY)
    assert (snapshot.name_held_by, server.asked) == (NameHolder("mnist-worker-0", ("mnist-worker-0-0-0",)), [])


async def test_a_job_that_the_cache_lacks_is_looked_for():
    of = job(status=status(attempt(0)))
    there, _ = await observed(of, answers={f"{JOBS}/mnist-worker-0": owned(child(of))})
    assert ([each.metadata.name for each in there.jobs], there.missing_jobs) == (["mnist-worker-0"], frozenset())
    gone, _ = await observed(of)
    assert (gone.jobs, gone.missing_jobs) == ((), {"mnist-worker-0"})


async def test_a_strangers_job_of_that_name_is_not_ours():
    of = job(status=status(attempt(0)))
    snapshot, _ = await observed(of, answers={f"{JOBS}/mnist-worker-0": child(of)})
    assert snapshot.missing_jobs == {"mnist-worker-0"}


async def test_a_server_that_does_not_answer_ends_no_attempt():
    of = job(status=status(attempt(0)))
    with pytest.raises(Unreachable):
        await observed(of, answers={f"{JOBS}/mnist-worker-0": Unreachable("down")})


async def test_the_log_of_the_pod_that_failed_first_is_read():
    of = job(status=status(attempt(0)))
    first, second = pod(1, "Failed", finished=ago(20)), pod(0, "Failed", finished=ago(10))
    answers = {PODS: listed(first, second), f"{PODS}/mnist-worker-0-1-0/log": b"Epoch 3\nValueError: nan\n"}
    # The cache has not heard yet of the one that failed first.
    snapshot, server = await observed(of, child(of, end="Failed"), second, answers=answers)
    assert snapshot.log == "Epoch 3\nValueError: nan\n"
    assert server.asked[-1].query == {"container": "trainer", "tailLines": "100"}


async def test_of_a_long_log_the_end_is_read_as_a_terminal_shows_it():
    """A bar of progress is one line of any length, and the traceback comes after it."""
    of = job(status=status(attempt(0)))
    bar = b"".join(b"\r%d%% of the epoch" % (at % 100) for at in range(20000))
    log = bar + b"\nTraceback (most recent call last):\r\nValueError: nan\n"
    answers = {PODS: listed(pod(1, "Failed")), f"{PODS}/mnist-worker-0-1-0/log": log}
    snapshot, _ = await observed(of, child(of, end="Failed"), pod(1, "Failed"), answers=answers)
    assert snapshot.log == "99% of the epoch\nTraceback (most recent call last):\nValueError: nan\n"


async def test_a_log_that_cannot_be_read_is_unknown_and_keeps_nobody():
    of = job(status=status(attempt(0)))
    dead = pod(1, "Failed")
    unreadable, _ = await observed(of, child(of, end="Failed"), dead, answers={PODS: listed(dead)})
    assert unreadable.log is None
    silent = {PODS: listed(dead), f"{PODS}/mnist-worker-0-1-0/log": Unreachable("down")}
    assert (await observed(of, child(of, end="Failed"), dead, answers=silent))[0].log is None


async def test_a_log_of_a_pod_that_only_had_to_go_is_not_asked_for():
    of = job(status=status(attempt(0)))
    going = pod(1, conditions=[disruption()])
    _, server = await observed(of, child(of), going, answers={PODS: listed(going)})
    assert server.paths == [PODS]


async def test_what_keeps_the_pods_from_being_made_is_read_from_events():
    of = job(status=status(attempt(0)))
    told = listed({"note": "older"}, {"note": "exceeded quota: gpus"})
    snapshot, server = await observed(of, child(of), pod(0), answers={EVENTS: told})
    assert snapshot.create_failure == "exceeded quota: gpus"
    assert server.asked[-1].query == {"fieldSelector": "regarding.uid=worker-0,reason=FailedCreate"}


async def test_pods_have_a_moment_to_be_made_before_anybody_is_asked():
    of = job(status=status(attempt(0)))
    _, server = await observed(of, child(of, shows={"startTime": ago(5)}), pod(0))
    assert server.asked == []


async def test_nobody_is_asked_about_a_job_that_its_controller_has_not_reached_yet():
    of = job(status=status(attempt(0)))
    _, server = await observed(of, child(of, shows={"startTime": None}))
    assert server.asked == []


async def test_what_keeps_a_pod_from_starting_is_its_newest_event():
    of = job(status=status(attempt(0)))
    told = listed(
        {"note": "assigned", "reason": "Scheduled", "eventTime": ago(50)},
        {"note": "Multi-Attach", "reason": "FailedAttachVolume", "deprecatedLastTimestamp": ago(20)},
        {"note": "not mounted", "reason": "FailedMount", "series": {"lastObservedTime": ago(30)}},
    )
    made = pod(1, "Pending", waiting="ContainerCreating")
    stuck = msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, node_name="node-1"))
    snapshot, server = await observed(of, child(of), pod(0), stuck, answers={EVENTS: told})
    assert snapshot.pod_event == PodEvent("mnist-worker-0-1-0", "FailedAttachVolume", "Multi-Attach")
    assert server.asked[-1].query == {"fieldSelector": "regarding.uid=worker-0-1-0"}
    assert (await observed(of, child(of), pod(0), stuck))[0].pod_event is None


async def test_a_pod_that_is_done_and_gone_is_not_asked_about():
    of = job(status=status(attempt(0)))
    _, server = await observed(of, child(of, shows={"completedIndexes": "1"}), pod(0))
    assert server.asked == []


async def test_what_was_seen_of_a_pod_that_has_gone_since_is_evidence():
    of = job(status=status(attempt(0)))
    snapshot, _ = await observed(of, child(of), pod(0), pod(1, metadata=deleted(5)), answers={PODS: listed(pod(0))})
    assert sorted(each.metadata.name for each in snapshot.pods) == ["mnist-worker-0-0-0", "mnist-worker-0-1-0"]


async def test_no_verdict_is_prepared_before_all_is_written_that_ended_pods_have_told():
    of = job(status=status(attempt(0)))
    seen = (child(of, end="Failed"), pod(0, "Failed"))
    snapshot, server = await observed(of, *seen, is_settled=lambda _: False)
    assert (snapshot.progress_flushed, server.asked) == (False, [])
    begins, server = await observed(job(), is_settled=lambda _: False)
    assert (begins.progress_flushed, server.asked) == (False, [])


def test_a_node_that_does_not_answer_for_a_log_keeps_nobody_for_long():
    class Silent(Server):
        async def send(self, request):
            if request.path.endswith("/log"):
                await asyncio.sleep(60)
            return await super().send(request)

    async def main():
        of = job(status=status(attempt(0)))
        dead = pod(1, "Failed")
        seen, _ = await observed(of, child(of, end="Failed"), dead, server=Silent({PODS: listed(dead)}))
        assert (seen.log, asyncio.get_running_loop().time()) == (None, 5.0)

    virtual_time.run(main())


async def test_events_that_cannot_be_read_say_nothing():
    of = job(status=status(attempt(0)))
    snapshot, _ = await observed(of, child(of), pod(0))
    assert snapshot.create_failure is None


class Loop:
    """Remembers who was woken."""

    def __init__(self) -> None:
        self.queue = self
        self.woken: list[Key] = []

    def add(self, key: Key) -> None:
        self.woken.append(key)

    watch_owned = Controller.watch_owned


def test_a_pod_wakes_its_training_job_by_the_uid_that_it_carries():
    caches, loop = Caches.create(), Loop()
    caches.training.put(job())
    caches.connect(loop, Discovery())
    caches.pods.put(labelled(pod(0)))
    assert loop.woken == [KEY]
    caches.pods.put(pod(1))
    assert loop.woken == [KEY]
