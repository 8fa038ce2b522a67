"""Provider that runs containers at a cloud: each start of a container is a claim, whose state is the state of the run.

This provider never launches or terminates an instance. It writes and deletes claims, and the launch protocol does the
rest. So a lost, repeated or concurrent request of a node costs nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime

import msgspec

from skysail.base.names import Condition, Finalizer, Label, Reason
from skysail.claims.plan.termination import EXIT_LOST, EXIT_NOT_STARTED
from skysail.claims.requirements import candidates
from skysail.claims.requirements.candidates import Selection
from skysail.claims.tracking.launch_specs import LaunchSpecs
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance, CloudInstanceSpec, Gpu, OwnerRef
from skysail.cloud.account import CloudAccount, GpuRequest, LaunchSpec, RegistryCredentials
from skysail.cloud.errors import Gone, OutcomeUnknown, Rejected, Unsupported
from skysail.cloud.offers import OfferList, OfferQuery
from skysail.cloud.provider import (
    Container,
    Ended,
    Features,
    File,
    Output,
    Pending,
    Pod,
    PortConnection,
    RunId,
    Running,
    RuntimeListing,
    Session,
    State,
    Usage,
)
from skysail.core import conditions
from skysail.kube.api.objects import IndexKey, Key
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import FIELD_MANAGER, Client
from skysail.kube.client.errors import AlreadyExists, KubeError, NotFound

# Prefix of a pod's imageID, for clouds whose prefix differs from their name.
_HOSTS = {"modal": "modal.com"}
# GPU type in a claim if the cloud chooses the type.
ANY_GPU = "any"
_MAX_IMAGE_LENGTH = 1024
# Do not write these reasons to the pod: every launch passes through them.
_USUAL = {Reason.LAUNCHING, Reason.LAUNCHED, Reason.WAITING_FOR_NODE, Reason.TRYING_NEXT_CANDIDATE}

log = logging.getLogger(__name__)


class CloudRequirements(msgspec.Struct, frozen=True, kw_only=True):
    """Requirements of a pod beyond its containers.

    `work` is the key of the work, which only one instance at a time may do. `job` is the UID of the Job whose pods
    replace each other. `gpus` and the fields from `gpu_memory` to `options` are those of the pod's `OffloadRequest`;
    `max_usd_per_hour` is a cap on the whole machine.
    `is_cheapest`: the pod leaves the choice of the provider to the ranking of offers.
    `may_leave`: the pod belongs to a Job, and its replacement may go to another provider. Then the pod ends if no
    candidate has capacity, instead of waiting.
    """

    gpus: GpuRequest | None = None
    seconds: float | None = None
    grace: float = 30.0
    work: str = ""
    job: str = ""
    gpu_memory: int = 0
    regions: tuple[str, ...] = ()
    cloud_types: tuple[str, ...] = ()
    cuda_versions: tuple[str, ...] = ()
    max_usd_per_hour: float | None = None
    max_cost_usd: float | None = None
    options: tuple[tuple[str, str], ...] = ()
    image: str = ""
    uses_secrets: bool = False
    is_automatic: bool = False
    registry_credentials: RegistryCredentials | None = None
    is_cheapest: bool = False
    may_leave: bool = False


class OfferLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that the policies of a namespace set on offers and launches. Empty fields do not restrict.

    `cheapest_usd_per_gpu_hour`: a further cap for pods that ask for the cheapest provider.
    `alternatives`: other providers that the policies allow, and at which there is an account.
    """

    gpu_types: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    max_usd_per_gpu_hour: float | None = None
    max_lifetime: float | None = None
    cheapest_usd_per_gpu_hour: float | None = None
    alternatives: frozenset[str] = frozenset()


