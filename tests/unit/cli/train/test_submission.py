"""`skysail train` prints each state of the job that it follows."""

from __future__ import annotations

import asyncio
from typing import Any

from skysail.cli.train import submission
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import NAMESPACE
from skysail.kube.client.client import Client
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time

MANIFEST = {
    "metadata": {"name": "mnist", "namespace": "ml"},
    "spec": {"framework": "pytorch", "image": "python:3.12", "command": ["fit"], "workers": 1},
}


def _condition(message: str) -> list[dict[str, Any]]:
    condition = {"type": "Running", "status": "False", "reason": "Starting", "message": message}
    return [{**condition, "lastTransitionTime": "2026-01-01T00:00:00Z"}]


def _running(**progress: Any) -> dict[str, Any]:
    metrics = [{"name": "loss", "value": "0.5"}]
    return {"phase": "Running", "progress": {"step": 7, "metrics": metrics, **progress}}


def test_states_of_a_running_job_are_printed_at_each_change_of_the_percentage():
    statuses: list[dict[str, Any]] = [
        {"phase": "Pending", "conditions": _condition("Worker 0 is preparing its image.")},
        {"phase": "Running"},
        _running(),
        _running(percent=10, epoch=1, estimatedRemainingSeconds=180),
        _running(percent=10, epoch=1, estimatedRemainingSeconds=170),
        _running(percent=20, epoch=2, estimatedRemainingSeconds=120),
        _running(percent=100, epoch=10, estimatedRemainingSeconds=5),
        {"phase": "Succeeded", "conditions": _condition("Training job completed successfully")},
    ]
    lines: list[str] = []

    async def test() -> None:
        client = Client(ApiModel(World((TRAINING_JOB.resource,)), "user"))
        await client.create(NAMESPACE, {"metadata": {"name": "ml"}}, Object)
        job = await client.create(TRAINING_JOB.resource, MANIFEST, TrainingJob)
        following = asyncio.create_task(submission._states(client, job, lines.append))
        for status in statuses:
            await asyncio.sleep(1)
            now = await client.get(TRAINING_JOB.resource, "ml", "mnist", TrainingJob)
            await client.patch_status(TRAINING_JOB.resource, now, status, TrainingJob)
        await following

    virtual_time.run(test())
    assert lines == [
        "Pending: Worker 0 is preparing its image.",
        "Running",
        "Running: 10%, epoch 1, 3m to go",
        "Running: 20%, epoch 2, 2m to go",
        "Running: 100%, epoch 10",
        "Succeeded: Training job completed successfully",
    ]
