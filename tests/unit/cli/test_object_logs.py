"""Logs of pods, models, endpoints and claims."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from skysail.cli import lookup, object_logs
from skysail.cli.object_logs import NoLogs
from skysail.kinds.serving.api.types import MODEL_DEPLOYMENT, ModelDeployment
from skysail.kube.api.objects import Meta
from skysail.kube.api.resources import POD
from skysail.kube.api.workloads import Pod

MODEL = msgspec.convert(
    {"metadata": {"name": "iris", "namespace": "ml", "uid": "u"}, "spec": {"modelURI": "x", "runtime": "triton"}},
    ModelDeployment,
)


def pod(name: str, **states: dict[str, Any]) -> Pod:
    rows = [{"name": container, "state": state} for container, state in states.items()]
    return msgspec.convert({"metadata": {"name": name, "namespace": "ml"}, "status": {"containerStatuses": rows}}, Pod)


RUNS: dict[str, Any] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
WAITS: dict[str, Any] = {"waiting": {"reason": "ContainerCreating"}}


class Client:
    def __init__(self, *pods: Pod, is_silent: bool = False) -> None:
        self._pods = pods
        self._is_silent = is_silent
        self.asked: list[dict[str, str]] = []

    async def list_objects(self, _resource: Any, _namespace: str, query: dict[str, str], _type: Any) -> Any:
        assert query == {"labelSelector": "skysail.dev/model-uid=u"}
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
    await object_logs.print_all(cast("Any", client), found, lines.append, **{"tail": None, "follow": False, **options})
    return lines


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


@pytest.mark.parametrize("follow", [False, True])
async def test_print_all_container_failed_without_a_log_says_why(follow):
    end = {"exitCode": 128, "reason": "HandlerNotFound", "message": "Module app has no function b."}
    row = {"name": "main", "state": {"waiting": {"reason": "HandlerNotFound"}}, "lastState": {"terminated": end}}
    failed = msgspec.convert({"metadata": {"name": "a"}, "status": {"containerStatuses": [row]}}, Pod)
    with pytest.raises(NoLogs, match=r"Pod a has printed nothing\. Module app has no function b\."):
        await printed(Client(is_silent=True), lookup.Found(POD, failed), follow=follow)
    assert await printed(Client(), lookup.Found(POD, failed), follow=follow) == ["of a", "last"]
    assert await printed(Client(is_silent=True), lookup.Found(POD, pod("a", main=RUNS)), follow=follow) == []


@pytest.mark.parametrize("follow", [False, True])
async def test_the_pods_of_a_model_are_printed_one_after_the_other(follow):
    client = Client(pod("b", main=RUNS), pod("a", main=RUNS))
    lines = await printed(client, lookup.Found(MODEL_DEPLOYMENT.resource, MODEL), follow=follow)
    assert sorted(lines) == ["a/main | last", "a/main | of a", "b/main | last", "b/main | of b"]


async def test_an_object_without_logs_says_so():
    with pytest.raises(NoLogs, match="`skysail why pod/a -n ml` says more"):
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
