"""Claims, instances and a cloud that does as the test says, in few words."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from skysail.base.names import Finalizer
from skysail.base.timestamps import timestamp
from skysail.claims.limits.offload_policy import OffloadPolicy, OffloadPolicySpec
from skysail.claims.limits.spend_account import Reservation, SpendAccount, SpendAccountSpec, SpendAccountStatus
from skysail.claims.limits.spending_facts import SpendingFacts
from skysail.claims.snapshot import NotObserved, Observation, Snapshot
from skysail.claims.tracking.inventory import InventoryTracker
from skysail.claims.types import CloudInstance, CloudInstanceSpec, CloudInstanceStatus, Launching, OwnerRef
from skysail.cloud.account import Instance, Inventory, LaunchSpec, Member, Timings
from skysail.cloud.offers import Offer, OfferList
from skysail.cloud.provider import Container, Ended, Features, Output, Pod
from skysail.kube.api.fields import LabelSelector
from skysail.kube.api.objects import Meta

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
UID = "7c0e5a52-5d0c-4a5e-9a0a-2f5f0a5a7d11"
NAME = f"{UID}-0"
CLUSTER = "cluster-1"
CLOUD = "cloud"
ACCOUNT = "ours"
TICKET = "ticket"
TERMS = Timings()
# More than any sample costs.
RESERVED = 1000.0
DELETING = "2026-11-15T11:59:00Z"
OFFERS = (
    Offer(provider=CLOUD, usd_per_hour=0.1),
    Offer(provider=CLOUD, gpu_type="T4", gpu_memory=16, usd_per_hour=0.5, region="eu"),
    Offer(provider=CLOUD, gpu_type="L4", gpu_memory=24, usd_per_hour=0.8, region="eu"),
    Offer(provider=CLOUD, gpu_type="H100", gpu_memory=80, usd_per_hour=4.0, region="us"),
)


def spec(uid: str = UID, **fields: Any) -> CloudInstanceSpec:
    owner = {name: fields.pop(name, "") for name in ("work_key", "job_uid")}
    for_ = OwnerRef(kind="Pod", namespace="n", name="a", uid=uid, container="main", **owner)
    return CloudInstanceSpec(**{"provider": CLOUD, "owner": for_, **fields})


def claim(
    state: str | None = None, *, metadata: dict | None = None, of: CloudInstanceSpec | None = None, **status: Any
):
    """A claim in this state. `nonce` is who calls; what has an instance is known as i-1."""
    of = of or spec()
    nonce = status.pop("nonce", "")
    if nonce:
        status["launching"] = Launching(by="operator", nonce=nonce, at=ago(10))
    if state in {"Starting", "Running", "Terminating"}:
        status = {"instance_id": "i-1", "usd_per_hour": 3.6, "start_time": ago(60), **status}
    if state in {"Launching", "Unknown", "Starting", "Running", "Terminating"}:
        status = {"reserved_usd": RESERVED, "reserve_time": ago(20), **status}
    if state == "Terminated":
        status = {"end_time": ago(5), "usd_total": 0.5, **status}
    meta = {
        "name": f"{of.owner.uid}-{of.launch}",
        "uid": f"claim-{of.launch}",
        "resource_version": "7",
        "generation": 1,
        "creation_timestamp": ago(120),
        "finalizers": (Finalizer.CLAIM,),
    }
    return CloudInstance(Meta(**{**meta, **(metadata or {})}), of, CloudInstanceStatus(state=state, **status))


def instance(id_: str = "i-1", state: str = "running", **fields: Any) -> Instance:
    base = {"claim": NAME, "cluster": CLUSTER, "created": NOW.timestamp() - 60, "usd_per_hour": 3.6}
    if state == "running":
        base["started"] = NOW.timestamp() - 30
    if state == "ended":
        base["ended"] = NOW.timestamp() - 1
    return Instance(id=id_, state=state, **{**base, **fields})


def exited(code: int = 0, message: str = "") -> Ended:
    return Ended(code=code, reason="Error" if code else "Completed", message=message, ended=NOW.timestamp() - 2)


def launch_spec(name: str = NAME) -> LaunchSpec:
    pod = Pod(uid=UID, namespace="n", name="a", hostname="a")
    return LaunchSpec(
        claim=name,
        cluster=CLUSTER,
        members=(Member(pod, Container(name="main", image="busybox")),),
        max_lifetime=3600.0,
    )


def policy(name: str = "default", **fields: Any) -> OffloadPolicy:
    """A policy that allows everything, but for these fields."""
    spec = {"namespace_selector": LabelSelector(), "providers": (CLOUD,), "max_instances": 100, **fields}
    return OffloadPolicy(Meta(name=name), OffloadPolicySpec(**spec))


def account(*reservations: Reservation, **fields: Any) -> SpendAccount:
    meta = Meta(name="n", uid="account", resource_version="9", generation=1)
    return SpendAccount(meta, SpendAccountSpec("n"), SpendAccountStatus(reservations=reservations, **fields))


def facts(of: CloudInstance, **fields: Any) -> SpendingFacts:
    """Facts that allow a launch, with enough money reserved for the claim if it is not terminated."""
    at = of.status.reserve_time or ago(20)
    held = Reservation(claim=of.metadata.name, usd=RESERVED, at=at)
    held = () if of.status.state == "Terminated" else (held,)
    return SpendingFacts(**{"policies": (policy(),), "account": account(*held), **fields})


def snapshot(of: CloudInstance, **fields: Any) -> Snapshot:
    known = {
        "now": NOW,
        "identity": "me",
        "nonce": TICKET,
        "timings": TERMS,
        "observation": NotObserved(),
        "launch_spec": launch_spec(),
        "spending": facts(of),
    }
    return Snapshot(object=of, **{**known, **fields})


def ago(seconds: float) -> str:
    return timestamp(NOW - timedelta(seconds=seconds))


def moved(of: CloudInstance, **status: Any) -> CloudInstance:
    """The claim after a write."""
    version = str(int(of.metadata.resource_version) + 1)
    metadata = msgspec.structs.replace(of.metadata, resource_version=version)
    return msgspec.structs.replace(of, metadata=metadata, status=msgspec.structs.replace(of.status, **status))


class Talk:
    """A command that says nothing and ends well."""

    async def output(self) -> AsyncIterator[Output]:
        for nothing in ():
            yield nothing

    async def wait(self) -> int:
        return 0

    async def kill(self) -> None:
        return

    async def close(self) -> None:
        return


class ScriptedCloud:
    """Answers what it was given. An exception is raised; None waits for ever."""

    name = CLOUD
    account = ACCOUNT
    features = Features(exec=True, multi_container=True)
    terms = TERMS

    def __init__(self, *instances: Instance) -> None:
        self.instances = list(instances)
        self.listing: Exception | Inventory | None = None
        self.offered: Exception | OfferList | None = OfferList(OFFERS, NOW.timestamp())
        self.offer_polls = 0
        self.pages: dict[str, Instance | Exception | None] = {}
        self.answers: list[Instance | BaseException | None] = []
        self.launch_specs: list[LaunchSpec] = []
        self.looks: list[str] = []
        self.ends: list[tuple[str, float]] = []
        self.end_error: Exception | None = None
        self.deleted_volumes: list[tuple[str, str]] = []
        self.is_silent = False
        self.talks: list[str] = []
        self.told: asyncio.Queue[str | Exception] = asyncio.Queue()

    async def create(self, spec: LaunchSpec) -> Instance:
        self.launch_specs.append(spec)
        await asyncio.sleep(1)
        answer = self.answers.pop(0)
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def terminate(self, instance: str, grace: float) -> None:
        self.ends.append((instance, grace))
        await self._hang()
        if self.end_error is not None:
            raise self.end_error

    async def delete_volume(self, namespace: str, volume: str) -> None:
        self.deleted_volumes.append((namespace, volume))
        await self._hang()
        if self.end_error is not None:
            raise self.end_error

    async def list(self) -> Inventory:
        await asyncio.sleep(0.1)
        await self._hang()
        if isinstance(self.listing, Exception):
            raise self.listing
        return self.listing or Inventory(tuple(self.instances))

    async def offers(self) -> OfferList:
        self.offer_polls += 1
        await asyncio.sleep(0.1)
        if self.offered is None:
            await asyncio.Event().wait()
        if isinstance(self.offered, Exception):
            raise self.offered
        return self.offered

    async def get(self, instance: str) -> Instance | None:
        self.looks.append(instance)
        await asyncio.sleep(0.1)
        await self._hang()
        page = self.pages.get(instance, next((row for row in self.instances if row.id == instance), None))
        if isinstance(page, Exception):
            raise page
        return page

    async def watch(self) -> AsyncIterator[str]:
        while True:
            news = await self.told.get()
            if isinstance(news, Exception):
                raise news
            yield news

    async def exec(self, instance: str, command: tuple[str, ...], *, stdin: bool, tty: bool, rank: int = 0) -> Talk:
        self.talks.append(f"{instance}: {' '.join(command)}")
        return Talk()

    async def dial(self, instance: str, port: int, *, rank: int = 0) -> None:
        self.talks.append(f"{instance}: {port}")

    async def _hang(self) -> None:
        if self.is_silent:
            await asyncio.Event().wait()
        await asyncio.sleep(0)

    async def output(self, instance: str, *, rank: int = 0) -> AsyncIterator[Output]:
        yield Output("stdout", 0.0, f"of {instance}".encode())


class Watch:
    """The listings of one cloud, and who was woken by them."""

    def __init__(self, *instances) -> None:
        self.cloud = ScriptedCloud(*instances)
        self.woken: list[str] = []
        clock = asyncio.get_running_loop().time
        self.listings = InventoryTracker(self.cloud, CLUSTER, clock=clock, changed=self.woken.append)

    def knows(self, *claims: CloudInstance) -> None:
        for one in claims:
            self.listings.claim_changed(None, one)

    async def poll(self, times: int = 1, every: float = 5.0) -> None:
        for _ in range(times):
            await asyncio.sleep(every)
            await self.listings.poll()

    def sight(self, name: str = NAME) -> Observation:
        return self.listings.observation(name)
