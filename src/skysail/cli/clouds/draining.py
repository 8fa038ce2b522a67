"""End everything that costs money at clouds, for `skysail drain`.

1. Stop launches: a policy that allows no instance in any namespace, and a cordon of the nodes that stand for clouds.
   The operator checks policies right before each launch.
2. Delete the pods on these nodes, and all claims. Repeat this, because controllers create pods again.
3. Wait until the operator has terminated each instance and deleted its claim.
4. Remove the finalizers from our other kinds, so that nothing hangs after the operator is gone.

The finalizer for volumes at clouds stays while an operator runs: it would add it again, and it still has to delete the
volumes of jobs that are being deleted. `skysail clean-up` removes it after the operator is gone.

Only the operator has credentials for clouds. Without one, only claims that certainly have no instance are released.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from skysail.app.kinds import ALL_KINDS
from skysail.base.names import Condition, Finalizer, LegacyFinalizer
from skysail.claims.limits.offload_policy import DRAIN_POLICY, OFFLOAD_POLICY, OffloadPolicy
from skysail.claims.requirements.types import PROVIDERS
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.cli import cluster
from skysail.cli.clouds import cloud_objects
from skysail.cli.clouds.cloud_objects import CloudNode
from skysail.core import conditions
from skysail.kinds.training.api.training_job import TRAINING_JOB
from skysail.kube import leader_election
from skysail.kube.api.crd import CustomKind
from skysail.kube.api.objects import Object
from skysail.kube.api.rbac import PolicyRule, read_rule
from skysail.kube.api.resources import LEASE, NODE, POD, Resource
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from skysail.kube.client.errors import ApiError, Conflict, Forbidden, NotFound, NotServed
from skysail.kube.leader_election import Lease

# An operator renews its lease every two seconds.
_RENEWAL_SECONDS = 10.0
_POLL_SECONDS = 0.5
_ROUND_SECONDS = 2.0
_ATTEMPTS = 5
_DESCRIPTION = "kubernetes.io/description"

# Kinds of users. The others have no finalizers, except claims, which lose theirs only when nothing is billed any more.
_USER_KINDS = tuple(kind for kind in ALL_KINDS if kind.resource.namespaced)
# Rights of a drain that runs in the cluster.
POLICY_RULES = (
    *(PolicyRule(kind.resource, ("get", "list", "patch")) for kind in _USER_KINDS),
    read_rule(CLOUD_INSTANCE.resource),
    PolicyRule(CLOUD_INSTANCE.resource, ("delete", "patch")),
    PolicyRule(OFFLOAD_POLICY.resource, ("create",)),
    PolicyRule(OFFLOAD_POLICY.resource, ("patch",), names=(DRAIN_POLICY,)),
    PolicyRule(NODE, ("list", "patch")),
    PolicyRule(POD, ("delete", "list")),
    PolicyRule(LEASE, ("get",), names=(leader_election.NAME,)),
)


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """State before the drain. `has_operator` is None if the lease cannot be read."""

    claims: tuple[CloudInstance, ...]
    nodes: tuple[CloudNode, ...]
    pods: tuple[Object, ...]
    has_operator: bool | None

    @property
    def live(self) -> tuple[CloudInstance, ...]:
        """Claims whose instance runs, or may run."""
        return tuple(claim for claim in self.claims if may_cost(claim))


class ClaimReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One claim. `usd`: its final cost, or None if it is not known. `message`: why it is left, empty if it ended."""

    claim: str
    provider: str
    owner: str
    instance: str
    usd: float | None = None
    message: str = ""


class DrainReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Result of a drain. `left`: claims that still exist. `finalizers`: objects that lost our finalizers.

    `problems`: instances without a claim, as sentences. `notes`: what could not be done.
    """

    policy: str
    cordoned: tuple[str, ...]
    deleted_pods: tuple[str, ...]
    ended: tuple[ClaimReport, ...]
    usd: float
    left: tuple[ClaimReport, ...]
    finalizers: tuple[str, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        return not self.left and not self.problems


def may_cost(claim: CloudInstance) -> bool:
    """Return whether the claim has an instance, or may have one because a call's outcome is not known."""
    status = claim.status
    if status.state == "Terminated":
        return False
    return bool(status.instance_id) or status.state not in {None, "Claimed"}


