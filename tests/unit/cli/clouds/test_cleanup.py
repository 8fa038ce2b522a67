"""Deletion of the operator's own objects after it was uninstalled."""

from __future__ import annotations

from skysail.base.names import Finalizer
from skysail.claims.bridging import bridge_ports
from skysail.cli.clouds import cleanup
from skysail.kinds.training.api.training_job import TRAINING_JOB
from skysail.kube.api.objects import Object
from skysail.kube.api.rbac import PolicyRule
from skysail.kube.api.resources import CONFIG_MAP, NAMESPACE
from skysail.kube.client.client import Client
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time


def test_ports_of_the_bridge_are_deleted() -> None:
    virtual_time.run(_clean_up())


def test_training_jobs_lose_the_finalizer_that_nobody_would_remove() -> None:
    async def test() -> None:
        client = Client(ApiModel(World((TRAINING_JOB.resource,)), "user"))
        await client.create(NAMESPACE, {"metadata": {"name": "n"}}, Object)
        metadata = {"name": "t", "namespace": "n", "finalizers": [Finalizer.CLOUD_VOLUME.value, "example.com/other"]}
        await client.create(TRAINING_JOB.resource, {"metadata": metadata, "spec": {}}, Object)
        said: list[str] = []
        await cleanup.clean_up(client, "n", seconds=60.0, report=said.append)
        found = await client.get(TRAINING_JOB.resource, "n", "t", Object)
        assert found.metadata.finalizers == ("example.com/other",)
        assert said == ["TrainingJob n/t released: delete its volumes at clouds yourself."]

    virtual_time.run(test())


async def _clean_up() -> None:
    client = Client(ApiModel(World(), "user"))
    await client.create(NAMESPACE, {"metadata": {"name": "n"}}, Object)
    await client.create(CONFIG_MAP, {"metadata": {"name": bridge_ports.NAME, "namespace": "n"}}, Object)
    await cleanup.clean_up(client, "n", seconds=60.0, report=lambda _: None)
    assert await client.find(CONFIG_MAP, "n", bridge_ports.NAME, Object) is None
    assert PolicyRule(CONFIG_MAP, ("delete", "get"), names=(bridge_ports.NAME,)) in cleanup.POLICY_RULES
