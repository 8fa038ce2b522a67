"""Logs of all ranks over the simulated API server. What the nodes would answer is written down for each pod."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

import pytest

from skysail.cli import cluster, pod_logs
from skysail.cli.cluster import ObjectNotFound
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.resources import POD
from skysail.kube.client.client import Client
from skysail.kube.client.errors import ReplyLost
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time

if TYPE_CHECKING:
    from skysail.kube.client.transport import Request

NAMESPACE = "default"
RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
ENDED = {"terminated": {"exitCode": 0}}
BREAKS = object()


class Log:
    """One answer to a request for a log; `BREAKS` in it is a connection that breaks."""

    def __init__(self, *chunks: Any, status: int = 200) -> None:
        self.status = status
        self._chunks = chunks

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def __aiter__(self) -> Any:
        for chunk in self._chunks:
            await asyncio.sleep(0.1)
            if chunk is BREAKS:
                raise ReplyLost("broke off")
            if isinstance(chunk, asyncio.Event):
                await chunk.wait()
            else:
                yield chunk


class Harness:
    """An API server with one job, and nodes that answer for logs."""

    def __init__(self) -> None:
        self.api = ApiModel(World((TRAINING_JOB.resource,)))
        self.logs: dict[str, list[Log]] = {}
        self.asked: list[Request] = []
        self.client = Client(self)

    async def send(self, request: Request) -> Any:
        return await self.api.send(request)

    async def open(self, request: Request) -> Any:
        if not request.path.endswith("/log"):
            return await self.api.open(request)
        self.asked.append(request)
        name = request.path.split("/")[-2]
        return self.logs[name].pop(0) if self.logs[name] else Log()

    async def close(self) -> None: ...

    async def job(self, name: str = "mnist", namespace: str = NAMESPACE) -> TrainingJob:
        spec = {"framework": "pytorch", "image": "trainer:1", "command": ["train"], "workers": 2}
        manifest = {
            "apiVersion": TRAINING_JOB.resource.api_version,
            "kind": "TrainingJob",
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        }
        return await self.client.create(TRAINING_JOB.resource, manifest, TrainingJob)

    async def pod(self, job: TrainingJob, index: int, attempt: int, state: dict[str, Any], *log: Log) -> Object:
        name = f"mnist-worker-{attempt}-{index}"
        labels = {
            "trainingjob.ml.example.com/uid": job.metadata.uid,
            "trainingjob.ml.example.com/worker": "worker",
            "skysail.dev/attempt": str(attempt),
            "batch.kubernetes.io/job-completion-index": str(index),
        }
        self.logs[name] = list(log)
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
            "spec": {"containers": [{"name": "trainer", "image": "trainer:1"}]},
        }
        return await self.tell(await self.client.create(POD, manifest, Object), state)

    async def tell(self, pod: Object, state: dict[str, Any]) -> Object:
        phase = "Running" if "running" in state else "Succeeded" if state else "Pending"
        status = {"phase": phase, "containerStatuses": [{"name": "trainer", "state": state}]}
        return await self.client.patch_status(POD, pod, status, Object)

    async def ends(self, job: TrainingJob, **status: Any) -> None:
        now = await self.client.get(TRAINING_JOB.resource, NAMESPACE, job.metadata.name, Object)
        await self.client.patch_status(TRAINING_JOB.resource, now, {"phase": "Succeeded", **status}, Object)


def stamped(*lines: str) -> bytes:
    """The n-th line was said at the n-th nanosecond."""
    return b"".join(f"2026-01-01T00:00:00.00000000{line[-1]}Z {line}\n".encode() for line in lines)


def followed(test: Any, log_selection: pod_logs.LogSelection | None = None) -> tuple[list[tuple[str, str]], Harness]:
    """What was said by whom while a story was told, until no more could come."""
    said: list[tuple[str, str]] = []

    async def main() -> Harness:
        harness = Harness()
        job = await harness.job()
        following = asyncio.create_task(
            pod_logs.follow(
                harness.client,
                job,
                log_selection or pod_logs.LogSelection(),
                lambda pod, line: said.append((pod.metadata.name, line)),
            )
        )
        await test(harness, job)
        await following
        return harness

    return said, virtual_time.run(main())


def test_all_ranks_of_all_attempts_are_heard_to_their_end():
    async def test(harness: Harness, job: TrainingJob) -> None:
        first = await harness.pod(job, 0, 0, RUNNING, Log(stamped("a 1", "a 2")))
        await harness.tell(first, ENDED)
        await asyncio.sleep(60)
        await harness.client.delete(POD, first, Object)
        waits = await harness.pod(job, 0, 1, {}, Log(stamped("c 1")))
        other = await harness.pod(job, 1, 1, RUNNING, Log(stamped("b 1")))
        await asyncio.sleep(60)
        await harness.tell(waits, ENDED)
        await harness.tell(other, ENDED)
        await asyncio.sleep(60)
        await harness.ends(job)

    said, _ = followed(test)
    assert said == [
        ("mnist-worker-0-0", "a 1"),
        ("mnist-worker-0-0", "a 2"),
        ("mnist-worker-1-1", "b 1"),
        ("mnist-worker-1-0", "c 1"),
    ]


def test_who_follows_is_told_why_a_pod_has_not_started_each_reason_once():
    told: list[str] = []

    def waiting(how_far: str) -> dict[str, Any]:
        return {"waiting": {"reason": "ContainerCreating", "message": f"preparing its image: {how_far}"}}

    async def main() -> None:
        harness = Harness()
        job = await harness.job()
        following = asyncio.create_task(
            pod_logs.follow(
                harness.client,
                job,
                pod_logs.LogSelection(),
                lambda pod, line: None,
                report=told.append,
            )
        )
        pod = await harness.pod(job, 0, 0, waiting("1 of 19 packages"), Log(stamped("a 1")))
        await asyncio.sleep(1)
        pod = await harness.tell(pod, waiting("1 of 19 packages"))
        await asyncio.sleep(1)
        pod = await harness.tell(pod, waiting("12 of 19 packages"))
        await asyncio.sleep(1)
        await harness.tell(pod, ENDED)
        await harness.ends(job)
        await following

    virtual_time.run(main())
    assert told == [f"worker-0 is preparing its image: {many} of 19 packages." for many in (1, 12)]


def test_a_stream_that_breaks_goes_on_after_the_last_line():
    async def test(site: Harness, job: TrainingJob) -> None:
        broken = Log(stamped("a 1", "a 2"), BREAKS)
        again = Log(stamped("a 1", "a 2", "a 3")[:-4], stamped("a 3")[-4:], stamped("a 4"))
        pod = await site.pod(job, 0, 0, RUNNING, broken, again)
        await asyncio.sleep(60)
        await site.tell(pod, ENDED)
        await asyncio.sleep(60)
        await site.ends(job)

    said, site = followed(test)
    assert [line for _, line in said] == ["a 1", "a 2", "a 3", "a 4"]
    assert "sinceTime" not in site.asked[0].query
    assert site.asked[1].query["sinceTime"] == "2026-01-01T00:00:00Z"


def test_lines_of_one_moment_are_all_heard_and_none_twice():
    async def test(harness: Harness, job: TrainingJob) -> None:
        broken = Log(stamped("a 1", "b 1", "c 1"), BREAKS)
        again = Log(stamped("a 1", "b 1", "c 1", "d 1", "e 2"))
        pod = await harness.pod(job, 0, 0, RUNNING, broken, again)
        await asyncio.sleep(60)
        await harness.tell(pod, ENDED)
        await harness.ends(job)

    said, _ = followed(test)
    assert [line for _, line in said] == ["a 1", "b 1", "c 1", "d 1", "e 2"]


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_node_that_does_not_answer_ends_nothing(status):
    async def test(harness: Harness, job: TrainingJob) -> None:
        lost = await harness.pod(job, 0, 0, RUNNING, Log(stamped("a 1"), BREAKS), *[Log(b"{}", status=status)] * 99)
        await asyncio.sleep(30)
        await harness.client.delete(POD, lost, Object)
        await harness.pod(job, 0, 1, ENDED, Log(stamped("b 1")))
        await harness.ends(job)

    said, _ = followed(test)
    assert [line for _, line in said] == ["a 1", "b 1"]


def test_a_node_that_never_answers_for_a_pod_that_has_ended_is_given_up():
    async def test(site: Harness, job: TrainingJob) -> None:
        await site.pod(job, 0, 0, ENDED, *[Log(b"{}", status=500)] * 99)
        await site.ends(job)

    said, site = followed(test)
    assert (said, len(site.asked)) == ([], 10)


def test_one_that_lived_shorter_than_the_news_travelled_is_heard_too():
    async def test(harness: Harness, job: TrainingJob) -> None:
        await harness.pod(job, 0, 0, ENDED, Log(stamped("a 1")))
        await harness.ends(job)

    said, _ = followed(test)
    assert said == [("mnist-worker-0-0", "a 1")]


@pytest.mark.parametrize(
    ("wanted", "want"),
    [
        (pod_logs.LogSelection(rank=("worker", 1)), {"b", "d"}),
        (pod_logs.LogSelection(attempt=1), {"c", "d"}),
        (pod_logs.LogSelection(("worker", 0), 1), {"c"}),
        (pod_logs.LogSelection(("ps", 0)), set()),
    ],
)
def test_only_those_that_were_asked_for_are_heard(wanted, want):
    async def test(harness: Harness, job: TrainingJob) -> None:
        for name, index, attempt in (("a", 0, 0), ("b", 1, 0), ("c", 0, 1), ("d", 1, 1)):
            await harness.pod(job, index, attempt, ENDED, Log(stamped(f"{name} 1")))
        await harness.ends(job)

    said, _ = followed(test, wanted)
    assert {line[0] for _, line in said} == want


def test_who_follows_one_attempt_is_done_when_it_is_over():
    async def test(harness: Harness, job: TrainingJob) -> None:
        await harness.pod(job, 0, 0, ENDED, Log(stamped("a 1")))
        attempts = [{"number": 0, "endTime": "2026-01-01T00:01:00Z", "cause": "Failed"}]
        await harness.ends(job, phase="Restarting", attempts=attempts)

    said, _ = followed(test, pod_logs.LogSelection(attempt=0))
    assert said == [("mnist-worker-0-0", "a 1")]


def test_another_job_of_the_same_name_is_another_job():
    async def test(harness: Harness, job: TrainingJob) -> None:
        await harness.client.delete(TRAINING_JOB.resource, job, Object)
        await harness.job()

    assert followed(test)[0] == []


@pytest.mark.parametrize(
    ("name", "namespace", "want"),
    [
        ("mnits", "default", "TrainingJob mnits not found in namespace default. Similar names: mnist."),
        ("mnist", "ml", "TrainingJob mnist not found in namespace ml. It exists in default: add `-n default`."),
        ("x", "ml", "TrainingJob x not found in namespace ml. Namespaces with TrainingJobs: default."),
    ],
)
def test_not_found_names_what_is_similar_or_elsewhere(name, namespace, want):
    async def main() -> None:
        harness = Harness()
        await harness.job()
        raise await cluster.not_found(harness.client, [TRAINING_JOB.resource], Key(namespace, name))

    with pytest.raises(ObjectNotFound) as error:
        virtual_time.run(main())
    assert str(error.value) == want


def test_a_job_is_told_at_each_change_until_it_has_ended():
    async def main() -> list[str | None]:
        harness = Harness()
        job = await harness.job()

        async def watch() -> list[str | None]:
            return [state.status.phase async for state in cluster.until_over(harness.client, job)]

        watching = asyncio.create_task(watch())
        for phase in ("Pending", "Running", "Succeeded"):
            await asyncio.sleep(5)
            await harness.ends(job, phase=phase)
        return await watching

    assert virtual_time.run(main()) == [None, "Pending", "Running", "Succeeded"]
