"""The operator's process: builds everything once, runs it, and shuts down in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from skysail.app import cloud_nodes, training
from skysail.app.accounts import Accounts, is_simulated, open_accounts
from skysail.app.cache_audit import Audits, read_token
from skysail.app.cloud_nodes import CloudNode
from skysail.app.cloud_services import CloudServicesModule
from skysail.app.cluster_check import ClusterInfo, StartupError, check_cluster
from skysail.app.endpoints import EndpointsModule
from skysail.app.modal_metrics import ModalMetrics
from skysail.app.offload import OffloadModule
from skysail.app.serving import ServingModule
from skysail.app.training import TrainingModule
from skysail.app.webhook_server import WebhookServer
from skysail.base import clock, health_server
from skysail.base.inherited_listeners import InheritedListeners
from skysail.base.metrics import Metrics
from skysail.base.names import EventReason, Label, Metric
from skysail.base.settings import Settings
from skysail.claims import manager, pod_events
from skysail.claims.dependencies import ClaimDependencies
from skysail.claims.limits.launch_history import LaunchHistory
from skysail.claims.limits.launch_limiter import LaunchLimits
from skysail.claims.limits.spending_metrics import SpendingMetrics
from skysail.claims.manager import ClaimManager
from skysail.claims.metrics import ClaimMetrics
from skysail.claims.reconciler import INDEXES
from skysail.claims.requirements.types import MODAL
from skysail.claims.tracking.offer_publisher import OfferPublisher
from skysail.claims.tracking.owners import OwnerLookup
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.cloud.account import CloudAccount, ReportsProgress
from skysail.cloud.images import ImageReader
from skysail.core.actions import Event
from skysail.core.controller import Controller, Reconciler
from skysail.core.executor import CacheRegistry, Executor
from skysail.core.fence import Fenced, FencedTransport
from skysail.kinds.modal_endpoints import metrics as endpoint_metrics
from skysail.kinds.modal_endpoints.reconciler import AccountFacts
from skysail.kinds.offload.reconciler import CloudPodReconciler
from skysail.kinds.serving import metrics as serving_metrics
from skysail.kinds.training.metrics import TrainingMetrics
from skysail.kube import leader_election
from skysail.kube.api.objects import IndexKey, Key, Object
from skysail.kube.api.resources import POD, Resource
from skysail.kube.cache.cache import Cache
from skysail.kube.cache.discovery import CrdInfo
from skysail.kube.cache.gc_tuning import GcTuner
from skysail.kube.cache.informers import Informers
from skysail.kube.client import kubeconfig
from skysail.kube.client.client import Client
from skysail.kube.client.http_transport import HttpTransport
from skysail.kube.client.transport import Transport
from skysail.kube.events import Broadcaster, ObjectEvent
from skysail.kube.leader_election import LeaderElector
from skysail.node.server.tls import ServingCertificate

_HEARTBEAT_SECONDS = 1.0
# The Lease has its own connections and its own timeout: if other writes hang, the renewal must not wait behind them.
_LEASE_SECONDS = 5.0
log = logging.getLogger(__name__)


async def run(settings: Settings) -> int:
    """Run the operator until SIGTERM or SIGINT (returns 0), or until the lease is lost (returns 1).

    Raises `StartupError` or `ConfigError`.
    """
    access = kubeconfig.find(Path(settings.kubeconfig) if settings.kubeconfig else None, settings.context)
    transport = HttpTransport(access)
    lease_transport = HttpTransport(access, connections=2, seconds=_LEASE_SECONDS)
    try:
        cluster = await check_cluster(Client(transport), access.server)
        async with open_accounts(settings, Client(transport), cluster.cluster) as accounts:
            return await Operator(settings, transport, lease_transport, cluster, accounts).run()
    finally:
        await transport.close()
        await lease_transport.close()


class _Stopped(Exception):
    """Raised to end the task group with an exit code; not an error."""

    def __init__(self, code: int) -> None:
        self.code = code


class Operator:
    """Builds and connects all parts of the process."""

    def __init__(
        self,
        settings: Settings,
        transport: Transport,
        lease_transport: Transport,
        cluster: ClusterInfo,
        accounts: Accounts,
    ) -> None:
        self._settings = settings
        self._accounts = accounts
        self._listeners = InheritedListeners.from_environment(os.environ)
        self._rng = random.Random()  # noqa: S311 (jitter, no secret)
        # Unique for each process: two replicas with the same identity would both believe that they lead.
        self._identity = f"{settings.identity or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        self._client = Client(transport)
        # For writers outside the controllers, such as nodes: every write fails once the lease is lost.
        self._fenced_client = Client(FencedTransport(transport, self))
        self._metrics = Metrics()
        self._informers = Informers(
            self._client, namespaces=settings.namespaces, list_observer=GcTuner(), rng=self._rng
        )
        self._broadcaster = Broadcaster(self._client, instance=self._identity, now=clock.now)
        self._elector = LeaderElector(
            Client(lease_transport),
            Key(settings.operator_namespace, leader_election.NAME),
            self._identity,
            now=clock.now,
            clock=clock.boottime,
            rng=self._rng,
        )
        self._webhook_server = WebhookServer(self._client, settings, lambda: self._elector.is_leader)
        self._audits = Audits(self._informers, settings.resync_seconds, self._rng)
        self._cache_registry = CacheRegistry()
        self._executor = Executor(self._client, self._cache_registry, self)
        self._controllers: list[tuple[tuple[Cache[Any], ...], Controller[Any]]] = []
        self._training_module = self._add_training()
        self._serving_module = self._add_serving()
        self._endpoints_module = self._add_endpoints(accounts.by_name)
        self._launch_history = LaunchHistory(self._fenced_client, settings.operator_namespace, clock.now)
        self._claims: Cache[CloudInstance] = Cache(CLOUD_INSTANCE.resource, CloudInstance, INDEXES)
        self._claim_manager = self._create_claim_manager(accounts.by_name, cluster.cluster)
        self._training_module.connect(self._claim_manager.calls.volumes, accounts.by_name)
        self._offer_publisher = OfferPublisher(
            self._fenced_client, settings.operator_namespace, self._claim_manager.offers
        )
        self._offload_module = self._add_offload()
        self._cloud_services = self._add_cloud_services()
        address = settings.node_address or settings.webhook_host or socket.gethostbyname(socket.gethostname())
        self._nodes_identity = ServingCertificate(self._client, cloud_nodes.certificate(settings, address), self._rng)
        self._images = ImageReader(settings.allowed_registries, registry_mirrors=settings.registry_mirrors)
        self._nodes = self._make_nodes(accounts.by_name, cluster, address)
        self._pod_performers = self._add_pod_annotations()
        self._claims.subscribe(self._claim_changed)
        for account in accounts.by_name.values():
            if isinstance(account, ReportsProgress):
                account.on_progress(self._record_progress)
        self._modal_metrics = ModalMetrics(
            self._claims, accounts.by_name.get(MODAL), leads=lambda: self._elector.is_leader, now=clock.now
        )
        self._lag = 0.0
        self._is_stopping = False
        self._register_metrics()

    async def run(self) -> int:
        """Run all parts, then shut down in order: not ready, no more writes, lease released, servers closed last."""
        async with self._servers():
            code = await self._run_tasks()
            self._is_stopping = True
            await self._training_module.status_writer.flush()
            await self._elector.release()
            log.info("stopping", extra={"identity": self._identity})
            await asyncio.sleep(self._settings.drain_seconds)
        await self._images.close()
        return code

    async def _run_tasks(self) -> int:
        codes: list[int] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._until_signal())
                tasks.create_task(self._informers.run())
                tasks.create_task(self._broadcaster.run())
                tasks.create_task(self._nodes_identity.run())
                tasks.create_task(self._lead(tasks))
                tasks.create_task(self._heartbeat())
                tasks.create_task(self._audits.run())
                tasks.create_task(self._follow_credentials())
                tasks.create_task(self._training_module.status_writer.run())
                if self._webhook_server.is_enabled:
                    tasks.create_task(self._webhook_server.run())
        except* _Stopped as stopped:
            codes += [stop.code for stop in stopped.exceptions if isinstance(stop, _Stopped)]
        return max(codes)

    def check(self) -> None:
        """Raise `Fenced` unless this process leads. Called before each write: the process may have been paused."""
        if not self._elector.is_leader:
            raise Fenced

    def record(self, resource: Resource, object_: Object, event: Event) -> None:
        self._broadcaster.record(
            ObjectEvent(
                resource=resource, object=object_, reason=event.reason, note=event.message, warning=event.warning
            )
        )

    def _add_training(self) -> TrainingModule:
        training_module = TrainingModule(
            self._client,
            self._settings,
            self,
            authority=self._webhook_server.authority,
            serves=self._informers.discovery.serves,
            rng=self._rng,
        )
        training_module.reconciler.claims = lambda uid: self._claims.by("pod", IndexKey("", uid))
        caches = training_module.caches
        for cache in caches.children:
            self._cache_registry.add(cache)
            self._informers.add_built_in(cache)
        for gang in caches.gangs:
            self._cache_registry.add(gang)
            self._informers.add(gang)
        controller = self._add_controller(training_module.reconciler, caches.training, *caches.children)
        training_module.enqueue = controller.queue.add
        caches.connect(controller, self._informers.discovery)
        self._add_translated(training_module)
        return training_module

    def _add_translated(self, training_module: TrainingModule) -> None:
        """Add the kinds that the training engine runs. TrainJobs only in a cluster without Kubeflow Trainer."""
        caches = training_module.caches
        if (modal := self._accounts.by_name.get(MODAL)) is not None:
            training_module.modal_jobs.gang_limits = modal.features.gang_limits
        for reconciler, cache, desired in (
            (training_module.modal_jobs, training_module.modal_job_cache, lambda _: True),
            (training_module.train_jobs, training_module.train_job_cache, _is_ours),
        ):
            reconciler.claims = training_module.reconciler.claims
            controller = self._add_controller(reconciler, cache, caches.training, caches.pods, desired=desired)
            controller.watch_owned(caches.training, cache)

    def _add_serving(self) -> ServingModule:
        serving_module = ServingModule(self._client, self._settings, self)
        for child in serving_module.caches.children:
            self._informers.add_built_in(child)
        for reconciler in serving_module.reconcilers:
            models = serving_module.caches.models[reconciler.kind]
            controller = self._add_controller(
                reconciler, models, *serving_module.caches.children, executor=serving_module.executor
            )
            serving_module.caches.connect(controller, models)
        return serving_module

    def _add_endpoints(self, accounts: Mapping[str, CloudAccount]) -> EndpointsModule:
        account = accounts.get(MODAL)
        facts = AccountFacts(
            is_simulated=account is not None and is_simulated(account),
            has_apps=account is not None and account.features.web_apps,
        )
        module = EndpointsModule(self._client, self, account=facts)
        for child in module.caches.children:
            self._informers.add_built_in(child)
        for reconciler in module.reconcilers:
            owners = module.caches.owners[reconciler.kind]
            controller = self._add_controller(reconciler, owners, *module.caches.children, executor=module.executor)
            module.caches.connect(controller, owners)
        return module

    def _add_controller(
        self,
        reconciler: Reconciler[Any],
        cache: Cache[Any],
        *others: Cache[Any],
        desired: Callable[[CrdInfo], bool] = lambda _: True,
        executor: Executor | None = None,
    ) -> Controller[Any]:
        """Add a controller for the objects in `cache`. The first plan waits until `others` are synced as well."""
        self._cache_registry.add(cache)
        self._informers.add(cache, desired)
        controller = self._control(reconciler, executor or self._executor, cache, *others)
        cache.subscribe(controller.enqueue_object)
        return controller

    def _control(self, reconciler: Reconciler[Any], executor: Executor, *caches: Cache[Any]) -> Controller[Any]:
        """Return a controller that starts when these caches are full. Subscribe it to what should enqueue its keys."""
        controller = Controller(
            reconciler,
            executor,
            self,
            rng=self._rng,
            metrics=self._metrics,
            resync=self._settings.resync_seconds,
        )
        self._controllers.append((caches, controller))
        return controller

    def _create_claim_manager(self, accounts: Mapping[str, CloudAccount], cluster: str) -> ClaimManager:
        claims = self._claims
        claim_settings = manager.ClaimSettings(
            cluster=cluster,
            identity=self._identity,
            providers=tuple({node.provider for node in self._settings.nodes.values()}),
            limits=LaunchLimits.of(self._settings),
            sweep_grace=self._settings.orphan_grace_seconds,
            max_gpu_price=self._settings.max_gpu_price,
        )
        deps = ClaimDependencies(clock.now, clock.boottime, self._rng)
        owners = OwnerLookup(self._client, self._pod)
        claims.subscribe(self._launch_history.claim_changed)
        claim_manager = ClaimManager(
            self._fenced_client, claims, accounts, owners, claim_settings=claim_settings, deps=deps
        )
        self._executor.clouds = claim_manager.calls
        claim_manager.on_change(self._add_controller(claim_manager.controller, claims).queue.add)
        limits = claim_manager.limits
        self._cache_registry.add(limits.namespaces)
        self._informers.add_built_in(limits.namespaces)
        accounts_controller = self._add_controller(claim_manager.account_reconciler, limits.accounts, claims)
        claim_manager.enqueue_accounts(accounts_controller.queue.add)
        policies_controller = self._add_controller(claim_manager.policy_reconciler, limits.policies)
        claim_manager.enqueue_policies(policies_controller.queue.add)
        return claim_manager

    def _add_offload(self) -> OffloadModule:
        """Add placement. An operator without cloud nodes places nothing, so it watches no pods for that."""
        module = OffloadModule(
            self._client,
            self._settings,
            self,
            manager=self._claim_manager,
            claims=self._claims,
            deps=ClaimDependencies(clock.now, clock.boottime, self._rng),
        )
        if not self._settings.nodes:
            return module
        self._webhook_server.add(module.hooks)
        for cache in module.new_caches:
            self._informers.add_built_in(cache)
        module.caches.jobs.subscribe(self._claim_manager.on_owner_changed)
        module.pods.connect(self._control(module.pods, module.executor, *module.needed_caches))
        module.jobs.connect(self._control(module.jobs, module.executor, self._claims, module.caches.jobs))
        return module

    def _add_cloud_services(self) -> CloudServicesModule:
        """Add Services of pods at clouds. An operator without cloud nodes has no such pods, so it watches nothing."""
        module = CloudServicesModule(
            (self._client, self._fenced_client),
            self._settings,
            self,
            manager=self._claim_manager,
            claims=self._claims,
            deps=ClaimDependencies(clock.now, clock.boottime, self._rng),
        )
        if not self._settings.nodes:
            return module
        for cache in module.new_caches:
            self._informers.add_built_in(cache)
        controller = self._control(module.services, module.executor, self._claims, *module.new_caches)
        module.services.connect(controller)
        module.tunnels.connect(self._control(module.tunnels, module.executor, *module.new_caches))
        return module

    def _make_nodes(self, accounts: Mapping[str, CloudAccount], cluster: ClusterInfo, address: str) -> list[CloudNode]:
        deps = cloud_nodes.NodeDependencies(
            client=self._client,
            fenced_client=self._fenced_client,
            broadcaster=self._broadcaster,
            identity=self._nodes_identity,
            logs=Path(self._settings.data_dir) / "pod-logs",
            listeners=self._listeners,
            rng=self._rng,
            images=self._images,
            address=address,
            cluster=cluster.cluster,
            version=cluster.version,
            default_gpu_types={MODAL: self._settings.modal_default_gpu_type},
        )
        nodes = [
            CloudNode(name, node_settings, self._claim_manager, deps, self._offload_module)
            for name, node_settings in self._settings.nodes.items()
            if node_settings.provider in accounts
        ]
        for node in nodes:
            node.kubelet.pods.subscribe(self._claim_manager.on_owner_changed)
        return nodes

    def _add_pod_annotations(self) -> list[Executor]:
        """Add a controller for the annotations of pods at each cloud."""
        executors = []
        for node in self._nodes:
            pods, is_at_modal = node.kubelet.pods, self._settings.nodes[node.name].provider == MODAL
            executors.append(Executor(self._client, CacheRegistry(pods), self))
            reconciler = CloudPodReconciler(pods, self._claims, is_at_modal=is_at_modal)
            reconciler.connect(self._control(reconciler, executors[-1], self._claims))
        return executors

    def _record_progress(self, claim_name: str, step: str, message: str) -> None:
        """Record an event on the pods whose launch takes a step."""
        claim = self._claims.get(Key("", claim_name))
        reason = EventReason.IMAGE_PREPARING if step == "image" else EventReason.WAITING_FOR_CAPACITY
        for pod in self._pods_of(claim) if claim else ():
            self.record(POD, pod, Event(reason, message))

    def _claim_changed(self, old: CloudInstance | None, new: CloudInstance | None) -> None:
        """Record events on the pods of a claim. Only the leader does, because every replica sees the change."""
        if new is None or not self._elector.is_leader:
            return
        events = pod_events.events_of(old, new)
        for pod in self._pods_of(new) if events else ():
            for event in events:
                self.record(POD, pod, event)

    def _pods_of(self, claim: CloudInstance) -> Iterator[Object]:
        """Yield the pods of a claim that are on a node of a cloud: each rank of a gang."""
        for uid in claim.spec.pod_uids:
            if (pod := self._pod(uid)) is not None:
                yield pod

    def _pod(self, uid: str) -> Object | None:
        return next((pod for node in self._nodes if (pod := node.kubelet.cached_pod(uid))), None)

    @contextlib.asynccontextmanager
    async def _servers(self) -> AsyncIterator[None]:
        """Serve health, progress and admission, on every replica, leader or not."""
        async with contextlib.AsyncExitStack() as stack:
            pages = health_server.HealthServer(
                self._metrics,
                unready=self._unready,
                outages=self._claim_manager.outages,
                audit=self._audits.audit_now,
                audit_token=read_token(self._settings.audit_token),
                with_metrics=self._settings.metrics,
            )
            for port in self._settings.health_ports:
                await self._serve(stack, pages.application(), port, host=self._settings.health_host)
            if self._webhook_server.is_enabled:
                await self._webhook_server.load_certificate()
            if training.is_progress_enabled(self._settings):
                progress_app = self._training_module.application()
                await self._serve(
                    stack, progress_app, self._settings.progress_port, ssl_context=self._webhook_server.tls
                )
            if self._settings.webhooks:
                hooks = self._webhook_server.application()
                await self._serve(stack, hooks, self._settings.webhook_port, ssl_context=self._webhook_server.tls)
            yield

    async def _serve(self, stack: contextlib.AsyncExitStack, app: web.Application, port: int, **options: Any) -> None:
        try:
            runner = await health_server.serve(app, port, listener=self._listeners.take(port), **options)
        except OSError as error:
            raise StartupError(f"Port {port} cannot be opened: {error.strerror}. Choose another one.") from error
        stack.push_async_callback(runner.cleanup)

    async def _follow_credentials(self) -> None:
        await self._accounts.run()
        raise _Stopped(0)

    async def _until_signal(self) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await stop.wait()
        raise _Stopped(0)

    async def _lead(self, tasks: asyncio.TaskGroup) -> None:
        """Campaign for the lease, and start all that writes once elected.

        Ends the process when the lease is lost: a restart drops every piece of state that may be outdated.
        """
        campaign = tasks.create_task(self._elector.run(force=self._settings.single_replica))
        standbys = [tasks.create_task(node.stand_by()) for node in self._nodes]
        await self._elector.elected.wait()
        for standby in standbys:
            standby.cancel()
        log.info("leading", extra={"identity": self._identity})
        for caches, controller in self._controllers:
            tasks.create_task(_run_when_synced(caches, controller))
        tasks.create_task(self._run_claims(tasks))
        tasks.create_task(self._cloud_services.ports.run())
        tasks.create_task(self._training_module.log_watcher.run())
        tasks.create_task(self._modal_metrics.run())
        for node in self._nodes:
            tasks.create_task(node.serve())
        if self._settings.webhooks:
            tasks.create_task(self._webhook_server.register())
        await campaign
        log.error("lease lost, ending so that a clean process takes over", extra={"identity": self._identity})
        raise _Stopped(1)

    async def _run_claims(self, tasks: asyncio.TaskGroup) -> None:
        self._claim_manager.restore_launches(await self._launch_history.read())
        tasks.create_task(self._launch_history.run())
        tasks.create_task(self._offer_publisher.run())
        await self._claim_manager.run(self._executor.terminate_instance)

    async def _heartbeat(self) -> None:
        clock_ = asyncio.get_running_loop().time
        while True:
            due = clock_() + _HEARTBEAT_SECONDS
            await asyncio.sleep(_HEARTBEAT_SECONDS)
            self._lag = max(0.0, clock_() - due)

    def _unready(self) -> list[str]:
        if self._is_stopping:
            return ["nothing: this replica is stopping"]
        if not self._informers.discovery.cache.synced.is_set():
            return ["the list of kinds"]
        return self._informers.waiting_for

    def _register_metrics(self) -> None:
        read = self._metrics.add_callback
        read(
            Metric.WORKQUEUE_DEPTH,
            "name",
            lambda: {controller.kind: len(controller.queue) for _, controller in self._controllers},
        )
        read(Metric.EFFECTS, "", self._count_effects)
        read(Metric.CACHED_OBJECTS, "kind", self._cached)
        read(Metric.LISTS, "kind", lambda: self._watch_counts("lists"))
        read(Metric.WATCHES, "kind", lambda: self._watch_counts("watches"))
        read(Metric.AUDIT_DIFFERENCES, "kind", lambda: self._audits.differences)
        read(Metric.LOOP_LAG, "", lambda: {"": self._lag})
        read(Metric.LEADER, "", lambda: {"": float(self._elector.is_leader)})
        read(Metric.CLOUD_UP, "cloud", self._clouds_up)
        self._modal_metrics.register(self._metrics)
        ClaimMetrics(self._claims, self._claim_manager.orphan_collectors, lambda: self._elector.is_leader).register(
            self._metrics
        )
        SpendingMetrics(self._claim_manager.limits, lambda: self._elector.is_leader, clock.now).register(self._metrics)
        TrainingMetrics(self._training_module.caches, lambda: self._elector.is_leader).register(self._metrics)
        serving_metrics.Counts(self._serving_module.caches, lambda: self._elector.is_leader).register(self._metrics)
        endpoint_metrics.Counts(self._endpoints_module.caches, lambda: self._elector.is_leader).register(self._metrics)

    def _count_effects(self) -> dict[str, float]:
        executors = (
            self._executor,
            self._serving_module.executor,
            self._offload_module.executor,
            *self._pod_performers,
            self._cloud_services.executor,
            self._endpoints_module.executor,
        )
        return {"": sum(executor.effects for executor in executors)}

    def _cached(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for cache in self._informers.caches:
            found[cache.resource.crd_name] += len(cache)
        return found

    def _clouds_up(self) -> dict[str, float]:
        return {name: float(not outage) for name, outage in self._claim_manager.outages().items()}

    def _watch_counts(self, what: str) -> dict[str, float]:
        return {
            kind: sum(getattr(reflector, what) for reflector in reflectors)
            for kind, reflectors in self._informers.reflectors.items()
        }


async def _run_when_synced(caches: tuple[Cache[Any], ...], controller: Controller[Any]) -> None:
    """Run a controller once its caches are synced: a plan over incomplete caches would be wrong.

    Each controller waits for its own caches only, so a kind that cannot be listed does not stop the others.
    """
    for cache in caches:
        await cache.synced.wait()
    await controller.run()


def _is_ours(crd_info: CrdInfo) -> bool:
    """Return whether this CRD is our own stand-in for another project's kind: only then do we reconcile the kind."""
    return (crd_info.metadata.labels or {}).get(Label.MANAGED_BY) == "skysail"
