"""The stand-in's account: pods, registry credentials, network volumes, ledger and billing."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

import msgspec

from skysail.cloud.provider import Provider
from skysail.cloud.runpod import api, marks
from skysail.cloud.runpod.stand_in import validation
from skysail.cloud.runpod.stand_in.catalogue import DATA_CENTERS, Catalogue
from skysail.cloud.runpod.stand_in.faults import NONE, Fault, FaultScript
from skysail.cloud.runpod.stand_in.pod_record import PodRecord, Timing
from skysail.cloud.runpod.stand_in.validation import Refusal
from skysail.cloud.simulated import billing
from skysail.cloud.simulated.ledger import Ledger, Row, Verb

_NO_INSTANCES = "There are no longer any instances available with the requested specifications. Please try again later"
_NO_RESOURCES = "This machine does not have the resources to deploy your pod. Please try a different machine"
_REGISTRY_IN_USE = "registry credential is in use by a pod"


class RegistryRecord(msgspec.Struct):
    id: str
    name: str
    username: str
    password: str


class StandInOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the stand-in. Times are in seconds.

    `lag`: a new pod is missing from lists this long. `hidden`: it is answered with 404 this long.
    `port`: TCP ports of a running pod are mapped after this time.
    `quota`: requests per minute. `has_exec`: whether the API has the exec call.
    """

    start: float = 0.5
    restart: float = 0.5
    lag: float = 0.0
    hidden: float = 0.0
    port: float = 0.0
    quota: int = 300
    has_exec: bool = True


_DEFAULTS = StandInOptions()


