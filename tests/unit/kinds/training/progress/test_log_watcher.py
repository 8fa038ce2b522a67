"""How printed lines are found: logs that go on, break off, are opened anew, and end. In virtual time."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Self

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.base.timestamps import timestamp
from skysail.kinds.training.api.training_job import LatestCheckpoint
from skysail.kinds.training.caches import Caches
from skysail.kinds.training.progress.log_watcher import CheckpointLogWatcher, LogLine, lines, may_report
from skysail.kube.client.client import Client
from skysail.kube.client.errors import ReplyLost
from tests.support import virtual_time
from tests.unit.kinds.training.builders import NOW, ago, attempt, job, pod, status
from tests.unit.kinds.training.test_reconciler import labelled

TRAINING = job(checkpointDir="/checkpoints", status=status(attempt(0), phase="Running"))
LOG = "/api/v1/namespaces/ml-jobs/pods/mnist-worker-0-0-0/log"
WAIT = object()
IDENTITY = TRAINING.metadata.identity


def at(seconds: float, text: str) -> bytes:
    return f"{timestamp(NOW + timedelta(seconds=seconds))[:-1]}.123456789Z {text}\n".encode()


def saved(step: int) -> str:
    return f"skysail-checkpoint step={step} path=/checkpoints/{step}"


class Log:
    """One connection: pieces of the log, `WAIT` where nothing comes for an hour, an error where it breaks."""

    def __init__(self, *pieces: Any, status: int = 200) -> None:
        self.status = status
        self._pieces = pieces

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def __aiter__(self) -> Any:
        for piece in self._pieces:
            if piece is WAIT:
                await asyncio.sleep(3600)
            elif isinstance(piece, Exception):
                raise piece
            else:
                yield piece


class Node:
    """Answers each request for a log with the next connection; then it has none any more."""

    def __init__(self, *logs: Log) -> None:
        self._logs = list(logs)
        self.asked: list[Any] = []

    async def open(self, request: Any) -> Log:
        self.asked.append(request)
        return self._logs.pop(0) if self._logs else Log(b'{"reason": "NotFound"}', status=404)


class Books:
    """Takes what the reader found."""

    def __init__(self) -> None:
        self.found: list[LatestCheckpoint] = []
        self.refused: list[str] = []

    def enqueue(self, _: Any, report: Any) -> None:
        self.found.append(report.checkpoint)

    async def wait_flushed(self, _: Any) -> None:
        await asyncio.sleep(1)

    def record(self, _: Any, __: Any, event: Any) -> None:
        self.refused.append(event.message)


class Harness:
    def __init__(self, *logs: Log, training: Any = TRAINING) -> None:
        self.node, self.books = Node(*logs), Books()
        self.caches = Caches.create()
        self.caches.training.put(training)
        self.reader = CheckpointLogWatcher(Client(self.node), self.caches, self.books, self.books)
        for cache in (self.caches.training, self.caches.pods):
            cache.synced.set()

    @property
    def steps(self) -> list[int | None]:
        return [each.step for each in self.books.found]

    def see(self, of: Any, version: int = 1) -> None:
        metadata = msgspec.structs.replace(labelled(of).metadata, resource_version=str(version))
        self.caches.pods.put(msgspec.structs.replace(of, metadata=metadata))


def run_virtual(test: Any, *logs: Log, **options: Any) -> Any:
    async def whole() -> Any:
        harness = Harness(*logs, **options)
        running = asyncio.create_task(harness.reader.run())
        try:
            return await test(harness)
        finally:
            running.cancel()
            await asyncio.wait([running])

    return virtual_time.run(whole())


async def settled(harness: Harness) -> None:
    """As the controller asks: now and then, and nobody waits in between."""
    for _ in range(60):
        if harness.reader.is_drained(IDENTITY):
            return
        await asyncio.sleep(1)
    raise TimeoutError


@pytest.mark.parametrize(
    ("of", "spec", "is_read"),
    [
        (pod(0), {}, True),
        (pod(1), {}, False),
        (pod(0, "Pending"), {}, False),
        (pod(0, "Failed"), {}, True),
        (pod(0), {"checkpointDir": ""}, False),
        (pod(1), {"elastic": {"min": 1, "max": 4}}, True),
        (pod(0), {"framework": "tensorflow", "roles": {"chief": {}}}, False),
        (pod(0, role="chief"), {"framework": "tensorflow", "roles": {"chief": {}}}, True),
    ],
)
def test_rank_0_tells_of_checkpoints_where_there_is_a_folder_for_them(of, spec, is_read):
    assert may_report(job(**{"checkpointDir": "/checkpoints", **spec}), of) == is_read


def test_a_pod_of_an_earlier_attempt_is_not_read():
    assert not may_report(job(checkpointDir="/c", status=status(attempt(0, "Failed"), attempt(1))), pod(0))


def test_a_pod_in_another_namespace_tells_of_no_checkpoint():
    """Anybody can write the UID of the job into a label."""

    async def test(harness: Harness) -> None:
        foreign = pod(0, "Succeeded")
        harness.see(msgspec.structs.replace(foreign, metadata=_elsewhere(foreign.metadata)))
        await settled(harness)
        assert (harness.node.asked, harness.steps) == ([], [])

    run_virtual(test, Log(at(1, saved(7))))


def _elsewhere(metadata: Any) -> Any:
    return msgspec.structs.replace(metadata, namespace="elsewhere")


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_the_pods_of_a_finished_job_are_not_read_again(phase):
    assert not may_report(job(checkpointDir="/c", status=status(attempt(0, phase), phase=phase)), pod(0, "Succeeded"))


def test_only_so_many_logs_are_opened_at_a_time():
    class Slow(Node):
        at_once = most = 0

        async def open(self, request):
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            await asyncio.sleep(1)
            self.at_once -= 1
            return Log(WAIT)

    async def test(room):
        room.reader._client = Client(node := Slow())
        for index in range(100):
            room.see(pod(index))
        await asyncio.sleep(60)
        assert (node.most, len(room.reader._followed)) == (32, 100)

    wide = job(checkpointDir="/c", workers=100, elastic={"min": 1, "max": 100}, status=status(attempt(0)))
    run_virtual(test, training=wide)


def test_a_line_is_found_while_the_log_goes_on():
    async def test(room):
        room.see(pod(0))
        await asyncio.sleep(1)
        assert room.books.found == [
            LatestCheckpoint(
                path="/checkpoints/1",
                step=1,
                save_time=timestamp(NOW + timedelta(seconds=5)),
                claim_name="mnist-checkpoints",
            )
        ]

    run_virtual(test, Log(at(1, "epoch 1") + at(5, saved(1))[:30], at(5, saved(1))[30:], WAIT))


def test_a_log_that_broke_off_is_read_on_from_its_last_line():
    async def test(room):
        room.see(pod(0))
        await asyncio.sleep(60)
        assert room.steps == [1, 2]
        assert [request.query.get("sinceTime") for request in room.node.asked] == [None, ago(-5)]

    run_virtual(test, Log(at(1, saved(1)), at(5, "epoch 2"), ReplyLost("broke off")), Log(at(9, saved(2)), WAIT))


def test_a_node_that_does_not_answer_is_asked_again():
    async def test(room):
        room.see(pod(0))
        await asyncio.sleep(60)
        assert room.steps == [1]

    run_virtual(test, Log(b"{}", status=500), Log(b"{}", status=500), Log(at(1, saved(1)), WAIT))


def test_who_comes_later_reads_from_the_checkpoint_that_is_known():
    known = status(attempt(0), checkpoint=LatestCheckpoint(path="/checkpoints/1", save_time=ago(10)))

    async def test(room):
        room.see(pod(0))
        await asyncio.sleep(1)
        assert room.node.asked[0].query["sinceTime"] == ago(10)

    run_virtual(test, Log(WAIT), training=job(checkpointDir="/checkpoints", status=known))


def test_a_checkpoint_of_an_earlier_attempt_does_not_hide_what_this_one_printed():
    known = status(attempt(0), checkpoint=LatestCheckpoint(path="/checkpoints/1", save_time=ago(1000)))

    async def test(room):
        room.see(pod(0))
        await asyncio.sleep(1)
        assert "sinceTime" not in room.node.asked[0].query

    run_virtual(test, Log(WAIT), training=job(checkpointDir="/checkpoints", status=known))


def test_a_path_elsewhere_is_told_as_an_event():
    async def test(room):
        room.see(pod(0))
        await asyncio.sleep(1)
        assert room.books.found == []
        [sentence] = room.books.refused
        assert sentence.startswith(
            "Pod mnist-worker-0-0-0 printed an invalid checkpoint. The checkpoint /tmp/1 is outside"
        )

    run_virtual(test, Log(at(1, "skysail-checkpoint path=/tmp/1"), WAIT))


def test_the_verdict_waits_until_the_log_of_an_ended_pod_is_read():
    async def test(room):
        room.see(pod(0, "Failed", exit=1))
        assert not room.reader.is_drained(IDENTITY)
        await settled(room)
        assert room.steps == [1]

    run_virtual(test, Log(at(1, saved(1)), at(2, "the end")))


def test_nobody_waits_for_pods_that_run():
    async def test(room):
        room.see(pod(0))
        await asyncio.sleep(1)
        assert room.reader.is_drained(IDENTITY)

    run_virtual(test, Log(WAIT))


@pytest.mark.parametrize("log", [Log(WAIT), Log(b"{}", status=500)])
def test_a_log_that_cannot_be_read_is_not_waited_for_for_long(log):
    async def test(room):
        room.see(pod(0, "Failed", exit=1))
        await settled(room)
        assert asyncio.get_running_loop().time() <= 16

    run_virtual(test, *[log] * 9)


def test_a_log_is_read_once_to_its_end_and_forgotten_with_its_pod():
    async def test(room):
        room.see(pod(0))
        await asyncio.sleep(0.2)
        room.see(pod(0, "Succeeded"), version=2)
        await asyncio.sleep(60)
        room.see(pod(0, "Succeeded"), version=3)
        await asyncio.sleep(60)
        assert len(room.node.asked) == 2
        room.caches.pods.mark_deleted(labelled(pod(0)))
        await asyncio.sleep(60)
        assert room.reader._followed == {}

    run_virtual(test, Log(at(1, saved(1))), Log(at(1, saved(1))), Log(at(1, saved(1))))


@given(st.lists(st.binary(max_size=40)), st.lists(st.integers(1, 30)))
def test_every_line_with_the_mark_is_found_however_the_log_is_cut(texts, cuts):
    rows = [text.replace(b"\n", b"") for text in texts]
    whole = b"".join(at(0, "")[:-1] + row + b" skysail-checkpoint x\n" for row in rows)
    pieces = []
    for cut in cuts:
        pieces.append(whole[:cut])
        whole = whole[cut:]

    async def found() -> list[LogLine]:
        return [log_line async for log_line in lines(Log(*pieces, whole))]

    assert len([each for each in asyncio.run(found()) if "skysail-checkpoint" in each.text]) == len(rows)
