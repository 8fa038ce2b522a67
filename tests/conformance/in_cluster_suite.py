"""The suite on the provider `local` as it is in a local cluster: each pod in a network namespace of its own."""

from __future__ import annotations

import uuid
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from skysail.cloud.provider import Container, RunId
from skysail.local.addresses import RUN_FOLDER
from skysail.local.bubblewrap.cgroups import CgroupManager
from skysail.local.network.pod_network import PodNetwork
from tests.conformance.local import local_provider
from tests.conformance.provider import ProviderConformance
from tests.conformance.provider_harness import ProviderHarness, hear

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def in_the_cluster(folder: Path) -> AsyncIterator[ProviderHarness]:
    network = PodNetwork()
    await network.open()
    cgroups = CgroupManager.mount(Path(RUN_FOLDER) / "groups", f"skysail-test-{uuid.uuid4()}")
    async with local_provider(folder, cgroups, network=network) as provider:
        yield ProviderHarness(provider, image="busybox:1.36", python_image="python:3")
    await network.close()


class TestInAHull(ProviderConformance):
    @pytest.fixture
    async def talk(self, tmp_path: Path) -> AsyncIterator[ProviderHarness]:
        async with in_the_cluster(tmp_path) as provider_harness:
            yield provider_harness
        assert namespaces() == []

    async def test_two_pods_hold_the_same_port_and_reach_each_other(self, talk: ProviderHarness):
        server = (
            "import socket, sys; s = socket.create_server(('', 8000)); print('up', flush=True)\n"
            "while True: c, _ = s.accept(); c.sendall(socket.gethostname().encode()); c.close()"
        )
        client = "import socket, sys; print(socket.create_connection((sys.argv[1], 8000)).recv(100).decode())"
        runs = []
        for name in ("one", "two"):
            runs.append(RunId(await talk.pod(name=name), "main", 0))
            await talk.provider.start(runs[-1], python(talk, server))
            await hear(talk.provider.output(runs[-1]), "up")
        addresses = (await talk.provider.list()).pods
        for here, there, name in ((*runs, "two"), (*reversed(runs), "one")):
            asking = RunId(here.pod, "client", 0)
            await talk.provider.start(asking, python(talk, client, addresses[there.pod]))
            assert await talk.said(asking) == f"{name}\n"

    async def test_a_pod_sees_no_network_but_its_own(self, talk: ProviderHarness):
        code, said = await talk.result("ls /sys/class/net")
        assert (code, set(said.split()) - {"bonding_masters"}) == (0, {"eth0", "lo"})


def namespaces() -> list[Path]:
    return list(Path("/run/netns").glob("*"))


def python(provider_harness: ProviderHarness, script: str, *arguments: str) -> Container:
    return Container(name="main", image=provider_harness.python_image, command=("python3", "-c", script, *arguments))
