"""The bridge's process: watches claims, and forwards connections on their ports to instances at clouds.

Of the cluster it reads only claims, and the credentials of clouds, which it needs as the operator does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skysail.app.accounts import Accounts, open_accounts
from skysail.app.cluster_check import check_cluster
from skysail.base import health_server, open_files
from skysail.base.health_server import AuditFailed
from skysail.base.metrics import Metrics
from skysail.base.settings import Settings
from skysail.bridge import routes
from skysail.bridge.http_proxy import HttpProxy
from skysail.bridge.listeners import Listeners
from skysail.bridge.proxies import Proxies
from skysail.bridge.raw_proxy import RawProxy
from skysail.bridge.traffic import Traffic
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.cloud.account import CloudAccount
from skysail.cloud.errors import ProviderError
from skysail.cloud.http_address import HttpAccount
from skysail.kube.api.rbac import PolicyRule, watch_rule
from skysail.kube.api.resources import NAMESPACE, SECRET
from skysail.kube.cache.cache import Cache
from skysail.kube.cache.reflector import Reflector
from skysail.kube.client import kubeconfig
from skysail.kube.client.client import Client
from skysail.kube.client.http_transport import HttpTransport

# Name of the ServiceAccount, the ClusterRole and its binding.
NAME = "skysail-bridge"
POLICY_RULES = (
    watch_rule(CLOUD_INSTANCE.resource),
    # Its UID marks the instances of this cluster.
    PolicyRule(NAMESPACE, ("get",), names=("kube-system",)),
)
# The Secrets with the credentials of clouds.
_SECRETS = (Settings().modal_token_secret, Settings().runpod_key_secret)
NAMESPACE_POLICY_RULES = (PolicyRule(SECRET, ("get",), names=_SECRETS),)
# A port that could not be opened is tried again.
_RETRY_SECONDS = 2.0
_MAX_RETRY_SECONDS = 60.0
# Open requests may take this long after SIGTERM. With `drain_seconds` it is less than the pod's grace period.
_FINISH_SECONDS = 20.0

log = logging.getLogger(__name__)


async def run(settings: Settings) -> int:
    """Run the bridge until SIGTERM or SIGINT. Raises `StartupError` or `ConfigError`."""
    # Callers share a part of the limit. Each connection needs another one to the cloud.
    open_files.raise_limit()
    access = kubeconfig.find(Path(settings.kubeconfig) if settings.kubeconfig else None, settings.context)
    transport = HttpTransport(access)
    try:
        client = Client(transport)
        cluster = await check_cluster(client, access.server)
        async with open_accounts(settings, client, cluster.cluster) as accounts:
            await Bridge(settings, client, accounts).run()
    finally:
        await transport.close()
    return 0


def can_reach(account: CloudAccount) -> bool:
    """Return whether the bridge can connect to instances of the account."""
    return account.features.port_forward or isinstance(account, HttpAccount)


async def until_named(account: CloudAccount, changed: asyncio.Event) -> None:
    """Call the cloud until the name of the account is known, then set `changed`: only then are its routes known."""
    delay = _RETRY_SECONDS
    while not account.account:
        try:
            await account.offers()
        except ProviderError as error:
            log.warning("account of cloud unknown, retried", extra={"cloud": account.name, "why": str(error)})
        if not account.account:
            await asyncio.sleep(delay)
            delay = min(2 * delay, _MAX_RETRY_SECONDS)
    changed.set()


class _StopRequested(Exception):
    """Raised to end the task group; not an error."""


class _RestartRequested(Exception):
    """Raised to end the process at once. Every replica restarts then, so none takes over connections."""


class Bridge:
    """Builds and connects all parts of the process."""

    def __init__(self, settings: Settings, client: Client, accounts: Accounts) -> None:
        self._settings = settings
        self._accounts = accounts
        self._claims: Cache[CloudInstance] = Cache(CLOUD_INSTANCE.resource, CloudInstance)
        rng = random.Random()  # noqa: S311 (jitter, no secret)
        self._reflector = Reflector(client, self._claims, rng=rng)
        self._metrics = Metrics()
        self._traffic = Traffic(
            self._metrics,
            max_connections=settings.bridge_max_connections,
            max_connections_per_route=settings.bridge_max_connections_per_route,
        )
        self._changed = asyncio.Event()
        self._is_serving = False
        self._claims.subscribe(lambda _old, _new: self._changed.set())

    async def run(self) -> None:
        proxies = {
            name: self._proxies(account) for name, account in self._accounts.by_name.items() if can_reach(account)
        }
        listeners = Listeners(self._settings.bridge_host or "", proxies)
        pages = health_server.HealthServer(
            self._metrics, unready=self._unready, outages=dict[str, str], audit=_refuse_audit
        )
        health = await health_server.serve(
            pages.application(), self._settings.bridge_health_port, host=self._settings.bridge_host
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._until_signal())
                tasks.create_task(self._reflector.run())
                tasks.create_task(self._until_first_credentials())
                tasks.create_task(self._follow(listeners, proxies))
                for account in self._accounts.by_name.values():
                    tasks.create_task(until_named(account, self._changed))
        except* _StopRequested:
            # Serve on for a while: it takes some time until no Service sends new connections here.
            await asyncio.sleep(self._settings.drain_seconds)
            await listeners.close(finish_seconds=_FINISH_SECONDS)
        except* _RestartRequested:
            log.info("restarting with the first credentials of a cloud")
        finally:
            await listeners.close()
            for cloud in proxies.values():
                if cloud.http is not None:
                    await cloud.http.close()
            await health.cleanup()

    def _proxies(self, account: CloudAccount) -> Proxies:
        """Return how instances of the account are reached."""
        idle, max_bytes = self._settings.bridge_idle_seconds, self._settings.bridge_max_request_bytes
        raw = RawProxy(account, self._traffic, idle_seconds=idle) if account.features.port_forward else None
        http = (
            HttpProxy(account, self._traffic, idle_seconds=idle, max_request_bytes=max_bytes)
            if isinstance(account, HttpAccount)
            else None
        )
        return Proxies(raw, http)

    async def _follow(self, listeners: Listeners, proxies: Mapping[str, Proxies]) -> None:
        """Serve the routes of the claims for ever. Concurrent changes are batched."""
        await self._claims.synced.wait()
        while True:
            self._changed.clear()
            table = routes.build(self._claims.all())
            if table.conflicts:
                log.error("bridge ports closed, two claims have them", extra={"ports": sorted(table.conflicts)})
            owned = {port: route for port, route in table.routes.items() if self._is_ours(route)}
            await listeners.sync(owned, table.conflicts)
            self._traffic.keep(owned)
            for cloud in proxies.values():
                if cloud.http is not None:
                    cloud.http.forget({route.instance for route in owned.values()})
            self._is_serving = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_SECONDS if listeners.failed else None):
                    await self._changed.wait()

    def _is_ours(self, route: routes.Route) -> bool:
        """Return whether the instance belongs to the account that this process has at its cloud."""
        account = self._accounts.by_name.get(route.provider)
        return account is not None and account.account == route.account

    def _unready(self) -> list[str]:
        return [] if self._is_serving else ["the list of claims"]

    async def _until_first_credentials(self) -> None:
        """End the process when a cloud gets its first credentials: a new one opens the account."""
        await self._accounts.run()
        self._is_serving = False
        raise _RestartRequested

    async def _until_signal(self) -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await stop.wait()
        self._is_serving = False
        log.info("stopping")
        raise _StopRequested


async def _refuse_audit() -> list[Any]:
    raise AuditFailed("the bridge has no audit")
