"""The operator's process: builds everything once, runs it, and ends in good order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from skysail.app import clouds, training
from skysail.app.clouds import CloudNode
from skysail.app.kinds import ALL_KINDS, COMPATIBLE_KINDS
from skysail.app.training import Training
from skysail.base import clock, health
from skysail.base.errors import UserError
from skysail.base.metrics import Metrics
from skysail.base.names import Label, Metric
from skysail.base.settings import Settings
from skysail.claims import bureau
from skysail.claims.brake import Limits
from skysail.claims.bureau import Bureau
from skysail.claims.diary import Diary
from skysail.claims.observe import INDEXES
from skysail.claims.owners import PodOwners
from skysail.claims.surroundings import Surroundings
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.cloud.instances import Cloud
from skysail.core.act import Caches, Performer
from skysail.core.actions import Note
from skysail.core.fence import Fenced, FencedTransport
from skysail.core.loop import Controller, Loop
from skysail.kinds.awaiting.observe import Awaiting
from skysail.kinds.offload import admit as offload_admit
from skysail.kinds.run import admit as training_admit
from skysail.kinds.run.counts import Counts
from skysail.kinds.run.types import TRAINING_JOB
from skysail.kube import admission, kubeconfig, lease, webhooks
from skysail.kube.audit import Finding
from skysail.kube.cache import Cache
from skysail.kube.client import Client
from skysail.kube.collector import Collector
from skysail.kube.crd import CustomKind
from skysail.kube.discovery import Definition
from skysail.kube.errors import Forbidden, KubeError, NotFound
from skysail.kube.events import Broadcaster, Event
from skysail.kube.http import HttpTransport
from skysail.kube.informers import Informers
from skysail.kube.lease import Elector
from skysail.kube.objects import Key, Object
from skysail.kube.resources import NAMESPACE, Resource
from skysail.kube.transport import Transport
from skysail.kube.webhooks import Keeper
from skysail.node.logs import LogStore
from skysail.node.server.tls import Identity

_HEARTBEAT_SECONDS = 1.0
# The Lease has connections and a patience of its own: when writes hang, the renewal must not hang behind them.
_LEASE_SECONDS = 5.0
# Rules in definitions (CEL) and the label with a pod's completion index are there from this version on.
OLDEST_KUBERNETES = (1, 29)

log = logging.getLogger(__name__)


class CannotStart(UserError):
    """Something outside is not as the operator needs it; the message says what."""


async def run(settings: Settings) -> int:
    """Until SIGTERM or SIGINT (0), or until the lease is lost (1). Raises `CannotStart` or `ConfigError`."""
    access = kubeconfig.find(Path(settings.kubeconfig) if settings.kubeconfig else None, settings.context)
    transport = HttpTransport(access)
    lease_transport = HttpTransport(access, connections=2, seconds=_LEASE_SECONDS)
    try:
        ground = await _look_around(Client(transport), access.server)
        async with clouds.accounts(settings) as accounts:
            return await Operator(settings, transport, lease_transport, ground, accounts).run()
    finally:
        await transport.close()
        await lease_transport.close()


class _Version(msgspec.Struct, rename="camel"):
    major: str
    minor: str
    git_version: str


class Ground(msgspec.Struct, frozen=True):
    """What cluster this is: by its version, and by the UID of a namespace that every cluster has once."""

    version: str
    cluster: str


async def _look_around(client: Client, server: str) -> Ground:
    try:
        version = await client.read("/version", _Version)
    except Forbidden as error:
        raise CannotStart(
            f"{server} does not accept this login: {error.message}. Make a new token or certificate."
        ) from error
    except KubeError as error:
        raise CannotStart(
            f"The API server {server} does not answer: {error}. Is the cluster up, and does the kubeconfig name it?"
        ) from error
    if (int(version.major), int(version.minor.rstrip("+"))) < OLDEST_KUBERNETES:
        oldest = ".".join(map(str, OLDEST_KUBERNETES))
        raise CannotStart(f"This cluster runs Kubernetes {version.git_version}; Skysail needs {oldest} or newer.")
    return Ground(version.git_version, await _cluster_id(client))


async def _cluster_id(client: Client) -> str:
    try:
        return (await client.get(NAMESPACE, "", "kube-system", Object)).metadata.uid
    except Forbidden as error:
        raise _without_rights(error) from error
    except KubeError as error:
        raise CannotStart(f"The namespace kube-system cannot be read: {error}. Try again.") from error


def _without_rights(error: Forbidden) -> CannotStart:
    return CannotStart(
        f"The rights of Skysail are not installed ({error.message}): `kubectl apply -f config/rbac/role.yaml`."
    )


class _Ended(Exception):
    """No error: it ends the task group."""

    def __init__(self, code: int) -> None:
        self.code = code


class Operator:
    """All parts of the process, joined."""

    def __init__(
        self,
        settings: Settings,
        transport: Transport,
        lease_transport: Transport,
        ground: Ground,
        accounts: Mapping[str, Cloud],
    ) -> None:
        self._settings = settings
        self._rng = random.Random()  # noqa: S311 (jitter, no secret)
        # Never the same twice: two replicas that call themselves alike would both believe that they lead.
        self._identity = f"{settings.identity or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        self._client = Client(transport)
        # For those who write on their own, such as nodes: not any more when the lease is lost.
        self._acting = Client(FencedTransport(transport, self))
        self._metrics = Metrics()
        self._informers = Informers(self._client, namespaces=settings.namespaces, gate=Collector(), rng=self._rng)
        self._broadcaster = Broadcaster(self._client, instance=self._identity, now=clock.now)
        self._elector = Elector(
            Client(lease_transport),
            Key(settings.operator_namespace, lease.NAME),
            self._identity,
            now=clock.now,
            clock=clock.steady,
            rng=self._rng,
        )
        self._caches = Caches()
        self._performer = Performer(self._client, self._caches, self)
        self._loops: list[tuple[tuple[Cache[Any], ...], Loop[Any]]] = []
        for kind in ALL_KINDS:
            if kind not in (CLOUD_INSTANCE, TRAINING_JOB):
                self._await(kind)
        for kind in COMPATIBLE_KINDS:
            self._await(kind, only_ours=True)
        self._training = self._train()
        self._diary = Diary(self._acting, settings.operator_namespace, clock.now)
        self._bureau = self._open_bureau(accounts, ground.cluster)
        address = settings.node_address or settings.webhook_host or socket.gethostbyname(socket.gethostname())
        self._nodes_identity = Identity(self._client, clouds.certificate(settings, address), self._rng)
        self._nodes = self._make_nodes(accounts, ground, address)
        self._hooks = (*offload_admit.hooks(settings.nodes), *training_admit.HOOKS)
        self._keeper = Keeper(
            self._client,
            secret=Key(settings.operator_namespace, webhooks.SECRET_NAME),
            address=_address(settings),
            names=_webhook_names(settings),
            now=clock.now,
        )
        self._lag = 0.0
        self._differences: dict[str, float] = {}
        self._is_stopping = False
        self._register_metrics()

    async def run(self) -> int:
        """In good order to the end: no longer ready, no longer acting, lease given up, and only then out of reach."""
        async with self._servers():
            code = await self._work()
            self._is_stopping = True
            await self._training.records.flush()
            await self._elector.release()
            log.info("stopping", extra={"identity": self._identity})
            await asyncio.sleep(self._settings.drain_seconds)
        return code

    async def _work(self) -> int:
        codes: list[int] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._until_signal())
                tasks.create_task(self._informers.run())
                tasks.create_task(self._broadcaster.run())
                tasks.create_task(self._nodes_identity.run())
                tasks.create_task(self._lead(tasks))
                tasks.create_task(self._heartbeat())
                tasks.create_task(self._audit_for_ever())
                tasks.create_task(self._training.records.run())
                if self._has_certificate:
                    tasks.create_task(self._keeper.run(self._announce))
        except* _Ended as ended:
            codes += [end.code for end in ended.exceptions if isinstance(end, _Ended)]
        return max(codes)

    def check(self) -> None:
        """The fence: a process that was paused must look at the clock before it changes anything."""
        if not self._elector.leads:
            raise Fenced

    def record(self, resource: Resource, object_: Object, note: Note) -> None:
        self._broadcaster.tell(
            Event(resource=resource, object=object_, reason=note.reason, note=note.message, warning=note.warning)
        )

    def _await(self, kind: CustomKind, *, only_ours: bool = False) -> None:
        cache: Cache[Any] = Cache(kind.resource, kind.struct)
        self._control(Awaiting(kind, cache, clock.now), cache, wanted=_is_ours if only_ours else lambda _: True)

    def _train(self) -> Training:
        made = Training(
            self._client,
            self._settings,
            self,
            authority=lambda: self._keeper.authority,
            serves=self._informers.discovery.serves,
            rng=self._rng,
        )
        known = made.caches
        for cache in known.children:
            self._caches.add(cache)
            self._informers.add_built_in(cache)
        for gang in known.gangs:
            self._caches.add(gang)
            self._informers.add(gang)
        known.wake(self._control(made.controller, known.training, *known.children), self._informers.discovery)
        return made

    def _control(
        self,
        controller: Controller[Any],
        cache: Cache[Any],
        *others: Cache[Any],
        wanted: Callable[[Definition], bool] = lambda _: True,
    ) -> Loop[Any]:
        """`others` are caches that have to be full, too, before the first plan is made."""
        self._caches.add(cache)
        self._informers.add(cache, wanted)
        loop = Loop(
            controller,
            self._performer,
            self,
            rng=self._rng,
            meter=self._metrics,
            resync=self._settings.resync_seconds,
        )
        cache.subscribe(loop.changed)
        self._loops.append(((cache, *others), loop))
        return loop

    def _open_bureau(self, accounts: Mapping[str, Cloud], cluster: str) -> Bureau:
        claims: Cache[CloudInstance] = Cache(CLOUD_INSTANCE.resource, CloudInstance, INDEXES)
        rules = bureau.Rules(
            cluster=cluster,
            identity=self._identity,
            limits=Limits.of(self._settings),
            sweep_grace=self._settings.sweep_seconds,
        )
        around = Surroundings(clock.now, clock.steady, self._rng)
        owners = PodOwners(self._client, self._pod)
        claims.subscribe(self._diary.claim_changed)
        opened = Bureau(self._acting, claims, accounts, owners, rules=rules, around=around)
        self._performer.clouds = opened.calls
        opened.attach(self._control(opened.controller, claims).queue.add)
        return opened

    def _make_nodes(self, accounts: Mapping[str, Cloud], ground: Ground, address: str) -> list[CloudNode]:
        parts = clouds.Parts(
            client=self._client,
            acting=self._acting,
            broadcaster=self._broadcaster,
            identity=self._nodes_identity,
            logs=LogStore(Path(self._settings.data_folder) / "pod-logs"),
            rng=self._rng,
            address=address,
            cluster=ground.cluster,
            version=ground.version,
            is_simulated=bool(self._settings.simulated_clouds or self._settings.mock_clouds),
        )
        nodes = [
            CloudNode(name, row, self._bureau, parts)
            for name, row in self._settings.nodes.items()
            if row.provider in accounts
        ]
        for node in nodes:
            node.keeper.pods.subscribe(self._bureau.owner_changed)
        return nodes

    def _pod(self, uid: str) -> Object | None:
        return next((pod for node in self._nodes if (pod := node.keeper.known(uid))), None)

    @contextlib.asynccontextmanager
    async def _servers(self) -> AsyncIterator[None]:
        """Health on its ports and admission on its own, on every replica whether or not it leads."""
        async with contextlib.AsyncExitStack() as stack:
            pages = health.Health(
                self._metrics, unready=self._unready, outages=self._bureau.outages, audit=self._asked_audit
            )
            for port in self._settings.health_ports:
                await self._serve(stack, pages.application(), port)
            if self._has_certificate:
                await self._load_certificate()
            if self._training.is_reported_to:
                desk = self._training.application()
                await self._serve(stack, desk, self._settings.progress_port, ssl_context=self._keeper.tls)
            if self._settings.webhooks:
                hooks = admission.application(self._hooks)
                await self._serve(stack, hooks, self._settings.webhook_port, ssl_context=self._keeper.tls)
            yield

    async def _serve(self, stack: contextlib.AsyncExitStack, app: web.Application, port: int, **options: Any) -> None:
        try:
            runner = await health.serve(app, port, **options)
        except OSError as error:
            raise CannotStart(f"Port {port} cannot be opened: {error.strerror}. Choose another one.") from error
        stack.push_async_callback(runner.cleanup)

    async def _load_certificate(self) -> None:
        namespace = self._settings.operator_namespace
        try:
            await self._keeper.load()
        except Forbidden as error:
            raise _without_rights(error) from error
        except NotFound as error:
            raise CannotStart(
                f"The namespace {namespace} is missing ({error.message}): `kubectl create namespace {namespace}`."
            ) from error
        except KubeError as error:
            raise CannotStart(
                f"The webhook's Secret in {namespace} cannot be read or made: {error}. Try again."
            ) from error

    async def _until_signal(self) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await stop.wait()
        raise _Ended(0)

    async def _lead(self, tasks: asyncio.TaskGroup) -> None:
        """Campaign; act once elected; end the process when the lease is lost, for a clean start is the safest one."""
        campaign = tasks.create_task(self._elector.campaign(sole=self._settings.sole))
        vigils = [tasks.create_task(node.stand_by()) for node in self._nodes]
        await self._elector.elected.wait()
        for vigil in vigils:
            vigil.cancel()
        log.info("leading", extra={"identity": self._identity})
        for caches, loop in self._loops:
            tasks.create_task(_run_when_synced(caches, loop))
        tasks.create_task(self._pay(tasks))
        tasks.create_task(self._training.reader.run())
        for node in self._nodes:
            tasks.create_task(node.serve())
        if self._settings.webhooks:
            tasks.create_task(self._announce_soon())
        await campaign
        log.error("lease lost, ending so that a clean process takes over", extra={"identity": self._identity})
        raise _Ended(1)

    async def _pay(self, tasks: asyncio.TaskGroup) -> None:
        self._bureau.remember(await self._diary.read())
        tasks.create_task(self._diary.run())
        await self._bureau.run(self._performer.end)

    async def _announce_soon(self) -> None:
        try:
            await self._announce()
        except KubeError as error:
            log.warning("webhooks not announced, tried again in a minute", extra={"why": str(error)})

    async def _announce(self) -> None:
        if self._elector.leads and self._settings.webhooks:
            without = ("kube-system", self._settings.operator_namespace)
            await self._keeper.announce(self._hooks, admission.Scope(self._settings.namespaces, without))

    async def _heartbeat(self) -> None:
        clock_ = asyncio.get_running_loop().time
        while True:
            due = clock_() + _HEARTBEAT_SECONDS
            await asyncio.sleep(_HEARTBEAT_SECONDS)
            self._lag = max(0.0, clock_() - due)

    async def _audit_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.resync_seconds * self._rng.uniform(0.9, 1.1))
            try:
                await self._audit()
            except KubeError as error:
                log.info("caches not audited", extra={"why": str(error)})

    async def _asked_audit(self) -> list[Finding]:
        try:
            return await self._audit()
        except KubeError as error:
            raise health.AuditFailed(f"the API server does not answer: {error}") from error

    async def _audit(self) -> list[Finding]:
        findings = await self._informers.audit()
        for finding in findings:
            wrong = finding.missing + finding.stale + finding.extra
            self._differences[finding.kind] = self._differences.get(finding.kind, 0) + wrong
            if finding.differs:
                log.warning("cache differed and is filled anew", extra=msgspec.structs.asdict(finding))
        return findings

    @property
    def _has_certificate(self) -> bool:
        return self._settings.webhooks or self._training.is_reported_to

    def _unready(self) -> list[str]:
        if self._is_stopping:
            return ["nothing: this replica stops"]
        if not self._informers.discovery.cache.synced.is_set():
            return ["the list of kinds"]
        return self._informers.waiting_for

    def _register_metrics(self) -> None:
        read = self._metrics.read
        read(Metric.WORKQUEUE_DEPTH, "name", lambda: {loop.kind: len(loop.queue) for _, loop in self._loops})
        read(Metric.EFFECTS, "", lambda: {"": self._performer.effects})
        read(Metric.CACHED_OBJECTS, "kind", lambda: {c.resource.crd_name: len(c) for c in self._informers.caches})
        read(Metric.LISTS, "kind", lambda: self._watch_counts("lists"))
        read(Metric.WATCHES, "kind", lambda: self._watch_counts("watches"))
        read(Metric.AUDIT_DIFFERENCES, "kind", lambda: self._differences)
        read(Metric.LOOP_LAG, "", lambda: {"": self._lag})
        read(Metric.LEADER, "", lambda: {"": float(self._elector.leads)})
        read(Metric.CLOUD_UP, "cloud", self._clouds_up)
        Counts(self._training.caches, lambda: self._elector.leads).register(self._metrics)

    def _clouds_up(self) -> dict[str, float]:
        return {name: float(not outage) for name, outage in self._bureau.outages().items()}

    def _watch_counts(self, what: str) -> dict[str, float]:
        return {
            kind: sum(getattr(reflector, what) for reflector in reflectors)
            for kind, reflectors in self._informers.reflectors.items()
        }


async def _run_when_synced(caches: tuple[Cache[Any], ...], loop: Loop[Any]) -> None:
    """A plan made on half of the truth would be wrong; and a kind that cannot be listed must not stop the others."""
    for cache in caches:
        await cache.synced.wait()
    await loop.run()


def _is_ours(definition: Definition) -> bool:
    """Another project's kind is ours to work on only where its definition is our stand-in."""
    return (definition.metadata.labels or {}).get(Label.MANAGED_BY) == "skysail"


def _address(settings: Settings) -> admission.Address:
    if settings.webhook_host:
        return admission.Address(url=f"https://{settings.webhook_host}:{settings.webhook_port}")
    return admission.Address(service=(settings.operator_namespace, settings.webhook_service))


def _webhook_names(settings: Settings) -> tuple[str, ...]:
    """Of the admission server and of the one that pods report to: one certificate is for both."""
    return (f"{settings.webhook_service}.{settings.operator_namespace}.svc", training.host(settings))