class ClaimProvider:
    """Provider of one cloud.

    `requirements` returns the requirements of a pod by its UID, `limits` the limits of its namespace, `offers` the
    offers of the cloud, or None if they are unknown. All are called when a run starts. `wake` enqueues a claim by name.
    """

    def __init__(
        self,
        client: Client,
        account: CloudAccount,
        claims: Cache[CloudInstance],
        launch_specs: LaunchSpecs,
        *,
        cluster: str,
        wake: Callable[[str], None],
    ) -> None:
        self._client = client
        self._account = account
        self._claims = claims
        self._launch_specs = launch_specs
        self._cluster = cluster
        self._wake = wake
        self._pods: dict[str, Pod] = {}
        self._listeners: set[asyncio.Queue[CloudInstance]] = set()
        # One event per claim, so that a change wakes only the tasks that wait for this claim.
        self._news: dict[str, asyncio.Event] = {}
        self.requirements: Callable[[str], CloudRequirements] = lambda _: CloudRequirements()
        self.limits: Callable[[str], OfferLimits] = lambda _: OfferLimits()
        self.offers: Callable[[], Awaitable[OfferList | None]] = account.offers
        claims.subscribe(self._changed)

    @property
    def name(self) -> str:
        return self._account.name

    @property
    def features(self) -> Features:
        """Return the cloud's features, limited to one container per pod, because a claim is one container."""
        return msgspec.structs.replace(self._account.features, multi_container=False)

    async def create_sandbox(self, pod: Pod) -> str:
        self._pods[pod.uid] = pod
        return ""

    async def start(self, run: RunId, container: Container) -> None:
        """Write the claim with its candidates. Store the launch spec before, so that a reconcile always finds it.

        Raises `Rejected` with the reason if no offer fits, or if the offers are unknown. Nothing is written then.
        """
        pod = self._pods.get(run.pod)
        if pod is None:
            raise Gone(f"Pod {run.pod} was not prepared.")
        requirements, claim = self.requirements(run.pod), self._claim(run)
        spec = claim.spec if claim is not None else await self._spec(run, pod, _with_image(requirements, container))
        name = claim_name(run)
        self._launch_specs.put(
            LaunchSpec(
                claim=name,
                cluster=self._cluster,
                pod=pod,
                container=container,
                # Read the claim, because the pod's annotations may have changed since it was written.
                gpus=_gpus(spec),
                max_lifetime=float(spec.max_lifetime_seconds or self._account.terms.max_lifetime),
                max_usd_per_hour=spec.max_usd_per_hour,
                registry_credentials=requirements.registry_credentials,
                options=requirements.options,
            )
        )
        if claim is None:
            await self._write(name, _manifest(name, spec))

    async def stop(self, run: RunId, grace: float) -> None:  # noqa: ARG002 (the contract's)
        """Delete the claim. Its instance gets the grace period of the claim, not `grace`."""
        claim = self._claim(run)
        if claim is not None and not claim.metadata.is_deleting and claim.status.state != "Terminated":
            await self._delete(claim)

    async def remove_sandbox(self, pod: str) -> None:
        """Forget the pod and reconcile its claims, which then check at the API server whether the pod still exists.

        Keep the launch spec of a pod that was not prepared here: another node of this cloud may need it.
        """
        was_here = self._pods.pop(pod, None) is not None
        for claim in self._claims.by("pod", IndexKey("", pod)):
            if was_here:
                self._launch_specs.forget(claim.metadata.name)
            self._wake(claim.metadata.name)

    async def list(self) -> RuntimeListing:
        runs = {run_of(claim): self._state(claim) for claim in self._claims.all() if self._is_run(claim)}
        is_complete = self._claims.synced.is_set() and not self._claims.undecodable
        return RuntimeListing(runs=runs, pods=dict.fromkeys(self._pods, ""), complete=is_complete)

    async def changes(self) -> AsyncIterator[RunId]:
        queue: asyncio.Queue[CloudInstance] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            while True:
                yield run_of(await queue.get())
        finally:
            self._listeners.discard(queue)

    async def state(self, run: RunId) -> State | None:
        claim = self._claim(run)
        if claim is None and Key("", claim_name(run)) in self._claims.undecodable:
            raise OutcomeUnknown(f"Claim {claim_name(run)} cannot be decoded.")
        return None if claim is None else self._state(claim)

    async def output(self, run: RunId) -> AsyncIterator[Output]:
        """Wait for the instance, then yield its output. Yields nothing if no instance is created.

        An instance that is terminated because of its price is followed by that of the next candidate.
        """
        instance = await self._instance_soon(run)
        while instance:
            async for piece in self._account.output(instance):
                yield piece
            claim = self._claim(run)
            is_refused = claim is not None and (claim.status.instance_id != instance or _is_refused(claim))
            instance = await self._instance_soon(run, after=instance) if is_refused else ""

    async def update(self, pod: str, volume: str, files: tuple[File, ...]) -> None:  # noqa: ARG002 (the contract's)
        raise Unsupported(f"{self.name} does not support volumes.")

    async def exec(self, run: RunId, command: tuple[str, ...], *, stdin: bool, tty: bool) -> Session:
        return await self._account.exec(self._instance(run), command, stdin=stdin, tty=tty)

    async def attach(self, run: RunId, *, stdin: bool) -> Session:
        return await self._account.attach(self._instance(run), stdin=stdin)

    async def connect(self, pod: str, port: int, *, from_outside: bool = False) -> PortConnection:  # noqa: ARG002 (the contract's)
        claims = [claim for claim in self._claims.by("pod", IndexKey("", pod)) if claim.status.state == "Running"]
        if not claims:
            raise Gone(f"Pod {pod} has no running instance at {self.name}.")
        latest = max(claims, key=lambda claim: claim.spec.launch)
        return await self._account.dial(latest.status.instance_id, port)

    async def usage(self) -> dict[RunId, Usage]:
        return {}

    async def _spec(self, run: RunId, pod: Pod, requirements: CloudRequirements) -> CloudInstanceSpec:
        limits = self.limits(pod.namespace)
        may_leave = self._may_leave(pod.namespace, requirements, limits)
        selection = await self._select(requirements, limits, may_leave=may_leave)
        terms = self._account.terms
        lifetime = min(requirements.seconds or terms.max_lifetime, limits.max_lifetime or terms.max_lifetime)
        return CloudInstanceSpec(
            provider=self._account.name,
            account=self._account.account,
            owner=OwnerRef(
                kind="Pod",
                namespace=pod.namespace,
                name=pod.name,
                uid=pod.uid,
                container=run.container,
                work_key=requirements.work,
                job_uid=requirements.job,
            ),
            launch=run.number,
            gpu=Gpu(requirements.gpus.type or ANY_GPU, requirements.gpus.count) if requirements.gpus else None,
            candidates=selection.candidates,
            nearest_miss=selection.nearest_miss or selection.message,
            may_leave=may_leave,
            max_usd_per_hour=_cap(requirements, limits),
            max_cost_usd=requirements.max_cost_usd,
            max_lifetime_seconds=max(1, int(min(lifetime, terms.max_lifetime))),
            image=requirements.image[:_MAX_IMAGE_LENGTH],
            uses_secrets=requirements.uses_secrets,
            is_automatic=requirements.is_automatic,
            grace_seconds=int(requirements.grace),
        )

    def _may_leave(self, namespace: str, requirements: CloudRequirements, limits: OfferLimits) -> bool:
        """Return whether another provider is left that had capacity for all other pods of the same Job.

        Without that check, the pods of a Job would move between exhausted providers without an end.
        """
        if not requirements.may_leave:
            return False
        ended = self._claims.by("exhausted", IndexKey(namespace, requirements.job))
        return bool(limits.alternatives - {claim.spec.provider for claim in ended})

    async def _select(self, requirements: CloudRequirements, limits: OfferLimits, *, may_leave: bool) -> Selection:
        """Rank the offers of this cloud. A pod that may leave gets a claim that ends if no offer fits."""
        listed = await self.offers()
        if listed is None:
            raise Rejected(Reason.CLOUD_UNREACHABLE, f"{self.name} does not list its offers; retried.")
        selection = candidates.select(self.name, listed.offers, _query(requirements, limits))
        if not selection.candidates and not may_leave:
            raise Rejected(selection.reason, selection.message)
        return selection

    async def _write(self, name: str, manifest: dict[str, object]) -> None:
        try:
            self._claims.record_write(await self._client.create(CLOUD_INSTANCE.resource, manifest, CloudInstance))
        except AlreadyExists:
            await self._read(name)  # created by another process, or by our own write whose reply was lost
        except KubeError as error:
            raise OutcomeUnknown(f"Claim {name} could not be created: {error}") from error

    async def _read(self, name: str) -> None:
        try:
            self._claims.record_write(await self._client.get(CLOUD_INSTANCE.resource, "", name, CloudInstance))
        except KubeError as error:
            raise OutcomeUnknown(f"Claim {name} could not be read: {error}") from error

    async def _delete(self, claim: CloudInstance) -> None:
        """Delete the cached version of the claim. A claim that was terminated since stays with its pod."""
        as_known = {"uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version}
        try:
            left = await self._client.delete(CLOUD_INSTANCE.resource, claim, CloudInstance, {"preconditions": as_known})
        except NotFound:
            return
        except KubeError as error:
            raise OutcomeUnknown(f"Claim {claim.metadata.name} could not be deleted: {error}") from error
        if left is not None:
            self._claims.record_write(left)

    def _state(self, claim: CloudInstance) -> State:
        state, status = state_of(claim), claim.status
        has_instance = bool(status.instance_id)
        if isinstance(state, Pending) and not has_instance and self._launch_specs.get(claim.metadata.name) is None:
            return msgspec.structs.replace(state, needs_restart_spec=True)
        return state

    def _claim(self, run: RunId) -> CloudInstance | None:
        return self._claims.get(Key("", claim_name(run)))

    def _is_run(self, claim: CloudInstance) -> bool:
        return claim.spec.provider == self._account.name and claim.spec.owner.kind == "Pod"

    def _instance(self, run: RunId) -> str:
        claim = self._claim(run)
        if claim is None or claim.status.state != "Running":
            raise Gone(f"Container {run.container} has no running instance at {self.name}.")
        return claim.status.instance_id

    async def _instance_soon(self, run: RunId, after: str = "") -> str:
        """Wait for an instance other than `after`. Returns an empty string if there will be none."""
        claim = self._claim(run)
        while claim is not None and claim.status.state != "Terminated":
            if claim.status.instance_id not in {"", after} and not _is_refused(claim):
                break
            await self._news.setdefault(claim.metadata.name, asyncio.Event()).wait()
            claim = self._claim(run)
        found = claim.status.instance_id if claim else ""
        return "" if found == after else found

    def _changed(self, old: CloudInstance | None, new: CloudInstance | None) -> None:
        claim = new or old
        if claim is not None and self._is_run(claim):
            if news := self._news.pop(claim.metadata.name, None):
                news.set()
            for queue in self._listeners:
                queue.put_nowait(claim)


def claim_name(run: RunId) -> str:
    """Return the claim name of a run. It is unique: UIDs are never reused, and a pod at a cloud has one container."""
    return f"{run.pod}-{run.number}"


def run_of(claim: CloudInstance) -> RunId:
    return RunId(claim.spec.owner.uid, claim.spec.owner.container, claim.spec.launch)


def _is_refused(claim: CloudInstance) -> bool:
    """Return whether the instance is terminated because of its price, so that the next candidate can follow."""
    launched = conditions.find_condition(claim.status.conditions, Condition.LAUNCHED)
    return launched is not None and launched.reason == Reason.PRICE_ABOVE_CAP


def state_of(claim: CloudInstance) -> State:
    """Derive the state of a run from its claim. The run has ended only if the claim is terminated."""
    status = claim.status
    if status.state == "Terminated":
        return _end(claim)
    if status.ready_time is not None:
        return Running(_seconds(status.ready_time), _image_id(claim))
    launched = conditions.find_condition(status.conditions, Condition.LAUNCHED)
    if launched is None or launched.reason in _USUAL:
        return Pending("ContainerCreating")
    return Pending(launched.reason, launched.message)


def _end(claim: CloudInstance) -> Ended:
    status = claim.status
    condition = conditions.find_condition(status.conditions, Condition.TERMINATED)
    reason, message = (condition.reason, condition.message) if condition else ("", "")
    if status.exit is not None:
        reason, message = status.exit.reason or reason, status.exit.message
    finished = status.finish_time or status.end_time
    assert finished is not None, "a terminated claim has an end time"
    return Ended(
        code=status.exit.code if status.exit else (EXIT_LOST if status.instance_id else EXIT_NOT_STARTED),
        reason=reason,
        message=message,
        started=None if status.ready_time is None else _seconds(status.ready_time),
        ended=_seconds(finished),
        image_id=_image_id(claim),
    )


def _with_image(requirements: CloudRequirements, container: Container) -> CloudRequirements:
    """Add the image of the container, if the requirements name none."""
    return msgspec.structs.replace(requirements, image=requirements.image or container.image)


def _manifest(name: str, spec: CloudInstanceSpec) -> dict[str, object]:
    resource = CLOUD_INSTANCE.resource
    metadata = {"name": name, "finalizers": [Finalizer.CLAIM], "labels": {Label.MANAGED_BY: FIELD_MANAGER}}
    manifest = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
    return {**manifest, "spec": msgspec.to_builtins(spec)}


def _query(requirements: CloudRequirements, limits: OfferLimits) -> OfferQuery:
    gpus = requirements.gpus
    return OfferQuery(
        gpu_count=gpus.count if gpus else 0,
        gpu_type=gpus.type if gpus else "",
        gpu_types=limits.gpu_types,
        gpu_memory=requirements.gpu_memory if gpus else 0,
        regions=requirements.regions,
        allowed_regions=limits.regions,
        cloud_types=requirements.cloud_types,
        cuda_versions=requirements.cuda_versions if gpus else (),
        max_usd_per_hour=requirements.max_usd_per_hour,
        max_usd_per_gpu_hour=_gpu_cap(requirements, limits),
    )


def _gpu_cap(requirements: CloudRequirements, limits: OfferLimits) -> float | None:
    """Return the cap on each GPU. Machines without GPUs have none from the settings."""
    caps = [limits.max_usd_per_gpu_hour]
    if requirements.is_cheapest and requirements.gpus:
        caps.append(limits.cheapest_usd_per_gpu_hour)
    return min((cap for cap in caps if cap is not None), default=None)


def _cap(requirements: CloudRequirements, limits: OfferLimits) -> float | None:
    """Return the lower one of the pod's cap on the machine and the policies' cap on all of its GPUs."""
    count = requirements.gpus.count if requirements.gpus else 1
    per_gpu = _gpu_cap(requirements, limits)
    caps = (requirements.max_usd_per_hour, None if per_gpu is None else round(per_gpu * count, 6))
    return min((cap for cap in caps if cap is not None), default=None)


def _gpus(spec: CloudInstanceSpec) -> GpuRequest | None:
    gpu = spec.gpu
    return None if gpu is None else GpuRequest("" if gpu.type == ANY_GPU else gpu.type, gpu.count)


def _image_id(claim: CloudInstance) -> str:
    id_, cloud = claim.status.instance_id, claim.spec.provider
    return f"{_HOSTS.get(cloud, cloud)}/{id_}" if id_ else ""


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()
