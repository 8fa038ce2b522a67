"""Provider that runs containers at a cloud: each start of a container is a claim, whose state is the state of the run.

This provider never launches or terminates an instance. It writes and deletes claims, and the launch protocol does the
rest. So a lost, repeated or concurrent request of a node costs nothing. The pods of a gang have one claim, which is
written when all of them have come to the node.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from skysail.base.names import Condition, EventReason, Reason
from skysail.claims import claim_specs
from skysail.claims.claim_specs import ClaimRequest, ClaimSpecs
from skysail.claims.gangs import GangMember, GangRef, Gangs, shared_requirements
from skysail.claims.requirements import account_objects
from skysail.claims.requirements.cloud_requirements import CloudRequirements
from skysail.claims.requirements.cost_cap import CostCap, with_cap
from skysail.claims.run_state import claim_name, rank_of, runs_of, state_of
from skysail.claims.tracking.launch_specs import LaunchSpecs
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance, CloudInstanceSpec, OwnerRef
from skysail.cloud import images
from skysail.cloud.account import CloudAccount, LaunchSpec, Member, RegistryCredentials
from skysail.cloud.errors import Gone, OutcomeUnknown, Rejected, Throttled, Unsupported
from skysail.cloud.images import ImageConfig
from skysail.cloud.provider import (
    Container,
    Features,
    File,
    Output,
    Pending,
    Pod,
    PortConnection,
    RunId,
    RuntimeListing,
    Session,
    State,
    Usage,
)
from skysail.core import conditions
from skysail.kube.api.objects import IndexKey, Key
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from skysail.kube.client.errors import AlreadyExists, KubeError, NotFound

log = logging.getLogger(__name__)

ReadImage = Callable[[str, RegistryCredentials | None], Awaitable[ImageConfig]]
HasShell = Callable[[str, RegistryCredentials | None], Awaitable[bool | None]]
RecordEvent = Callable[[RunId, str, str], None]


async def _no_gang(_: str) -> GangRef | None:
    return None


async def _no_cap(_: str) -> CostCap:
    return CostCap()


class ClaimProvider:
    """Provider of one cloud.

    `requirements` returns the requirements of a pod by its UID, `gang` its gang, or None if it has none, and
    `cost_cap` the cap of its owners. `specs` builds the specs of claims. `read_image` reads the config of an image,
    for clouds that need the command line, and `has_shell` its files, for clouds that need a shell. `has_mirror`
    returns whether there is a mirror of an image's registry. `record` records an event of a run.
    `has_seen` returns whether the cloud lists an instance of a claim, None if that is unknown. All are called when a
    run starts. `wake` enqueues a claim by name.
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
        self._gangs = Gangs()
        self._listeners: set[asyncio.Queue[RunId]] = set()
        # One event per claim and per waiting rank, so that a change wakes only the tasks that wait for it.
        self._news: dict[str, asyncio.Event] = {}
        self.specs = ClaimSpecs(account, claims)
        self.requirements: Callable[[str], CloudRequirements] = lambda _: CloudRequirements()
        self.gang: Callable[[str], Awaitable[GangRef | None]] = _no_gang
        self.cost_cap: Callable[[str], Awaitable[CostCap]] = _no_cap
        self.read_image: ReadImage | None = None
        self.has_shell: HasShell | None = None
        self.has_mirror: Callable[[str], bool] = lambda _: False
        self.record: RecordEvent = lambda *_: None
        self.has_seen: Callable[[str], bool | None] = lambda _: False
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

        Raises `Rejected` with the reason if no offer fits, if the offers are unknown, or if the cloud needs a command
        line or a shell that the image does not have. Nothing is written then, and the node retries.
        """
        pod = self._pods.get(run.pod)
        if pod is None:
            raise Gone(f"Pod {run.pod} was not prepared.")
        gang = await self.gang(run.pod)
        requirements = with_cap(_with_image(self.requirements(run.pod), container), await self.cost_cap(run.pod))
        container = await self._with_command(container, requirements.registry_credentials)
        await self._check_shell(run, container, requirements.registry_credentials)
        member = GangMember(run=run, member=Member(pod, container), requirements=requirements)
        if gang is None:
            if requirements.replicas > 1:
                self._check_gang(requirements, requirements.replicas, f"replicas of pod {pod.name}")
            await self._launch(
                ClaimRequest(owner=_pod_owner(member), launch=run.number, requirements=requirements), member
            )
        else:
            await self._join(gang, member)

    async def stop(self, run: RunId, grace: float) -> None:  # noqa: ARG002 (the contract's)
        """Delete the claim. Its instance gets the grace period of the claim, not `grace`.

        One rank that is stopped ends its gang.
        """
        self._leave(run.pod)
        claim = self._claim(run)
        if claim is not None and not claim.metadata.is_deleting and claim.status.state != "Terminated":
            await self._delete(claim)

    async def remove_sandbox(self, pod: str) -> None:
        """Forget the pod and reconcile its claims, which then check at the API server whether the pod still exists.

        Keep the launch spec of a pod that was not prepared here: another node of this cloud may need it.
        """
        if self._pods.pop(pod, None) is not None:
            self._launch_specs.forget_pod(pod)
        self._leave(pod)
        for claim in self._claims.by("pod", IndexKey("", pod)):
            self._wake(claim.metadata.name)

    async def list(self) -> RuntimeListing:
        waiting: dict[RunId, State] = {run: gang.state for run, gang in self._gangs.waiting()}
        claimed = {
            run: self._state(claim, rank)
            for claim in self._claims.all()
            if claim.spec.provider == self._account.name
            for rank, run in enumerate(runs_of(claim))
        }
        is_complete = self._claims.synced.is_set() and not self._claims.undecodable
        return RuntimeListing(runs={**waiting, **claimed}, pods=dict.fromkeys(self._pods, ""), complete=is_complete)

    async def changes(self) -> AsyncIterator[RunId]:
        queue: asyncio.Queue[RunId] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._listeners.discard(queue)

    async def state(self, run: RunId) -> State | None:
        claim = self._claim(run)
        if claim is not None:
            return self._state(claim, rank_of(claim, run))
        gang = self._gangs.of(run)
        if gang is not None:
            return gang.state
        name = claim_name(run.pod, run.number)
        if Key("", name) in self._claims.undecodable:
            raise OutcomeUnknown(f"Claim {name} cannot be decoded.")
        return None

    async def output(self, run: RunId) -> AsyncIterator[Output]:
        """Wait for the instance, then yield its output. Yields nothing if no instance is created.

        An instance that is terminated because of its price is followed by that of the next candidate.
        """
        instance = await self._instance_soon(run)
        while instance:
            claim = self._claim(run)
            rank = rank_of(claim, run) if claim is not None else 0
            async for piece in self._account.output(instance, rank=rank):
                yield piece
            claim = self._claim(run)
            is_refused = claim is not None and (claim.status.instance_id != instance or _is_refused(claim))
            instance = await self._instance_soon(run, after=instance) if is_refused else ""

    async def update(self, pod: str, volume: str, files: tuple[File, ...]) -> None:  # noqa: ARG002 (the contract's)
        raise Unsupported(f"{self.name} does not support volumes.")

    async def exec(self, run: RunId, command: tuple[str, ...], *, stdin: bool, tty: bool) -> Session:
        claim = self._running(run)
        rank = rank_of(claim, run)
        return await self._account.exec(claim.status.instance_id, command, stdin=stdin, tty=tty, rank=rank)

    async def attach(self, run: RunId, *, stdin: bool) -> Session:
        claim = self._running(run)
        return await self._account.attach(claim.status.instance_id, stdin=stdin, rank=rank_of(claim, run))

    async def connect(self, pod: str, port: int, *, from_outside: bool = False) -> PortConnection:  # noqa: ARG002 (the contract's)
        claims = [claim for claim in self._claims.by("pod", IndexKey("", pod)) if claim.status.state == "Running"]
        if not claims:
            raise Gone(f"Pod {pod} has no running instance at {self.name}.")
        latest = max(claims, key=lambda claim: claim.spec.launch)
        rank = next(rank for rank, run in enumerate(runs_of(latest)) if run.pod == pod)
        return await self._account.dial(latest.status.instance_id, port, rank=rank)

    async def usage(self) -> dict[RunId, Usage]:
        return {}

    async def _with_command(self, container: Container, credentials: RegistryCredentials | None) -> Container:
        """Add the command line of the image, if the pod names none. Raises Rejected.

        It is read for a cloud that needs one, and for every cloud if the image's registry has a mirror: a simulated
        cloud pulls no image, so it cannot know the ENTRYPOINT of what the mirror serves.
        """
        is_read = self._account.features.needs_command or self.has_mirror(container.image)
        if container.command or not is_read:
            return container
        if self.read_image is None:
            message = f"Container {container.name} has no command, which {self.name} needs: set `command`."
            raise Rejected(Reason.ENTRYPOINT_UNKNOWN, message)
        try:
            image_config = await self.read_image(container.image, credentials)
        except (OutcomeUnknown, Throttled) as error:
            raise Rejected(Reason.ENTRYPOINT_UNKNOWN, str(error)) from error
        return images.with_command(container, image_config)

    async def _check_shell(self, run: RunId, container: Container, credentials: RegistryCredentials | None) -> None:
        """Raise Rejected if the cloud needs a shell that the image does not have. A claim was checked before."""
        if not self._account.features.needs_shell or self.has_shell is None or self._claim(run) is not None:
            return
        found = await self.has_shell(container.image, credentials)
        if found is None:
            note = f"The files of image {container.image} cannot be read. It fails at {self.name} if it has no /bin/sh."
            self.record(run, EventReason.SHELL_UNKNOWN, note)
        elif not found:
            raise Rejected(
                Reason.NO_SHELL,
                f"Image {container.image} has no /bin/sh, under which {self.name} runs programs: use an image with a "
                "shell, or another cloud.",
            )

    async def _join(self, ref: GangRef, member: GangMember) -> None:
        """Add a rank to its gang, and write the claim when all ranks are there."""
        self._check_gang(member.requirements, ref.size, f"pods of {ref.kind} {ref.name}")
        gang = self._gangs.join(ref, member)
        members = gang.members
        if len({claim.metadata.uid if (claim := self._claim(each.run)) else "" for each in members}) != 1:
            return  # a rank is missing, or still belongs to an earlier launch
        try:
            await self._launch(self._gang_request(ref, members), *members)
        except Rejected as error:
            gang.problem = error
            self._publish(*(each.run for each in members if each is not member))
            raise

    def _check_gang(self, requirements: CloudRequirements, size: int, members: str) -> None:
        """Raise Rejected if the cloud cannot run these members together."""
        if not self.features.gang:
            raise Rejected(
                Reason.GANG_NOT_OFFLOADED,
                f"{self.name} has no private network for the {size} {members}: use a cloud that has one, use one "
                "worker, or do not ask for a cloud.",
            )
        gpus, limits = requirements.gpus, self.features.gang_limits
        if limits is not None and (
            problem := limits.problem(self.name, gpus.type if gpus else "", gpus.count if gpus else 0, size)
        ):
            raise Rejected(Reason.GANG_NOT_OFFLOADED, problem)

    def _gang_request(self, ref: GangRef, members: tuple[GangMember, ...]) -> ClaimRequest:
        pod = members[0].member.pod
        owner = OwnerRef(
            api_version=ref.api_version,
            kind=ref.kind,
            namespace=pod.namespace,
            name=ref.name,
            uid=ref.uid,
            job_uid=ref.uid if ref.kind == "Job" else "",
        )
        return ClaimRequest(
            owner=owner,
            launch=self._next_launch(owner),
            requirements=shared_requirements(members),
            member_pods=tuple(member.pod for member in members),
            ends_together=ref.ends_together,
        )

    def _next_launch(self, owner: OwnerRef) -> int:
        """Return an unused launch number of a gang. The cloud may still list an instance of a claim that is gone."""
        launch = max((claim.spec.launch for claim in self._claims.by("owner", owner.identity)), default=-1) + 1
        while is_used := self.has_seen(claim_name(owner.uid, launch)):
            launch += 1
        if is_used is None:
            raise Rejected(Reason.CLOUD_UNREACHABLE, f"{self.name} has not listed its instances yet; retried.")
        return launch

    async def _launch(self, request: ClaimRequest, *members: GangMember) -> None:
        """Store the launch spec of these runs and write their claim, unless it exists."""
        claim = self._claim(members[0].run)
        spec = claim.spec if claim is not None else await self.specs.build(request)
        name = claim.metadata.name if claim is not None else claim_name(request.owner.uid, request.launch)
        first = members[0].requirements
        if set(account_objects.named(self.name, first.options)) - set(spec.account_objects):
            # The policies have allowed what the claim names, and nothing else.
            message = "The pod's annotations name another object of the account than its claim: create the pod again."
            raise Rejected(Reason.POLICY_DENIED, message)
        self._launch_specs.put(
            LaunchSpec(
                claim=name,
                cluster=self._cluster,
                members=tuple(member.member for member in members),
                # Read the claim, because the pod's annotations may have changed since it was written.
                gpus=claim_specs.gpus(spec),
                replicas=1 if spec.member_pods else spec.members,
                max_lifetime=float(spec.max_lifetime_seconds or self._account.terms.max_lifetime),
                max_usd_per_hour=spec.max_usd_per_hour,
                registry_credentials=first.registry_credentials,
                options=first.options,
            )
        )
        if claim is None:
            await self._write(name, spec)
            self._report_lifetime(spec, members)

    def _report_lifetime(self, spec: CloudInstanceSpec, members: tuple[GangMember, ...]) -> None:
        """Record an event on each pod that asks for more time than its instance gets."""
        lifetime = spec.max_lifetime_seconds or self._account.terms.max_lifetime
        limit = self._lifetime_limit(lifetime, members)
        for member in members:
            seconds = member.requirements.seconds
            if seconds is not None and seconds > lifetime:
                note = f"The instance ends after {lifetime:.0f} seconds, and the pod asks for {seconds:.0f}: {limit}"
                self.record(member.run, EventReason.LIFETIME_LIMITED, note)

    def _lifetime_limit(self, lifetime: float, members: tuple[GangMember, ...]) -> str:
        """Return what limits the lifetime of the instance, with the fix."""
        if lifetime >= int(self._account.terms.max_lifetime):
            return f"{self.name} allows no more. Save checkpoints, or split the work."
        asked = [(member.requirements.seconds, rank) for rank, member in enumerate(members)]
        seconds, rank = min((seconds or math.inf, rank) for seconds, rank in asked)
        if seconds <= lifetime:
            return f"rank {rank} of its gang asks for no more. Ask for the same time in all ranks."
        return "an OffloadPolicy (spec.maxDurationSeconds) allows no more. Save checkpoints, or split the work."

    async def _write(self, name: str, spec: CloudInstanceSpec) -> None:
        try:
            manifest = claim_specs.manifest(name, spec)
            self._claims.record_write(await self._client.create(CLOUD_INSTANCE.resource, manifest, CloudInstance))
        except AlreadyExists:
            await self._read(name, spec)  # created by another process, or by our own write whose reply was lost
        except KubeError as error:
            raise OutcomeUnknown(f"Claim {name} could not be created: {error}") from error

    async def _read(self, name: str, spec: CloudInstanceSpec) -> None:
        try:
            found = await self._client.get(CLOUD_INSTANCE.resource, "", name, CloudInstance)
        except KubeError as error:
            raise OutcomeUnknown(f"Claim {name} could not be read: {error}") from error
        self._claims.record_write(found)
        if found.spec.member_pods != spec.member_pods:
            self._launch_specs.forget(name)
            raise OutcomeUnknown(f"Claim {name} belongs to an earlier launch of the gang; retried.")

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

    def _state(self, claim: CloudInstance, rank: int) -> State:
        state, status = state_of(claim, rank), claim.status
        has_instance = bool(status.instance_id)
        if isinstance(state, Pending) and not has_instance and self._launch_specs.get(claim.metadata.name) is None:
            return msgspec.structs.replace(state, needs_restart_spec=True)
        return state

    def _claim(self, run: RunId) -> CloudInstance | None:
        return next((claim for claim in self._claims.by("pod", IndexKey("", run.pod)) if run in runs_of(claim)), None)

    def _running(self, run: RunId) -> CloudInstance:
        claim = self._claim(run)
        if claim is None or claim.status.state != "Running":
            raise Gone(f"Container {run.container} has no running instance at {self.name}.")
        return claim

    async def _instance_soon(self, run: RunId, after: str = "") -> str:
        """Wait for an instance other than `after`. Returns an empty string if there will be none."""
        claim = self._claim(run)
        while (claim is None and self._gangs.of(run)) or (claim is not None and claim.status.state != "Terminated"):
            if claim is not None and claim.status.instance_id not in {"", after} and not _is_refused(claim):
                break
            await self._news.setdefault(run.pod, asyncio.Event()).wait()
            claim = self._claim(run)
        found = claim.status.instance_id if claim else ""
        return "" if found == after else found

    def _leave(self, pod: str) -> None:
        """Take a pod out of its gang. The claim of the gang, if there is one, is not affected."""
        self._gangs.leave(pod)
        self._wake_waiting(pod)

    def _wake_waiting(self, pod: str) -> None:
        if news := self._news.pop(pod, None):
            news.set()

    def _publish(self, *runs: RunId) -> None:
        for queue in self._listeners:
            for run in runs:
                queue.put_nowait(run)

    def _changed(self, old: CloudInstance | None, new: CloudInstance | None) -> None:
        claim = new or old
        if claim is not None and claim.spec.provider == self._account.name:
            runs = runs_of(claim)
            for run in runs:
                if new is not None and (new.status.instance_id or new.status.state == "Terminated"):
                    self._gangs.forget(run)
                self._wake_waiting(run.pod)
            self._publish(*runs)


def _is_refused(claim: CloudInstance) -> bool:
    """Return whether the instance is terminated because of its price, so that the next candidate can follow."""
    launched = conditions.find_condition(claim.status.conditions, Condition.LAUNCHED)
    return launched is not None and launched.reason == Reason.PRICE_ABOVE_CAP


def _pod_owner(member: GangMember) -> OwnerRef:
    pod, requirements = member.member.pod, member.requirements
    return OwnerRef(
        kind="Pod",
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        container=member.run.container,
        work_key=requirements.work,
        job_uid=requirements.job,
        controller_uid=requirements.controller,
    )


def _with_image(requirements: CloudRequirements, container: Container) -> CloudRequirements:
    """Add the image of the container, if the requirements name none."""
    return msgspec.structs.replace(requirements, image=requirements.image or container.image)