class StandInService:
    """The account behind the API. Must be created inside the running event loop."""

    def __init__(
        self,
        provider: Provider,
        ledger: Ledger,
        *,
        now: Callable[[], float],
        options: StandInOptions = _DEFAULTS,
        script: FaultScript | None = None,
    ) -> None:
        self.options = options
        self.catalogue = Catalogue()
        self.faults = script or FaultScript()
        self.ledger = ledger
        self.pods: dict[str, PodRecord] = {}
        self.registries: dict[str, RegistryRecord] = {}
        self.volumes: dict[str, api.NetworkVolume] = {}
        self.templates: dict[str, api.CreatePod] = {}
        self.has_balance = True
        self.now = now
        self._provider = provider
        self._visible: dict[str, tuple[float, float]] = {}
        self._ended_costs: dict[str, float] = {}
        self._endings: set[asyncio.Task[None]] = set()
        # Called with the id of a new network volume, so that the provider has a disk for it.
        self.make_disk: Callable[[str], None] = lambda _: None
        self._forget_previous()

    async def close(self) -> None:
        """End all containers. Pods stay in the ledger as ended, because nothing of them is left."""
        for pod in list(self.pods.values()):
            await self.terminate(pod.id)
        await asyncio.gather(*self._endings)
        self.ledger.close()

    def create(self, body: api.CreatePod, fault: Fault = NONE) -> PodRecord:
        """Create a pod. Raises Refusal."""
        body = self._from_template(body)
        try:
            self._check(body, fault)
        except Refusal as refusal:
            mark = marks.of_env(body.env)
            note = f"{refusal.status}: {refusal.detail}"
            row = Row(at=self.now(), verb="refused", claim=mark.claim, cluster=mark.cluster, note=note)
            self.ledger.write(row)
            raise
        pod = PodRecord(
            body,
            provider=self._provider,
            usd=self._price(body) * (2 if fault.what == "dear" else 1),
            center=body.data_center_ids[0] if body.data_center_ids else DATA_CENTERS[0],
            now=self.now,
        )
        pod.never_starts = fault.what == "no-start"
        pod.on_started = lambda: self._record(pod, "started") if pod.restarts == 0 else None
        lag = fault.seconds if fault.what in {"late", "hidden"} else self.options.lag
        hidden = fault.seconds if fault.what == "hidden" else self.options.hidden
        self._visible[pod.id] = (pod.created + max(lag, hidden), pod.created + hidden)
        self.pods[pod.id] = pod
        self._record(pod, "create")
        pod.start(Timing(self.options.start, self.options.restart, self.options.port))
        return pod

    def find(self, id_: str) -> PodRecord:
        """Return a pod that lookups show. Raises Refusal."""
        pod = self.pods.get(id_)
        if pod is None or self.now() < self._visible[id_][1]:
            raise Refusal(404, "pod not found")
        return pod

    def listed(self) -> list[PodRecord]:
        now = self.now()
        return [pod for pod in self.pods.values() if now >= self._visible[pod.id][0]]

    async def terminate(self, id_: str) -> None:
        """Delete a pod. Concurrent deletions end it once, and a client that disconnects does not stop a deletion."""
        pod = self.pods.pop(id_)
        self._record(pod, "end asked")
        ending = asyncio.create_task(self._end(pod))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        await asyncio.shield(ending)

    async def _end(self, pod: PodRecord) -> None:
        await pod.terminate()
        self._record(pod, "ended")

    async def stop(self, id_: str) -> None:
        """Stop a pod as the service does by itself, for example for lack of balance. Its storage stays billed."""
        await self.pods[id_].stop()

    def add_registry(self, body: api.CreateRegistry) -> RegistryRecord:
        if not body.name or not body.username or not body.password:
            raise Refusal(422, "request validation failed", ("$: name, username and password must not be empty",))
        if any(row.name == body.name for row in self.registries.values()):
            raise Refusal(400, f"a registry credential named {body.name} already exists")
        row = RegistryRecord(f"reg{secrets.token_hex(6)}", body.name, body.username, body.password)
        self.registries[row.id] = row
        return row

    def delete_registry(self, id_: str) -> None:
        if id_ not in self.registries:
            raise Refusal(404, "registry not found")
        if any(pod.body.registry == id_ for pod in self.pods.values()):
            raise Refusal(400, _REGISTRY_IN_USE)
        del self.registries[id_]

    def add_volume(self, name: str, size: int, center: str) -> api.NetworkVolume:
        volume = api.NetworkVolume(id=secrets.token_hex(5), name=name, size=size, data_center=center)
        self.make_disk(volume.id)
        self.volumes[volume.id] = volume
        return volume

    def billed(self, id_: str) -> float:
        begin = self.ledger.beginnings.get(id_)
        if begin is None:
            return 0.0
        return self._ended_costs.get(id_, billing.cost(begin, self.now()))

    def _check(self, body: api.CreatePod, fault: Fault) -> None:
        validation.check_pod(body, self.catalogue)
        if not self.has_balance:
            raise Refusal(402, "insufficient balance")
        if body.registry and body.registry not in self.registries:
            raise Refusal(404, "registry not found")
        self._check_capacity(body, fault)
        for mount in body.mounts.network if body.mounts else ():
            volume = self.volumes.get(mount.volume_id)
            if volume is None:
                raise Refusal(404, "network volume not found")
            if body.data_center_ids and volume.data_center not in body.data_center_ids:
                raise Refusal(400, _NO_INSTANCES)

    def _check_capacity(self, body: api.CreatePod, fault: Fault) -> None:
        id_ = body.gpu.id if body.gpu else body.cpu.id if body.cpu else ""
        count = body.gpu.count if body.gpu else 1
        if fault.what == "no-capacity" or not self.catalogue.has(id_, count):
            raise Refusal(400, _NO_INSTANCES)
        if body.gpu is None:
            return
        gpu = self.catalogue.gpus[id_]
        if gpu.price(body.cloud) <= 0 or count > gpu.max_count:
            raise Refusal(400, _NO_RESOURCES)
        allowed = body.gpu.allowed_cuda_versions
        if allowed and not set(allowed) & set(gpu.cuda):
            raise Refusal(400, _NO_INSTANCES)

    def _price(self, body: api.CreatePod) -> float:
        if body.cpu is not None:
            return round(self.catalogue.cpus[body.cpu.id].per_vcpu * body.cpu.vcpu_count, 6)
        assert body.gpu is not None, "the body was checked"
        return round(self.catalogue.gpus[body.gpu.id].price(body.cloud) * body.gpu.count, 6)

    def _from_template(self, body: api.CreatePod) -> api.CreatePod:
        if not body.template_id:
            return body
        template = self.templates.get(body.template_id)
        if template is None:
            raise Refusal(404, "template not found")
        return msgspec.structs.replace(
            body,
            image=body.image or template.image,
            env=template.env | body.env,
            ports=body.ports or template.ports,
            disk=body.disk or template.disk,
        )

    def _forget_previous(self) -> None:
        """Record the end of pods of an earlier process, whose containers ended with it."""
        for instance in list(self.ledger.instances.values()):
            if instance.state != "ended":
                begin, now = self.ledger.beginnings[instance.id], self.now()
                usd = self._ended_costs[instance.id] = billing.cost(begin, now)
                row = Row(at=now, verb="ended", instance=instance.id, usd=usd, note="The stand-in was restarted.")
                self.ledger.write(msgspec.structs.replace(row, claim=begin.claim, cluster=begin.cluster))

    def _record(self, pod: PodRecord, verb: Verb) -> None:
        mark, now = marks.of_env(pod.body.env), self.now()
        usd = pod.usd if verb == "create" else 0.0
        if verb == "ended":
            usd = self._ended_costs[pod.id] = billing.cost(self.ledger.beginnings[pod.id], now)
        row = Row(
            at=now, verb=verb, instance=pod.id, claim=mark.claim, cluster=mark.cluster, region=pod.center, usd=usd
        )
        lifetime = pod.body.env.get(marks.LIFETIME, "")
        if verb == "create" and lifetime.isdigit():
            row = msgspec.structs.replace(row, seconds=float(lifetime))
        self.ledger.write(row)
