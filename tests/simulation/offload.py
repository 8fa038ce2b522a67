"""A pod on a node that stands for a cloud: the real keeper, claims and loop, on the simulated account."""

from __future__ import annotations

import asyncio
import math
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from skysail.base.names import Condition
from skysail.claims.dependencies import ClaimDependencies
from skysail.claims.limits.offload_policy import OFFLOAD_POLICY
from skysail.claims.limits.spend_account import SPEND_ACCOUNT
from skysail.claims.manager import ClaimManager, ClaimSettings
from skysail.claims.plan.termination import EXIT_LOST
from skysail.claims.reconciler import INDEXES
from skysail.claims.requirements.cloud_requirements import CloudRequirements, OfferLimits
from skysail.claims.tracking.owners import OwnerLookup
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.cloud.account import Timings
from skysail.cloud.simulated import billing
from skysail.cloud.simulated.account import SimulatedAccount
from skysail.cloud.simulated.ledger import Ledger
from skysail.cloud.simulated.vendors import MODAL
from skysail.kube.api.resources import POD
from skysail.kube.events import Broadcaster
from skysail.node import kubelet
from skysail.node.config.references import NodeInfo
from skysail.node.kubelet import Kubelet
from skysail.node.log_store import LogStore
from tests.simulation import spending
from tests.simulation.clouds import FaultyCloud
from tests.simulation.runner import Bill, Due
from tests.simulation.world import EPOCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from skysail.cloud.simulated.faults import Fault
    from skysail.cloud.simulated.ledger import Row
    from tests.contract.api_dsl import Api
    from tests.simulation.operator_process import Process
    from tests.simulation.watches import Change
    from tests.simulation.world import World

RESOURCES = (CLOUD_INSTANCE.resource, OFFLOAD_POLICY.resource, SPEND_ACCOUNT.resource)
NODE = "cloud"
CLUSTER = "cluster-1"
STRANGER = "cluster-2"
# A tick that is longer than a real one: hours of virtual time pass in each run.
VENDOR = msgspec.structs.replace(
    MODAL, lag=8.0, remembers=120.0, terms=Timings(poll_interval=30.0, create_timeout=150.0)
)
# Leaves three GPU types as candidates, and not the first one at twice its price.
LIMITS = OfferLimits(max_usd_per_gpu_hour=1.15, alternatives=frozenset({"other"}))
MAY_LEAVE = "test/may-leave"
# Other in each run, and yet there or not there in all of them. Of the cost the ledger is the judge.
VOLATILE = frozenset(
    {
        "startTime",
        "readyTime",
        "finishTime",
        "endTime",
        "deadlineTime",
        "startedAt",
        "finishedAt",
        "instanceId",
        "usdTotal",
        "launching",
        "containerID",
        "imageID",
        "at",
        "reservedUsd",
        "reserveTime",
    }
)
# Depends on how long an instance was needed. The ledger is the judge of it, too.
OPTIONAL = frozenset({"totals"})