async def survey(client: Client, operator_namespace: str) -> Survey:
    """Read what a drain would end. Raises Forbidden if the user may not list claims or nodes."""
    nodes = await client.list_objects(NODE, "", cloud_objects.CLOUD_NODES, CloudNode)
    return Survey(
        claims=await cloud_objects.list_claims(client),
        nodes=nodes,
        pods=await _pods(client, nodes),
        has_operator=await has_operator(client, operator_namespace),
    )


async def has_operator(client: Client, namespace: str) -> bool | None:
    """Return whether an operator renews its lease, or None if the lease cannot be read.

    Waits for a renewal instead of comparing times, because clocks differ, and because an operator may just start.
    """
    seen = ""
    try:
        async with asyncio.timeout(_RENEWAL_SECONDS):
            while True:
                lease = await client.find(LEASE, namespace, leader_election.NAME, Lease)
                version = lease.metadata.resource_version if lease and lease.spec.holder_identity else ""
                if seen and version not in {"", seen}:
                    return True
                seen = version
                await asyncio.sleep(_POLL_SECONDS)
    except Forbidden:
        return None
    except TimeoutError:
        return False


async def drain(client: Client, before: Survey, *, seconds: float, report: Callable[[str], None]) -> DrainReport:
    """End everything, for at most so many seconds. `report` gets sentences about the progress."""
    return await _Drain(client, before, seconds, report).run()


