"""Image builds of the stand-in, with the unmodified SDK as the client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import modal
import pytest
from modal.exception import ImageBuildError

from tests.support.modal import IMAGE, LOGIN, PRIVATE_IMAGE, PYTHON_IMAGE, shell

if TYPE_CHECKING:
    from tests.support.modal import StandInHarness


async def test_image_that_is_unknown_fails_the_build_with_a_log(cloud: StandInHarness):
    client = await cloud.client()
    app = await modal.App.lookup.aio("jobs", create_if_missing=True, client=client)
    with pytest.raises(ImageBuildError) as caught:
        await modal.Image.from_registry("ghcr.io/nobody/nothing:1").build.aio(app)
    image_id = caught.value.image_id
    build = cloud.stand_in._images._builds[image_id]
    assert "manifest unknown" in "".join(line.text for line in build.log.lines)
    assert cloud.ledger.instances == {}


async def test_image_of_a_private_registry_needs_its_secret(cloud: StandInHarness):
    client = await cloud.client()
    app = await modal.App.lookup.aio("jobs", create_if_missing=True, client=client)
    username, password = LOGIN
    right = modal.Secret.from_dict({"REGISTRY_USERNAME": username, "REGISTRY_PASSWORD": password})
    await modal.Image.from_registry(PRIVATE_IMAGE, secret=right).build.aio(app)
    wrong = modal.Secret.from_dict({"REGISTRY_USERNAME": username, "REGISTRY_PASSWORD": "wrong"})
    for secret in (wrong, None):
        with pytest.raises(ImageBuildError):
            await modal.Image.from_registry(PRIVATE_IMAGE, secret=secret).build.aio(app)


async def test_image_built_once_is_cached(cloud: StandInHarness):
    first, second = [await shell(cloud, "true") for _ in range(2)]
    await first.wait.aio()
    await second.wait.aio()
    assert cloud.stand_in.log.counts()["ImageJoinStreaming"] <= 2


async def test_image_configuration_reaches_the_program(cloud: StandInHarness):
    image = modal.Image.from_registry(IMAGE).entrypoint(["echo", "entry"]).env({"A": "b"}).workdir("/tmp")
    sandbox = await shell(cloud, "", argv=("args",), image=image)
    assert [line async for line in sandbox.stdout] == ["entry args\n"]
    cleared = await shell(cloud, "pwd; echo $A", image=image.entrypoint([]))
    assert [line async for line in cleared.stdout] == ["/tmp\n", "b\n"]


async def test_image_with_a_command_of_its_own_fails_the_build(cloud: StandInHarness):
    with pytest.raises(ImageBuildError):
        await shell(cloud, "true", image=modal.Image.from_registry(PYTHON_IMAGE).run_commands("make everything"))