class CloudFixture:
    """The account, with an instance of somebody else in it."""

    def __init__(self, *script: Fault) -> None:
        self.logs = tempfile.TemporaryDirectory(prefix="skysail-logs-")
        self.ledger = Ledger()
        self.account = SimulatedAccount(VENDOR, self.ledger, now=wall, script=script)
        self.foreign = self.account.inject_orphan(claim="theirs", cluster=STRANGER)

    async def close(self) -> None:
        await self.account.close()
        self.logs.cleanup()

    def bill(self, world: World) -> Bill:
        rows = self.ledger.rows
        claims = [obj["metadata"]["name"] for obj in world.objects.get(CLOUD_INSTANCE.resource, {}).values()]
        at_once, orphans = billing.max_concurrent(rows), self._orphans(claims, world)
        wrong = [f"{at_once} instances were billed at once for one claim"] if at_once > 1 else []
        wrong += [f"{many} instances did the work {work} at once" for work, many in self._together(world, "workKey")]
        wrong += [f"instance {row.instance} of claim {row.claim} has no owner" for row in orphans]
        wrong += [
            f"a stranger's instance {name} was touched"
            for name in billing.foreign_instances_touched(rows, cluster=CLUSTER)
        ]
        wrong += [f"claim {name} went while its instance was paid for" for name in self._abandoned(world)]
        wrong += spending.violations(world, list(billing.rows_of_cluster(rows, CLUSTER)))
        return Bill(
            at_once, len(orphans), wrong, self._dues(world), [job for job, _ in self._together(world, "jobUID")]
        )

    def _dues(self, world: World) -> dict[str, Due]:
        """By claim, with what it says of its cost at the end."""
        last = {each.after["metadata"]["name"]: each.after for each in _claims(world)}
        unwanted = _unwanted(world)
        mine = list(billing.rows_of_cluster(self.ledger.rows, CLUSTER))
        found = {}
        for name, charge in billing.charges(mine, wall()).items():
            says = last[name].get("status", {}).get("usdTotal") if name in last else None
            rows = [row for row in mine if row.claim == name]
            # Per second, of the dearest instance: a claim may have had more than one, one after the other.
            price = max(row.usd for row in rows if row.verb == "create") / 3600
            error = abs(says - charge.usd) / price if says is not None and price else 0.0
            idle = sum(_idle(rows, unwanted.get(name.rsplit("-", 1)[0], math.inf)))
            found[name] = Due(instances=charge.instances, idle=idle, error=error)
        return found

    def _together(self, world: World, field: str) -> list[tuple[str, int]]:
        """For which `workKey` or `jobUID` more than one instance was paid for at once, and how many."""
        names = {each.after["metadata"]["name"]: each.after["spec"]["owner"].get(field, "") for each in _claims(world)}
        rows = [msgspec.structs.replace(row, claim=names.get(row.claim, "")) for row in self.ledger.rows]
        found = billing.charges(rows, 0.0)
        return [(name, charge.at_once) for name, charge in found.items() if name and charge.at_once > 1]

    def _orphans(self, claims: list[str], world: World) -> list[Row]:
        pods = {obj["metadata"]["uid"] for obj in world.objects.get(POD, {}).values()}
        alive = [row for row in billing.billable(self.ledger.rows) if row.cluster == CLUSTER]
        return [row for row in alive if row.claim not in claims or row.claim.rsplit("-", 1)[0] not in pods]

    def _abandoned(self, world: World) -> list[str]:
        """Claims that went although the id of an instance stood in them that had not ended."""
        ends = {row.instance: row.at for row in self.ledger.rows if row.verb == "ended"}
        gone = [each for each in _claims(world) if each.gone]
        ids = {each.after["metadata"]["name"]: each.after.get("status", {}).get("instanceId") for each in gone}
        return [
            name
            for name, at in ((each.after["metadata"]["name"], EPOCH.timestamp() + each.at) for each in gone)
            if ids[name] and ends.get(ids[name], math.inf) > at
        ]


def last_word(change: Change) -> dict[str, Any]:
    """How a claim that has gone says that its instance ended: everything but the words."""
    if change.resource != CLOUD_INSTANCE.resource:
        return {}
    status = change.after.get("status", {})
    ends = [row["reason"] for row in status.get("conditions", ()) if row["type"] == Condition.TERMINATED]
    told = {key: value for key, value in status.items() if key != "observedGeneration"}
    if refused := status.get("refusedCandidates"):
        told["refusedCandidates"] = [(row["candidate"], row["reason"]) for row in refused]
    was_killed = status.get("exit", {}).get("code") == EXIT_LOST
    # Who comes after a crash sees a program that was killed, and cannot always know any more by whom.
    return {**told, "conditions": bool(ends) if was_killed else ends}


def _claims(world: World) -> list[Change]:
    """All that was ever written of claims."""
    return [each for each in world.history.journal if each.resource == CLOUD_INSTANCE.resource]


def _unwanted(world: World) -> dict[str, float]:
    """When somebody first wanted the end of each pod, by its UID."""
    found: dict[str, float] = {}
    for each in world.history.journal:
        metadata = each.after["metadata"]
        if each.resource == POD and (each.gone or "deletionTimestamp" in metadata):
            found.setdefault(metadata["uid"], EPOCH.timestamp() + each.at)
    return found


