"""`skysail serve` waits for a rollout and says how it ended, once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skysail.cli.serve import rollout
from skysail.cli.serve.manifests import Settings
from skysail.kinds.serving.api.types import MODEL_DEPLOYMENT, ModelDeployment
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import NAMESPACE
from skysail.kube.client.client import Client
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time

MANIFEST = {
    "metadata": {"name": "iris", "namespace": "ml"},
    "spec": {"modelURI": "https://example.com/m.onnx", "runtime": "fastapi-pytorch", "version": "2"},
}
FAILED = {"phase": "Failed", "message": "m.onnx is no model: upload it again.", "observedGeneration": 1}
LOADING = {"phase": "Validating", "message": "The download is starting.", "observedGeneration": 1}


def test_failed_version_is_said_once_with_the_command_that_shows_the_log():
    lines: list[str] = []

    async def test() -> None:
        client = Client(ApiModel(World((MODEL_DEPLOYMENT.resource,)), "user"))
        await client.create(NAMESPACE, {"metadata": {"name": "ml"}}, Object)
        model = await client.create(MODEL_DEPLOYMENT.resource, MANIFEST, ModelDeployment)
        waiting = asyncio.create_task(rollout.until_served(client, model, lines.append))
        statuses: list[dict[str, Any]] = [LOADING, FAILED]
        for status in statuses:
            now = await client.get(MODEL_DEPLOYMENT.resource, "ml", "iris", ModelDeployment)
            await client.patch_status(MODEL_DEPLOYMENT.resource, now, status, ModelDeployment)
            await asyncio.sleep(1)
        with pytest.raises(rollout.NotServing) as failed:
            await waiting
        assert str(failed.value) == (
            "iris does not serve this version: m.onnx is no model: upload it again. "
            "`skysail why iris -n ml` shows the log."
        )

    virtual_time.run(test())
    assert lines == ["Validating: The download is starting."]


def test_create_of_a_second_version_says_that_the_model_is_not_new():
    async def test() -> None:
        client = Client(ApiModel(World((MODEL_DEPLOYMENT.resource,)), "user"))
        await client.create(NAMESPACE, {"metadata": {"name": "ml"}}, Object)
        for version, expected in (("1", True), ("2", False)):
            settings = Settings(name="iris", namespace="ml", uri="https://example.com/m.onnx", version=version)
            model, is_new = await rollout.create(client, settings)
            assert (model.spec.version, is_new) == (version, expected)

    virtual_time.run(test())
