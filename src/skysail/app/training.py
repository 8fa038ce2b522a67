"""TrainingJobs in the operator's process: the reconciler, the server for progress reports, and the log watcher."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib import resources

from aiohttp import web

from skysail.base import clock
from skysail.base.settings import Settings
from skysail.claims.tracking.volume_deletions import VolumeDeletions
from skysail.cloud.account import CloudAccount
from skysail.core.controller import EventRecorder
from skysail.kinds.training.api.modal_job import MODAL_JOB, ModalJob
from skysail.kinds.training.api.train_job import TRAIN_JOB, TrainJob
from skysail.kinds.training.caches import Caches
from skysail.kinds.training.children.progress_endpoint import ProgressEndpoint, TrainingConfig
from skysail.kinds.training.progress.auth import ReporterAuthenticator
from skysail.kinds.training.progress.log_watcher import CheckpointLogWatcher
from skysail.kinds.training.progress.server import ProgressServer, ReportRateLimiter
from skysail.kinds.training.progress.status_writer import StatusWriter
from skysail.kinds.training.reconciler import TrainingJobReconciler
from skysail.kinds.training.scheduling.observer import IsServed
from skysail.kinds.training.translated_reconciler import ModalJobReconciler, TrainJobReconciler
from skysail.kube.api.objects import Key
from skysail.kube.cache.cache import Cache, index_by_uid
from skysail.kube.client.client import Client
from skysail.runtimes import modal_pytorch


class TrainingModule:
    """Builds the parts for TrainingJobs.

    `authority` returns the CA of our servers. It is called when pods are created, because the CA is loaded after this
    object is built.
    """

    def __init__(
        self,
        client: Client,
        settings: Settings,
        recorder: EventRecorder,
        *,
        authority: Callable[[], bytes],
        serves: IsServed,
        rng: random.Random,
    ) -> None:
        self._settings = settings
        self._authority = authority
        self._cloud_nodes = {name: node.provider for name, node in settings.nodes.items()}
        self._deletable_volumes: frozenset[str] = frozenset()
        self._missing_accounts: frozenset[str] = frozenset()
        self.enqueue: Callable[[Key], None] = lambda _: None
        self.caches = Caches.create()
        self.status_writer = StatusWriter(client, self.caches.training, now=clock.now, rng=rng)
        self.log_watcher = CheckpointLogWatcher(client, self.caches, self.status_writer, recorder, self._cloud_nodes)
        self.reconciler = TrainingJobReconciler(
            client, self.caches, clock.now, config=self._config, serves=serves, is_settled=self.log_watcher.is_drained
        )
        self.modal_job_cache: Cache[ModalJob] = Cache(MODAL_JOB.resource, ModalJob, {"uid": index_by_uid})
        self.train_job_cache: Cache[TrainJob] = Cache(TRAIN_JOB.resource, TrainJob, {"uid": index_by_uid})
        self.modal_jobs = ModalJobReconciler(self.modal_job_cache, self.caches, clock.now)
        self.train_jobs = TrainJobReconciler(self.train_job_cache, self.caches, clock.now)
        self.train_jobs.script = resources.files(modal_pytorch).joinpath("train.py").read_text()
        self._authenticator = ReporterAuthenticator(client, self.caches, clock.boottime)

    def connect(self, volumes: VolumeDeletions, accounts: Mapping[str, CloudAccount]) -> None:
        """Use the deletions of volumes at these clouds. Call after `enqueue` is set."""
        volumes.on_finished = self.enqueue
        self.reconciler.volume_deletions = volumes.results
        self._deletable_volumes = frozenset(
            name for name, account in accounts.items() if account.features.volume_deletion
        )
        self._missing_accounts = frozenset(self._cloud_nodes.values()) - accounts.keys()

    def application(self) -> web.Application:
        """Return the server to which pods report progress."""
        progress_server = ProgressServer(
            self._authenticator,
            self.status_writer,
            self.caches,
            report_rate_limiter=ReportRateLimiter(clock.boottime),
            now=clock.now,
        )
        return progress_server.application()

    def _config(self) -> TrainingConfig:
        stall = timedelta(seconds=self._settings.stall_timeout_seconds)
        reporting = None
        if is_progress_enabled(self._settings):
            server = f"https://{host(self._settings)}:{self._settings.progress_port}"
            reporting = ProgressEndpoint(server, self._authority().decode())
        return TrainingConfig(
            reporting, stall, self._cloud_nodes, self._deletable_volumes, missing_accounts=self._missing_accounts
        )


def is_progress_enabled(settings: Settings) -> bool:
    return settings.progress_port != 0


def host(settings: Settings) -> str:
    """Return the host name by which pods reach the progress server. The server's certificate contains it."""
    return settings.webhook_host or f"{settings.progress_service}.{settings.operator_namespace}.svc"
