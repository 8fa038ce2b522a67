"""TrainingJobs in the operator's process: their controller, and those who hear what their pods report."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta

from aiohttp import web

from skysail.base import clock
from skysail.base.settings import Settings
from skysail.core.controller import Recorder
from skysail.kinds.training import reconciler
from skysail.kinds.training.children.progress_endpoint import Reporting, Terms
from skysail.kinds.training.progress.auth import Reporters
from skysail.kinds.training.progress.log_watcher import Reader
from skysail.kinds.training.progress.server import Desk, Rate
from skysail.kinds.training.progress.status_writer import Records
from skysail.kinds.training.scheduling.observer import Serves
from skysail.kube.client.client import Client


class Training:
    """`authority` tells who vouches for our servers; it is asked when pods are made, which is after it is known."""

    def __init__(
        self,
        client: Client,
        settings: Settings,
        recorder: Recorder,
        *,
        authority: Callable[[], bytes],
        serves: Serves,
        rng: random.Random,
    ) -> None:
        self._settings = settings
        self._authority = authority
        self.caches = reconciler.Caches.make()
        self.records = Records(client, self.caches.training, now=clock.now, rng=rng)
        self.reader = Reader(client, self.caches, self.records, recorder)
        self.controller = reconciler.Training(
            client, self.caches, clock.now, terms=self._terms, serves=serves, is_settled=self.reader.is_settled
        )
        self._reporters = Reporters(client, self.caches, clock.steady)

    def application(self) -> web.Application:
        """What pods report to."""
        desk = Desk(self._reporters, self.records, self.caches, rate=Rate(clock.steady), now=clock.now)
        return desk.application()

    def _terms(self) -> Terms:
        stall = timedelta(seconds=self._settings.stall_seconds)
        if not is_reported_to(self._settings):
            return Terms(stall=stall)
        server = f"https://{host(self._settings)}:{self._settings.progress_port}"
        return Terms(Reporting(server, self._authority().decode()), stall)


def is_reported_to(settings: Settings) -> bool:
    return settings.progress_port != 0


def host(settings: Settings) -> str:
    """The name by which pods reach the server, and which its certificate has."""
    return settings.webhook_host or f"{settings.progress_service}.{settings.operator_namespace}.svc"
