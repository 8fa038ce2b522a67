"""The simulated clouds of the agent: what its images and limits say on the way does not end an instance's task."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from skysail.app import simulated_clouds
from skysail.app.simulated_clouds import SimulatedClouds
from skysail.cloud.simulated.vendors import MODAL
from skysail.local.cluster.home import Home
from skysail.local.errors import BuildFailed
from skysail.local.images.environments import Environment
from skysail.local.provider.provider import LocalProvider
from tests.conformance.account_harness import AccountHarness, with_container
from tests.conformance.local import local_provider

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class ColdImages:
    """Every image must be made first: each step is announced. Then there is `found`, or the build has failed."""

    def __init__(self, found: Environment | None) -> None:
        self._found = found

    async def find(self, image: str, say: Callable[[str], None]) -> Environment:
        for step in ("resolving", "downloading", "compiling"):
            say(step)
            await asyncio.sleep(0)
        if self._found is None:
            raise BuildFailed("The index does not answer.")
        return self._found


OTHER_PYTHON = Environment(python="3.99", entrypoint=("sh", "-c", "echo ahoy; exit 37"))


@pytest.mark.parametrize(
    ("found", "image", "reason", "code"),
    [
        (None, "cold:1", "ErrImagePull", 128),
        (OTHER_PYTHON, "python:3.12", "Error", 37),
        (Environment(entrypoint=("sh", "-c", "exit 37")), "cold:1", "Error", 37),
        (Environment(), "cold:1", "EntrypointUnknown", 128),
    ],
)
async def test_an_image_that_must_be_made_first_or_names_another_python(tmp_path, found, image, reason, code):
    home = Home(tmp_path / "home")
    home.prepare()
    async with local_provider(tmp_path) as provider:
        around = msgspec.structs.replace(provider._deps, images=ColdImages(found))
        clouds = SimulatedClouds(home, around)
        await clouds.open()
        remote = simulated_clouds.remote(home, MODAL)
        account_harness = AccountHarness(remote)
        wanted = account_harness.launch_spec()
        container = msgspec.structs.replace(wanted.container, image=image, command=())
        try:
            made = await remote.create(with_container(wanted, container))
            ended = await account_harness.until(made.id, lambda now: now.state == "ended")
            assert ended.exit is not None
            assert (ended.exit.reason, ended.exit.code) == (reason, code)
            assert ended.usd_total is not None
        finally:
            await remote.close()
            await clouds.close()


def test_instances_never_share_the_network_of_the_cluster(tmp_path: Path):
    async def main() -> None:
        home = Home(tmp_path / "home")
        home.prepare()
        async with local_provider(tmp_path) as provider:
            around = msgspec.structs.replace(provider._deps, allows_host_network=True)
            assert LocalProvider(around).features.host_network
            assert not SimulatedClouds(home, around)._provider.features.host_network

    asyncio.run(main())