class _Drain:
    def __init__(self, client: Client, before: Survey, seconds: float, report: Callable[[str], None]) -> None:
        self._client = client
        self._before = before
        self._seconds = seconds
        self._report = report
        self._deleted_pods: dict[str, None] = {}
        # The last state of each claim that was seen, also after its deletion.
        self._seen: dict[str, CloudInstance] = {claim.metadata.name: claim for claim in before.claims}

    async def run(self) -> DrainReport:
        await self._stop_launches()
        left: Sequence[CloudInstance]
        if self._before.has_operator is False:
            left = await self._release_unlaunched()
        else:
            left = await self._end_all()
        holders = await self._volume_holders()
        has_released = not left and self._before.has_operator is False
        finalizers = await self._remove_finalizers(with_remote=not left, with_volumes=has_released)
        ended = [claim for claim in self._seen.values() if self._was_ended(claim, left)]
        return DrainReport(
            policy=DRAIN_POLICY,
            cordoned=tuple(node.metadata.name for node in self._before.nodes),
            deleted_pods=tuple(self._deleted_pods),
            ended=tuple(_claim_report(claim) for claim in ended),
            usd=round(sum(claim.status.usd_total or 0.0 for claim in ended), 6),
            left=tuple(_left_report(claim) for claim in left),
            finalizers=finalizers,
            problems=await self._orphans(),
            notes=(*self._missing_operator(has_left=bool(left)), *_volume_notes(holders, has_released=has_released)),
        )

    async def _stop_launches(self) -> None:
        self._report(
            f"No more launches: OffloadPolicy {DRAIN_POLICY} allows none, and the nodes of clouds are cordoned."
        )
        await self._client.apply(OFFLOAD_POLICY.resource, _policy(self._before), OffloadPolicy)
        for node in self._before.nodes:
            with contextlib.suppress(NotFound):
                patch = {"spec": {"unschedulable": True}}
                await self._client.merge_patch(NODE, "", node.metadata.name, patch, Object)

    async def _end_all(self) -> list[CloudInstance]:
        """Delete pods and claims until no claim is left, or until the timeout. Returns the claims that are left."""
        cache = Cache(CLOUD_INSTANCE.resource, CloudInstance)
        changed = asyncio.Event()
        cache.subscribe(lambda old, new: self._record(new or old, changed))
        async with cluster.synced_cache(self._client, cache, ""):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await self._until_empty(cache, changed)
            return sorted(cache.all(), key=lambda claim: claim.metadata.name)

    async def _until_empty(self, cache: Cache[CloudInstance], changed: asyncio.Event) -> None:
        reported = -1
        while True:
            changed.clear()
            await self._delete_pods()
            for claim in cache.all():
                await self._delete(CLOUD_INSTANCE.resource, claim)
            left = cache.all()
            if not left:
                return
            if len(left) != reported:
                reported = len(left)
                live = sum(may_cost(claim) for claim in left)
                self._report(f"Waiting for {reported} claims, {live} of them with an instance.")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ROUND_SECONDS):
                    await changed.wait()

    def _record(self, claim: CloudInstance | None, changed: asyncio.Event) -> None:
        if claim is not None:
            self._seen[claim.metadata.name] = claim
        changed.set()

    async def _delete_pods(self) -> None:
        for pod in await _pods(self._client, self._before.nodes):
            self._deleted_pods[str(pod.metadata.key)] = None
            await self._delete(POD, pod)

    async def _delete(self, resource: Resource, object_: Object) -> None:
        if not object_.metadata.is_deleting:
            with contextlib.suppress(NotFound, Conflict):
                await self._client.delete(resource, object_, Object)

    async def _release_unlaunched(self) -> list[CloudInstance]:
        """Release claims that certainly have no instance. Returns the others."""
        left = []
        for claim in await cloud_objects.list_claims(self._client):
            if may_cost(claim) or claim.status.earlier_instances:
                left.append(claim)
                continue
            await self._delete(CLOUD_INSTANCE.resource, claim)
            await strip(self._client, CLOUD_INSTANCE, claim, {Finalizer.CLAIM.value})
        return left

    async def _volume_holders(self) -> tuple[str, ...]:
        """Return the TrainingJobs by whose finalizer the operator deletes volumes at clouds."""
        with contextlib.suppress(NotFound, NotServed):
            jobs = await self._client.list_objects(TRAINING_JOB.resource, "", {}, Object)
            return tuple(str(job.metadata.key) for job in jobs if Finalizer.CLOUD_VOLUME in job.metadata.finalizers)
        return ()

    async def _remove_finalizers(self, *, with_remote: bool, with_volumes: bool) -> tuple[str, ...]:
        """Remove finalizers from our kinds other than claims. Returns the objects that had one."""
        removable = {name.value for name in LegacyFinalizer}
        if with_remote:
            removable.add(Finalizer.REMOTE.value)
        if with_volumes:
            removable.add(Finalizer.CLOUD_VOLUME.value)
        stripped: list[str] = []
        for kind in _USER_KINDS:
            with contextlib.suppress(NotFound, NotServed):
                listed = await self._client.list_objects(kind.resource, "", {}, Object)
                found = [object_ for object_ in listed if removable & set(object_.metadata.finalizers)]
                for object_ in found:
                    await strip(self._client, kind, object_, removable)
                stripped += [f"{kind.resource.kind} {object_.metadata.key}" for object_ in found]
        return tuple(stripped)

    def _was_ended(self, claim: CloudInstance, left: Iterable[CloudInstance]) -> bool:
        """Return whether this drain ended an instance of the claim."""
        if claim.metadata.name in {other.metadata.name for other in left}:
            return False
        before = next((row for row in self._before.claims if row.metadata.name == claim.metadata.name), None)
        if before is not None and before.status.state == "Terminated":
            return False
        return bool(claim.status.instance_id) or bool(claim.status.usd_total)

    def _missing_operator(self, *, has_left: bool) -> tuple[str, ...]:
        if self._before.has_operator is not False:
            return ()
        if not has_left:
            return ("No operator runs, so instances without a claim cannot be seen: check the console of the cloud.",)
        message = (
            "No operator runs, and only an operator can terminate instances: start it and drain again, or terminate "
            "them in the console of the cloud."
        )
        return (message,)

    async def _orphans(self) -> tuple[str, ...]:
        nodes = await self._client.list_objects(NODE, "", cloud_objects.CLOUD_NODES, CloudNode)
        found = ((node, node.problem(Condition.NO_ORPHANED_INSTANCES)) for node in nodes)
        return tuple(f"{node.metadata.name}: {message}" for node, message in found if message)