def _idle(rows: list[Row], unwanted: float) -> Iterator[float]:
    """How long each instance was paid for after its program had ended, or nobody wanted it any more."""
    for begin in [row for row in rows if row.verb == "create"]:
        own = {row.verb: row.at for row in rows if row.instance == begin.instance}
        since = max(begin.at, min(unwanted, own.get("exited", math.inf)))
        yield max(0.0, own.get("ended", wall()) - since)


class CloudOperator:
    """An operator with one cloud."""

    provider_name = VENDOR.name
    limits = LIMITS

    def __init__(self, process: Process) -> None:
        cloud_fixture: CloudFixture = process.outside
        self.claims = claims = process.cache(CLOUD_INSTANCE.resource, CloudInstance, INDEXES)
        cloud = self.connect(process, CLUSTER)
        broadcaster = Broadcaster(process.client, instance="operator", now=process.now)
        claim_settings = ClaimSettings(
            cluster=CLUSTER, identity=f"operator-{process.rng.getrandbits(32):08x}", providers=(self.provider_name,)
        )
        around = ClaimDependencies(process.now, asyncio.get_running_loop().time, process.rng)
        self.bureau = ClaimManager(
            process.acting,
            claims,
            {self.provider_name: cloud},
            OwnerLookup(process.client, lambda uid: self.keeper.cached_pod(uid)),  # noqa: PLW0108 (it is made below)
            claim_settings=claim_settings,
            deps=around,
        )
        process.executor.clouds = self.bureau.calls
        controller = process.control(self.bureau.controller, claims)
        self.bureau.on_change(controller.queue.add)
        limits = self.bureau.limits
        for cache in (limits.policies, limits.namespaces, limits.accounts):
            process.fill(cache)
        accounts = process.control(self.bureau.account_reconciler, limits.accounts)
        self.bureau.enqueue_accounts(accounts.queue.add)
        policies = process.control(self.bureau.policy_reconciler, limits.policies)
        self.bureau.enqueue_policies(policies.queue.add)
        provider = self.bureau.provider(self.provider_name)
        provider.requirements = self._wishes
        provider.specs.has_offer = lambda _provider, _namespace, _requirements: True
        provider.specs.limits = lambda _: self.limits
        self.keeper = Kubelet(
            process.acting,
            provider,
            NodeInfo(name=NODE, address="10.0.0.1", allocatable={}, environment={}, is_virtual=True),
            LogStore(Path(tempfile.mkdtemp(dir=cloud_fixture.logs.name))),
            deps=kubelet.KubeletDependencies(broadcaster, lambda: process.now().timestamp(), around.clock, process.rng),
        )
        self.keeper.pods.subscribe(self.bureau.on_owner_changed)
        process.background += [
            broadcaster.run,
            self.keeper.run,
            lambda: self.bureau.run(process.executor.terminate_instance),
        ]

    def connect(self, process: Process, cluster: str) -> FaultyCloud:
        """Return the connection of this process to the cloud."""
        return FaultyCloud(process.outside.account, process.transport)

    def _wishes(self, uid: str) -> CloudRequirements:
        pod = self.keeper.cached_pod(uid)
        if pod is None:
            return CloudRequirements()
        may_leave = pod.metadata.controller is not None and MAY_LEAVE in (pod.metadata.annotations or {})
        return msgspec.structs.replace(self.keeper.requirements(uid), may_leave=may_leave)


async def apply_pod(
    api: Api,
    simulate: str,
    *,
    name: str = "train",
    metadata: Mapping[str, object] | None = None,
    gpus: int = 0,
    **spec: object,
) -> None:
    container = {
        "name": "main",
        "image": "python:3.11",
        "command": ["python", "train.py"],
        "env": [{"name": "SKYSAIL_SIMULATE", "value": simulate}],
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {},
    }
    manifest = {
        "metadata": {"name": name, **(metadata or {})},
        "spec": {"nodeName": NODE, "restartPolicy": "Never", "containers": [container], **spec},
    }
    (await api.create(POD, manifest)).ok  # noqa: B018 (asserts)


def wall() -> float:
    return (EPOCH + timedelta(seconds=asyncio.get_running_loop().time())).timestamp()
