"""Logs of pods, models, endpoints and claims."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from skysail.claims.types import CLOUD_INSTANCE, OwnerRef
from skysail.cli import lookup, object_logs
from skysail.cli.object_logs import NoLogs, NotStarted
from skysail.kinds.serving.api.types import MODEL_DEPLOYMENT, ModelDeployment
from skysail.kube.api.objects import Meta
from skysail.kube.api.resources import JOB, POD
from skysail.kube.api.workloads import Job, Pod
from tests.unit.claims.samples import claim, spec

MODEL = msgspec.convert(
    {"metadata": {"name": "iris", "namespace": "ml", "uid": "u"}, "spec": {"modelURI": "x", "runtime": "triton"}},
    ModelDeployment,
)


def pod(name: str, *, phase: str = "Pending", **states: dict[str, Any]) -> Pod:
    rows = [{"name": container, "state": state} for container, state in states.items()]
    metadata = {"name": name, "namespace": "ml", "uid": name}
    return msgspec.convert({"metadata": metadata, "status": {"phase": phase, "containerStatuses": rows}}, Pod)


RUNS: dict[str, Any] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
ENDED: dict[str, Any] = {"terminated": {"exitCode": 0}}
WAITS: dict[str, Any] = {"waiting": {"reason": "ContainerCreating"}}


class Client:
    """Client of a cluster with these pods. `later`: what the next reads of the object find."""

    def __init__(self, *pods: Pod, later: Sequence[Any] = (), is_silent: bool = False) -> None:
        self._pods = pods
        self._is_silent = is_silent
        self._later = list(later)
        self.selector = "skysail.dev/model-uid=u"
        self.asked: list[dict[str, str]] = []

    async def find(self, _resource: Any, _namespace: str, _name: str, _type: Any) -> Any:
        return self._later.pop(0)

    async def list_objects(self, _resource: Any, _namespace: str, query: dict[str, str], _type: Any) -> Any:
        assert query == {"labelSelector": self.selector}
        return self._pods

    async def stream(self, path: str, query: dict[str, str]) -> Any:
        self.asked.append(query)

        async def chunks() -> Any:
            if self._is_silent:
                return
            yield f"of {path.split('/')[-2]}\nla".encode()
            yield b"st\x1b[31m"

        return contextlib.nullcontext(chunks())


async def printed(client: Client, found: lookup.Found, **options: Any) -> list[str]:
    lines: list[str] = []
    await object_logs.print_all(cast("Any", client), found, lines.append, **{"tail": None, **options})
    return lines


async def followed(client: Client, found: lookup.Found) -> tuple[list[str], list[str]]:
    """Return the lines of the log, and what was reported until they came."""
    lines: list[str] = []
    reports: list[str] = []
    await object_logs.follow(cast("Any", client), found, lines.append, tail=None, report=reports.append)
    return lines, reports


@pytest.fixture(autouse=True)
def no_delay(monkeypatch):
    monkeypatch.setattr(object_logs, "_RETRY_SECONDS", 0.0)


async def test_the_log_of_one_container_has_no_prefix():
    found = lookup.Found(POD, pod("a", main=RUNS, other=WAITS))
    client = Client()
    assert await printed(client, found, tail=3) == ["of a", "last"]
    assert client.asked == [{"tailLines": "3", "container": "main"}]


async def test_a_container_that_waits_for_its_next_run_shows_the_log_of_the_last_one():
    row = {"name": "main", "state": WAITS, "lastState": {"terminated": {"exitCode": 3}}}
    crashed = msgspec.convert({"metadata": {"name": "a"}, "status": {"containerStatuses": [row]}}, Pod)
    assert await printed(Client(), lookup.Found(POD, crashed)) == ["of a", "last"]
    assert await object_logs.last_lines_of_failed(cast("Any", Client()), crashed) == ["of a", "last"]


async def test_print_all_container_failed_without_a_log_says_why():
    end = {"exitCode": 128, "reason": "HandlerNotFound", "message": "Module app has no function b."}
    row = {"name": "main", "state": {"waiting": {"reason": "HandlerNotFound"}}, "lastState": {"terminated": end}}
    failed = msgspec.convert({"metadata": {"name": "a"}, "status": {"containerStatuses": [row]}}, Pod)
    with pytest.raises(NoLogs, match=r"Pod a has printed nothing\. Module app has no function b\."):
        await printed(Client(is_silent=True), lookup.Found(POD, failed))
    assert await printed(Client(), lookup.Found(POD, failed)) == ["of a", "last"]
    assert await printed(Client(is_silent=True), lookup.Found(POD, pod("a", main=RUNS))) == []


async def test_follow_of_container_that_failed_without_a_log_says_why():
    end = {"exitCode": 128, "reason": "HandlerNotFound", "message": "Module app has no function b."}
    row = {"name": "main", "state": {"terminated": end}}
    failed = msgspec.convert({"metadata": {"name": "a"}, "status": {"containerStatuses": [row]}}, Pod)
    with pytest.raises(NoLogs, match=r"Pod a has printed nothing\. Module app has no function b\."):
        await followed(Client(is_silent=True), lookup.Found(POD, failed))
    assert await followed(Client(), lookup.Found(POD, failed)) == (["of a", "last"], [])


@pytest.mark.parametrize("follow", [False, True])
async def test_the_pods_of_a_model_are_printed_one_after_the_other(follow):
    client = Client(pod("b", main=RUNS), pod("a", main=RUNS))
    found = lookup.Found(MODEL_DEPLOYMENT.resource, MODEL)
    lines = (await followed(client, found))[0] if follow else await printed(client, found)
    assert sorted(lines) == ["a/main | last", "a/main | of a", "b/main | last", "b/main | of b"]


async def test_follow_of_pod_that_has_not_started_waits_and_reports_the_reason():
    pulls = {"waiting": {"reason": "ContainerCreating", "message": "pulling its image"}}
    later = (pod("a", main=pulls), pod("a", main=pulls), pod("a", main=RUNS))
    lines, reports = await followed(Client(later=later), lookup.Found(POD, pod("a", main=WAITS)))
    assert lines == ["of a", "last"]
    assert reports == ["Pod a has not started yet.", "Pod a is pulling its image."]


async def test_follow_of_pod_whose_second_container_starts_later_prints_both():
    client = Client(later=[pod("a", init=ENDED, main=WAITS), pod("a", init=ENDED, main=RUNS)])
    lines, reports = await followed(client, lookup.Found(POD, pod("a", init=RUNS, main=WAITS)))
    assert sorted(lines) == ["a/init | last", "a/init | of a", "a/main | last", "a/main | of a"]
    assert reports == []


@pytest.mark.parametrize("later", [None, pod("a", phase="Failed"), pod("other")])
async def test_follow_of_pod_that_never_starts_ends_with_exit_code_1(later):
    with pytest.raises(NotStarted, match="Pod a has no container that has started") as caught:
        await followed(Client(later=[later]), lookup.Found(POD, pod("a", main=WAITS)))
    assert caught.value.exit_code == 1


async def test_follow_of_job_without_pods_waits_until_it_is_over():
    metadata = {"name": "j", "namespace": "ml", "uid": "u"}
    job = msgspec.convert({"metadata": metadata}, Job)
    over = {"metadata": metadata, "status": {"conditions": [{"type": "Failed", "status": "True"}]}}
    client = Client(later=[job, msgspec.convert(over, Job)])
    client.selector = "batch.kubernetes.io/controller-uid=u"
    reports: list[str] = []
    with pytest.raises(NotStarted, match="Job j has no container"):
        await object_logs.follow(cast("Any", client), lookup.Found(JOB, job), print, tail=None, report=reports.append)
    assert reports == ["Job j has no pod yet."]


async def test_an_object_without_logs_says_so():
    with pytest.raises(NotStarted, match="`skysail why pod/a -n ml` says more"):
        await printed(Client(), lookup.Found(POD, pod("a", main=WAITS)))
    builds = {"waiting": {"reason": "ContainerCreating", "message": "preparing its image: 12 of 19 packages"}}
    with pytest.raises(NoLogs, match="Pod a is preparing its image: 12 of 19 packages"):
        await printed(Client(), lookup.Found(POD, pod("a", main=builds)))


@pytest.mark.parametrize(
    ("kind", "metadata", "command"),
    [
        ("ModalJob", MODEL.metadata, "`skysail why modaljob/iris -n ml`"),
        ("OffloadPolicy", Meta(name="default"), "`skysail why offloadpolicy/default`"),
    ],
)
async def test_an_object_without_pods_names_the_command_with_its_namespace(kind, metadata, command):
    resource = next(each.resource for each in lookup._OTHERS if each.resource.kind == kind)
    with pytest.raises(NoLogs, match=f"has no pods, so it has no logs. {command} shows its state"):
        await printed(Client(), lookup.Found(resource, SimpleNamespace(metadata=metadata)))


async def test_follow_of_a_claim_without_a_pod_ends_at_once():
    of = spec(owner=OwnerRef(kind="Job", name="gang", uid="u", namespace="ml"))
    with pytest.raises(NotStarted):
        await followed(Client(), lookup.Found(CLOUD_INSTANCE.resource, claim(of=of)))