def names(done: DrainReport) -> list[str]:
    """Return the claims that are left, as kubectl names them."""
    resource = CLOUD_INSTANCE.resource
    return [f"{resource.kind.lower()}.{resource.group}/{row.claim}" for row in done.left]


async def strip(client: Client, kind: CustomKind, object_: Object, removable: Collection[str]) -> None:
    """Remove finalizers of one object."""
    metadata = object_.metadata
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(Conflict):
            found = await client.find(kind.resource, metadata.namespace, metadata.name, Object)
            if found is None or found.metadata.uid != metadata.uid:
                return
            rest = [name for name in found.metadata.finalizers if name not in removable]
            version = {"uid": metadata.uid, "resourceVersion": found.metadata.resource_version}
            patch = {"metadata": {**version, "finalizers": rest}}
            await client.merge_patch(kind.resource, metadata.namespace, metadata.name, patch, Object)
            return
    raise ApiError(409, "Conflict", f"{kind.resource.kind} {metadata.key} changes too often")


def _volume_notes(holders: Sequence[str], *, has_released: bool) -> tuple[str, ...]:
    """Return what follows for volumes of these TrainingJobs at clouds."""
    if not holders:
        return ()
    names = ", ".join(holders)
    if has_released:
        return (f"Released {len(holders)} TrainingJobs: delete their volumes at clouds yourself: {names}.",)
    message = (
        f"{len(holders)} TrainingJobs keep the finalizer {Finalizer.CLOUD_VOLUME}, by which the operator deletes their "
        f"volumes at clouds: run `skysail clean-up` after you have uninstalled it: {names}."
    )
    return (message,)


async def _pods(client: Client, nodes: Iterable[CloudNode]) -> tuple[Object, ...]:
    """Return the pods on these nodes. Pods of DaemonSets are not run there, cost nothing and would come back."""
    found: list[Object] = []
    for node in nodes:
        query = {"fieldSelector": f"spec.nodeName={node.metadata.name}"}
        found += await client.list_objects(POD, "", query, Object)
    return tuple(pod for pod in found if not _is_of_daemon_set(pod))


def _is_of_daemon_set(pod: Object) -> bool:
    owner = pod.metadata.controller
    return owner is not None and owner.kind == "DaemonSet"


def _policy(before: Survey) -> dict[str, object]:
    resource = OFFLOAD_POLICY.resource
    providers = {*PROVIDERS, *(node.provider for node in before.nodes), *(row.spec.provider for row in before.claims)}
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "name": DRAIN_POLICY,
            "annotations": {
                _DESCRIPTION: "Written by `skysail drain`: no launches. Delete it to allow launches again."
            },
        },
        "spec": {"namespaceSelector": {}, "providers": sorted(filter(None, providers)), "maxInstances": 0},
    }


def _claim_report(claim: CloudInstance) -> ClaimReport:
    for_ = claim.spec.owner
    return ClaimReport(
        claim=claim.metadata.name,
        provider=claim.spec.provider,
        owner=f"{for_.namespace}/{for_.kind.lower()}/{for_.name}",
        instance=claim.status.instance_id,
        usd=claim.status.usd_total,
    )


def _left_report(claim: CloudInstance) -> ClaimReport:
    rows = (
        conditions.find_condition(claim.status.conditions, name) for name in (Condition.TERMINATED, Condition.LAUNCHED)
    )
    message = next((row.message for row in rows if row is not None), "")
    state = f"State {claim.status.state or 'Claimed'}."
    costs = "" if may_cost(claim) else "It has no instance and costs nothing."
    return msgspec.structs.replace(_claim_report(claim), message=" ".join(filter(None, (state, message, costs))))
