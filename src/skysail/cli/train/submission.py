"""Create the objects of a training, follow it, and report its exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from skysail.base import clock
from skysail.base.errors import UserError
from skysail.cli import cluster, pod_logs
from skysail.cli.diagnosis import main_condition, progress
from skysail.cli.pod_logs import LinePrinter, LogSelection
from skysail.cli.train import manifests
from skysail.cli.train.code import Code
from skysail.cli.train.manifests import Settings
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import CONFIG_MAP
from skysail.kube.client.client import Client
from skysail.kube.client.errors import AlreadyExists, Invalid, NotFound, NotServed

_MAX_NAMES = 100
_FAILED = 1

Echo = Callable[[str], None]


class CannotSubmit(UserError):
    """The cluster does not take the job. The message says what to do."""


async def create(client: Client, settings: Settings, code: Code, *, is_name_fixed: bool) -> TrainingJob:
    """Create the ConfigMap and the TrainingJob. A name that was not chosen by the user gets a number if it is taken."""
    for number in range(1, _MAX_NAMES):
        name = settings.name if number == 1 else f"{settings.name}-{number}"
        try:
            return await _create(client, msgspec.structs.replace(settings, name=name), code)
        except AlreadyExists as error:
            if is_name_fixed:
                raise CannotSubmit(
                    f"{name} exists already in namespace {settings.namespace}: choose another --name, or run "
                    f"`kubectl delete trainingjob {name} -n {settings.namespace}`."
                ) from error
    raise CannotSubmit(f"{settings.name} and {_MAX_NAMES} more names are taken: choose another with --name.")


async def _create(client: Client, settings: Settings, code: Code) -> TrainingJob:
    stored = await client.create(CONFIG_MAP, manifests.config_map(settings, code), Object)
    try:
        job = await client.create(TRAINING_JOB.resource, manifests.training_job(settings, code), TrainingJob)
    except BaseException as error:
        with suppress(NotFound):
            await client.delete(CONFIG_MAP, stored, Object)
        if isinstance(error, Invalid):
            raise CannotSubmit(f"The cluster rejects the job: {error.message}") from error
        if isinstance(error, (NotFound, NotServed)):
            raise CannotSubmit(
                "This cluster has no TrainingJobs: Skysail is not installed. `skysail up` starts a cluster with it."
            ) from error
        raise
    # The code is deleted together with the job.
    await client.merge_patch(CONFIG_MAP, settings.namespace, stored.metadata.name, _owned_by(job), Object)
    return job


def _owned_by(job: TrainingJob) -> dict[str, Any]:
    resource = TRAINING_JOB.resource
    owner = {"apiVersion": resource.api_version, "kind": resource.kind}
    owner |= {"name": job.metadata.name, "uid": job.metadata.uid}
    return {"metadata": {"ownerReferences": [owner]}}


async def follow(client: Client, job: TrainingJob, print_line: LinePrinter, echo: Echo) -> int:
    """Print states and logs until the job has finished. Returns the exit code for the command."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pod_logs.follow(client, job, LogSelection(), print_line))
        last = tasks.create_task(_states(client, job, echo))
    return exit_code(last.result())


async def _states(client: Client, job: TrainingJob, echo: Echo) -> TrainingJob | None:
    """Print each new state. Returns None if the job was deleted."""
    last, printed = None, ""
    async for seen in cluster.until_over(client, job):
        if seen.metadata.uid != job.metadata.uid:
            return None
        state = _state(seen)
        if state and state != printed:
            echo(_line(seen))
        last, printed = seen, state
    return last


def _state(job: TrainingJob) -> str:
    """Return phase and pending reason, or the percentage while the job runs. A line is printed for each change."""
    phase, condition, reported = job.status.phase or "", main_condition(job), job.status.progress
    if phase == "Running":
        return phase if reported is None or reported.percent is None else f"{phase}: {reported.percent}%"
    return phase if condition is None else f"{phase}: {condition.message}"


def _line(job: TrainingJob) -> str:
    """Return the state, with epoch and remaining time if the job reports its percentage."""
    reported = job.status.progress
    if job.status.phase != "Running" or reported is None or reported.percent is None:
        return _state(job)
    brief = msgspec.structs.replace(reported, step=None, metrics=(), last_updated_time=None)
    return f"{job.status.phase}: {progress(brief, clock.now())}"


def exit_code(job: TrainingJob | None) -> int:
    """Return the exit code of the failed program, 0 for success, else 1."""
    if job is not None and job.status.phase == "Succeeded":
        return 0
    failure = None if job is None else job.status.failure
    return _FAILED if failure is None else failure.exit_code or _FAILED
