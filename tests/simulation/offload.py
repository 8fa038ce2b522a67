"""A pod on a node that stands for a cloud: the real keeper, claims and loop, on the simulated account."""

from __future__ import annotations

import asyncio
import math
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from skysail.claims.bureau import Bureau, Rules, Surroundings
from skysail.claims.observe import INDEXES
from skysail.claims.owners import PodOwners
from skysail.claims.provider import Wishes
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.cloud.instances import Terms
from skysail.cloud.simulated import bill
from skysail.cloud.simulated.account import Account
from skysail.cloud.simulated.ledger import Ledger
from skysail.cloud.simulated.vendors import MODAL
from skysail.kube.events import Broadcaster
from skysail.kube.resources import POD
from skysail.node import keeper
from skysail.node.keeper import Keeper
from skysail.node.logs import LogStore
from skysail.node.references import Node
from tests.simulation.clouds import FaultyCloud
from tests.simulation.runner import Bill
from tests.simulation.world import EPOCH

if TYPE_CHECKING:
    from skysail.cloud.simulated.faults import Fault
    from skysail.cloud.simulated.ledger import Row
    from skysail.node.manifest import Pod
    from tests.contract.speech import Api
    from tests.simulation.process import Process
    from tests.simulation.world import World

NODE = "cloud"
CLUSTER = "cluster-1"
STRANGER = "cluster-2"
# A tick that is longer than a real one: hours of virtual time pass in each run.
VENDOR = msgspec.structs.replace(MODAL, lag=8.0, remembers=120.0, terms=Terms(tick=30.0))
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
        "conditions",
        "containerID",
        "imageID",
    }
)


class Market:
    """The account, with an instance of somebody else in it."""

    def __init__(self, *script: Fault) -> None:
        self.logs = tempfile.TemporaryDirectory(prefix="skysail-logs-")
        self.ledger = Ledger()
        self.account = Account(VENDOR, self.ledger, now=_wall, script=script)
        self.foreign = self.account.plant(claim="theirs", cluster=STRANGER)

    async def close(self) -> None:
        await self.account.close()
        self.logs.cleanup()

    def bill(self, world: World) -> Bill:
        rows = self.ledger.rows
        claims = [obj["metadata"]["name"] for obj in world.objects.get(CLOUD_INSTANCE.resource, {}).values()]
        at_once, orphans = bill.most_at_once(rows), self._orphans(claims, world)
        wrong = [f"{at_once} instances were billed at once for one claim"] if at_once > 1 else []
        wrong += [f"instance {row.instance} of claim {row.claim} has no owner" for row in orphans]
        wrong += [f"a stranger's instance {name} was touched" for name in bill.strangers_touched(rows, cluster=CLUSTER)]
        wrong += [f"claim {name} went while its instance was paid for" for name in self._abandoned(world)]
        return Bill(at_once, len(orphans), wrong)

    def _orphans(self, claims: list[str], world: World) -> list[Row]:
        pods = {obj["metadata"]["uid"] for obj in world.objects.get(POD, {}).values()}
        alive = [row for row in bill.billable(self.ledger.rows) if row.cluster == CLUSTER]
        return [row for row in alive if row.claim not in claims or row.claim.rsplit("-", 1)[0] not in pods]

    def _abandoned(self, world: World) -> list[str]:
        """Claims that went although the id of an instance stood in them that had not ended."""
        ends = {row.instance: row.at for row in self.ledger.rows if row.verb == "ended"}
        gone = [each for each in world.history.journal if each.gone and each.resource == CLOUD_INSTANCE.resource]
        ids = {each.after["metadata"]["name"]: each.after.get("status", {}).get("instanceId") for each in gone}
        return [
            name
            for name, at in ((each.after["metadata"]["name"], EPOCH.timestamp() + each.at) for each in gone)
            if ids[name] and ends.get(ids[name], math.inf) > at
        ]


class Harbour:
    """An operator with one cloud."""

    def __init__(self, process: Process) -> None:
        market: Market = process.outside
        claims = process.cache(CLOUD_INSTANCE.resource, CloudInstance, INDEXES)
        cloud = FaultyCloud(market.account, process.transport)
        broadcaster = Broadcaster(process.client, instance="operator", now=process.now)
        rules = Rules(cluster=CLUSTER, identity=f"operator-{process.rng.getrandbits(32):08x}")
        around = Surroundings(process.now, asyncio.get_running_loop().time, process.rng)
        self.bureau = Bureau(
            process.client,
            claims,
            {VENDOR.name: cloud},
            PodOwners(process.client, self._pod),
            rules=rules,
            around=around,
        )
        process.performer.clouds = self.bureau.calls
        loop = process.control(self.bureau.controller, claims)
        self.bureau.attach(loop.queue.add)
        provider = self.bureau.provider(VENDOR.name)
        provider.wishes = lambda _: Wishes()
        self.keeper = Keeper(
            process.client,
            provider,
            Node(name=NODE, address="10.0.0.1", allocatable={}, environment={}),
            LogStore(Path(tempfile.mkdtemp(dir=market.logs.name))),
            around=keeper.Surroundings(broadcaster, lambda: process.now().timestamp(), process.rng),
        )
        self.keeper.pods.subscribe(self.bureau.owner_changed)
        process.background += [
            broadcaster.run,
            self.keeper.run,
            lambda: self.bureau.run(process.performer.end),
        ]

    def _pod(self, uid: str) -> Pod | None:
        book = self.keeper.books.get(uid)
        return self.keeper.pod(book) if book else None


async def apply_pod(api: Api, simulate: str, *, name: str = "train", **spec: object) -> None:
    container = {
        "name": "main",
        "image": "python:3.11",
        "command": ["python", "train.py"],
        "env": [{"name": "SKYSAIL_SIMULATE", "value": simulate}],
    }
    manifest = {
        "metadata": {"name": name},
        "spec": {"nodeName": NODE, "restartPolicy": "Never", "containers": [container], **spec},
    }
    (await api.create(POD, manifest)).ok  # noqa: B018 (asserts)


def _wall() -> float:
    return (EPOCH + timedelta(seconds=asyncio.get_running_loop().time())).timestamp()
