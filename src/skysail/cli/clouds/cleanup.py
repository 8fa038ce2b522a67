"""Delete what the operator created for itself, after it was uninstalled: its nodes, Lease, Secret and ConfigMaps.

TrainingJobs lose the finalizer by which the operator deletes their volumes: nobody would remove it any more.
A node is kept while a claim exists: its instance may still run, and only an operator can terminate it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from skysail.base.errors import UserError
from skysail.base.names import Finalizer
from skysail.claims.bridging import bridge_ports
from skysail.claims.limits import launch_history
from skysail.claims.limits.offload_policy import DRAIN_POLICY, OFFLOAD_POLICY
from skysail.claims.tracking import offer_publisher
from skysail.claims.types import CLOUD_INSTANCE
from skysail.cli.clouds import cloud_objects, draining
from skysail.kinds.training.api.training_job import TRAINING_JOB
from skysail.kube import leader_election
from skysail.kube.admission import registration
from skysail.kube.api.objects import Object
from skysail.kube.api.rbac import PolicyRule
from skysail.kube.api.resources import CONFIG_MAP, LEASE, NODE, SECRET, Resource
from skysail.kube.client.client import Client
from skysail.kube.client.errors import NotFound, NotServed

_OWN: tuple[tuple[Resource, str], ...] = (
    (LEASE, leader_election.NAME),
    (SECRET, registration.SECRET_NAME),
    (CONFIG_MAP, launch_history.NAME),
    (CONFIG_MAP, offer_publisher.NAME),
    (CONFIG_MAP, bridge_ports.NAME),
)

# Rights of a cleanup that runs in the cluster.
POLICY_RULES = (
    PolicyRule(NODE, ("delete", "list")),
    PolicyRule(CLOUD_INSTANCE.resource, ("list",)),
    PolicyRule(TRAINING_JOB.resource, ("get", "list", "patch")),
    PolicyRule(OFFLOAD_POLICY.resource, ("delete", "get"), names=(DRAIN_POLICY,)),
    *(PolicyRule(resource, ("delete", "get"), names=(name,)) for resource, name in _OWN),
)


class NotUninstalled(UserError):
    """The operator still runs, or claims are left. The message says what to do."""

    exit_code = 1


async def clean_up(client: Client, namespace: str, *, seconds: float, report: Callable[[str], None]) -> None:
    """Wait until the operator has stopped, then delete its objects. Raises NotUninstalled."""
    await _until_stopped(client, namespace, seconds)
    if claims := await _claims(client):
        raise NotUninstalled(
            f"{claims} claims are left, and their instances may be billed: install Skysail again and run "
            "`skysail drain`."
        )
    await _release_jobs(client, report)
    for node in await client.list_objects(NODE, "", cloud_objects.CLOUD_NODES, Object):
        await _delete(client, NODE, node, report)
    for resource, name in (*_OWN, (OFFLOAD_POLICY.resource, DRAIN_POLICY)):
        with contextlib.suppress(NotFound, NotServed):
            place = namespace if resource.namespaced else ""
            await _delete(client, resource, await client.get(resource, place, name, Object), report)


async def _until_stopped(client: Client, namespace: str, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while await draining.has_operator(client, namespace):
                pass  # the check itself takes seconds
            return
    raise NotUninstalled(f"An operator still runs in namespace {namespace}: uninstall it first, with `helm uninstall`.")


async def _release_jobs(client: Client, report: Callable[[str], None]) -> None:
    with contextlib.suppress(NotFound, NotServed):
        for job in await client.list_objects(TRAINING_JOB.resource, "", {}, Object):
            if Finalizer.CLOUD_VOLUME in job.metadata.finalizers:
                await draining.strip(client, TRAINING_JOB, job, {Finalizer.CLOUD_VOLUME.value})
                report(f"TrainingJob {job.metadata.key} released: delete its volumes at clouds yourself.")


async def _claims(client: Client) -> int:
    with contextlib.suppress(NotFound, NotServed):
        return len(await client.list_objects(CLOUD_INSTANCE.resource, "", {}, Object))
    return 0


async def _delete(client: Client, resource: Resource, object_: Object, report: Callable[[str], None]) -> None:
    with contextlib.suppress(NotFound):
        await client.delete(resource, object_, Object)
        report(f"{resource.kind} {object_.metadata.key} deleted.")
