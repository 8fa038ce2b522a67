"""Statuses that the API server rejects, and pods with more containers than a node takes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from skysail.cloud.errors import Rejected
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import POD
from skysail.kube.client.transport import Reply
from skysail.node.sync.unsupported_fields import MAX_CONTAINERS
from tests.support import virtual_time
from tests.unit.node.test_kubelet import Counting, Harness

if TYPE_CHECKING:
    from pathlib import Path

    from skysail.kube.client.transport import Request

_ETCD = {"kind": "Status", "code": 500, "message": "etcdserver: request is too large"}
_WEBHOOK = {"kind": "Status", "code": 500, "reason": "InternalError", "message": "failed calling webhook"}


class Small(Counting):
    """Rejects statuses above a size."""

    most = 10_000
    rejection: dict[str, Any] = _ETCD
    rejected = 0

    async def send(self, request: Request) -> Reply:
        if request.path.endswith("/status") and request.body is not None and len(request.body) > self.most:
            self.rejected += 1
            return Reply(status=self.rejection["code"], body=msgspec.json.encode(self.rejection), headers={})
        return await super().send(request)


class Crowded(Harness):
    def __init__(self, folder: Path, *, most: int, rejection: dict[str, Any] = _ETCD) -> None:
        super().__init__(folder)
        self.server = Small(self.world)
        self.server.most = most
        self.server.rejection = rejection

    async def create_many(self, count: int, field: str = "containers") -> None:
        containers = [{"name": f"c{number}", "image": "x"} for number in range(count)]
        spec = {"nodeName": "local", "containers": [{"name": "main", "image": "x"}], field: containers}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "default"}, "spec": spec}
        await self.user.create(POD, manifest, Object)
        await asyncio.sleep(5)

    async def delete(self) -> None:
        pod = await self.user.get(POD, "default", "a", Object)
        await self.user.delete(POD, pod, Object, {"gracePeriodSeconds": 1})
        await asyncio.sleep(60)

    @property
    def is_gone(self) -> bool:
        return ("default", "a") not in self.world.objects[POD]


@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_a_pod_with_too_many_containers_is_told_and_can_be_deleted(tmp_path, field):
    async def play() -> None:
        site = Crowded(tmp_path, most=1_000_000)
        async with site.keeper():
            await site.create_many(5001, field)
            assert site.provider.starts == []
            (told,) = [row for row in site.status["conditions"] if row.get("reason") == "Unsupported"]
            assert f"at most {MAX_CONTAINERS} containers per pod, and this pod has 500" in told["message"]
            rows = (*site.status["containerStatuses"], *site.status.get("initContainerStatuses", ()))
            assert len(rows) <= MAX_CONTAINERS
            writes = site.server.writes
            await asyncio.sleep(300)
            assert site.server.writes == writes
            await site.delete()
            assert site.is_gone

    virtual_time.run(play())


def test_as_many_containers_as_are_allowed_run(tmp_path):
    async def play() -> None:
        site = Crowded(tmp_path, most=1_000_000)
        async with site.keeper():
            await site.create_many(MAX_CONTAINERS)
            assert len(site.provider.starts) == len(site.status["containerStatuses"]) == MAX_CONTAINERS
            assert site.status["phase"] == "Running"

    virtual_time.run(play())


@pytest.mark.parametrize(("most", "rows", "longest"), [(20_000, 20, 200), (8_000, 20, 0), (2_000, 0, 0)])
def test_a_status_that_does_not_fit_is_shortened_until_it_does(tmp_path, most, rows, longest):
    async def play() -> None:
        site = Crowded(tmp_path, most=most)
        site.provider.refusals = [Rejected("ErrImagePull", "x" * 2000) for _ in range(20)]
        async with site.keeper():
            await site.create_many(20)
            shown = site.status.get("containerStatuses", [])
            assert len(shown) == rows
            assert max((len(row["state"]["waiting"].get("message", "")) for row in shown), default=0) == longest

    virtual_time.run(play())


def test_a_shortened_status_is_written_once(tmp_path):
    async def play() -> None:
        site = Crowded(tmp_path, most=2_000)
        async with site.keeper():
            await site.create_many(20)
            tried = site.server.rejected + site.server.writes
            await asyncio.sleep(600)
            assert site.server.rejected + site.server.writes == tried

    virtual_time.run(play())


@pytest.mark.parametrize("rejection", [_ETCD, _WEBHOOK, {"kind": "Status", "code": 422, "reason": "Invalid"}])
def test_a_pod_goes_whatever_becomes_of_its_status(tmp_path, rejection):
    async def play() -> None:
        site = Crowded(tmp_path, most=0, rejection=rejection)
        async with site.keeper():
            await site.create_many(3)
            assert len(site.provider.starts) == 3
            await site.delete()
            assert site.is_gone
            assert (site.provider.runs, site.provider.places) == ({}, {})

    virtual_time.run(play())
