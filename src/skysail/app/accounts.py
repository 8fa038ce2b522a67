"""Accounts at clouds that the operator's process may call: pretended, real or simulated, decided for each cloud.

`mock_clouds` pretends all clouds. Otherwise a cloud with credentials is real, and a cloud without them is simulated if
`simulated_cloud_url` is set. Else there is no account, no node, and pods that ask for the cloud stay Pending.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from skysail.app.credentials import (
    CredentialFields,
    CredentialReader,
    Credentials,
    CredentialsUnreadable,
    CredentialWatch,
)
from skysail.app.simulated_clouds import open_account
from skysail.base.errors import UserError
from skysail.base.names import ACCOUNT_MOCK, ACCOUNT_REAL, ACCOUNT_SIMULATED, ACCOUNT_STAND_IN
from skysail.base.settings import Settings
from skysail.cloud.account import CloudAccount
from skysail.cloud.runpod.account import RunPodAccount
from skysail.cloud.runpod.client import Endpoint
from skysail.cloud.simulated.http.client import RemoteAccount
from skysail.cloud.simulated.vendors import VENDORS
from skysail.kube.client.client import Client
from skysail.runtimes import handler_server

log = logging.getLogger(__name__)


class AccountError(UserError):
    """A setting about clouds is missing or invalid; the message names it."""


class OpenAccount(CloudAccount, Protocol):
    async def close(self) -> None:
        """Stop all tasks before the process exits. Terminates no instance."""
        ...


class RealAccount(OpenAccount, Protocol):
    @property
    def is_stand_in(self) -> bool:
        """Whether the calls go to a server on this machine instead of the cloud's service."""
        ...

    def set_credentials(self, credentials: Credentials) -> None:
        """Use these credentials from the next call on."""
        ...


class RealCloud(msgspec.Struct, frozen=True, kw_only=True):
    """Names of the credentials of one cloud, and the function that opens its account.

    `open` gets the settings, the credentials and the id of the cluster. It must not wait for the cloud, which may be
    down.
    """

    fields: Callable[[Settings], CredentialFields]
    open: Callable[[Settings, Credentials, str], RealAccount]


def _modal_fields(settings: Settings) -> CredentialFields:
    return CredentialFields(
        secret=settings.modal_token_secret,
        keys={"token_id": ("token-id", "MODAL_TOKEN_ID"), "token_secret": ("token-secret", "MODAL_TOKEN_SECRET")},
        variables={"token_id": ("MODAL_TOKEN_ID",), "token_secret": ("MODAL_TOKEN_SECRET",)},
    )


def _open_modal(settings: Settings, credentials: Credentials, cluster: str) -> RealAccount:
    # Import the SDK only for a real account: it costs a second and tens of megabytes.
    from skysail.cloud.modal.account import ModalAccount  # noqa: PLC0415 (see above)
    from skysail.cloud.modal.prices import REGIONS, PriceTable  # noqa: PLC0415 (see above)

    return ModalAccount(
        credentials,
        cluster=cluster,
        environment=settings.modal_environment,
        price_table=PriceTable(
            overrides=settings.modal_prices,
            regions={**REGIONS, **settings.modal_region_multipliers},
            offered_regions=settings.modal_regions,
        ),
        capacity_timeout=settings.modal_capacity_timeout_seconds,
        shared_volumes=settings.modal_shared_volumes,
        # Only the file is uploaded: the operator's package never gets into a tenant's container.
        shim=Path(handler_server.__file__),
    )


def _runpod_fields(settings: Settings) -> CredentialFields:
    names = ("RUNPOD_API_KEY", "RUNPOD_KEY")
    return CredentialFields(
        secret=settings.runpod_key_secret, keys={"api_key": ("api-key", *names)}, variables={"api_key": names}
    )


def _open_runpod(settings: Settings, credentials: Credentials, cluster: str) -> RealAccount:
    return RunPodAccount(Endpoint(settings.runpod_api_base_url), credentials, cluster=cluster)


# Real clouds by provider.
REAL_CLOUDS: dict[str, RealCloud] = {
    "modal": RealCloud(fields=_modal_fields, open=_open_modal),
    "runpod": RealCloud(fields=_runpod_fields, open=_open_runpod),
}


class Accounts:
    """Accounts by cloud. `run` follows the credentials and returns when the process has to restart."""

    def __init__(self, settings: Settings, reader: CredentialReader, cluster: str) -> None:
        self.by_name: dict[str, OpenAccount] = {}
        self._settings = settings
        self._cluster = cluster
        self._reader = reader
        self._watches: list[CredentialWatch] = []
        self._appeared = asyncio.Event()

    async def open(self) -> None:
        for provider in sorted({node.provider for node in self._settings.nodes.values()}):
            account = await self._open(provider)
            if account is not None:
                self.by_name[provider] = account

    async def run(self) -> None:
        """Hand changed credentials to their account. Returns when a cloud gets its first credentials.

        Also returns when it is known that a cloud has none, after they could not be read.

        The process then restarts: every part of it is built once, with or without the node of a cloud.
        """
        async with asyncio.TaskGroup() as tasks:
            watches = [tasks.create_task(watch.run()) for watch in self._watches]
            await self._appeared.wait()
            for watch in watches:
                watch.cancel()

    async def close(self) -> None:
        for account in self.by_name.values():
            await account.close()

    async def _open(self, provider: str) -> OpenAccount | None:
        settings, vendor = self._settings, VENDORS.get(provider)
        if settings.mock_clouds:
            return open_account(vendor, Path(settings.data_dir)) if vendor else None
        try:
            real = await self._open_real(provider)
        except CredentialsUnreadable as error:
            # A simulated account would run pods that are meant for the real one.
            log.warning("credentials not read, retried", extra={"cloud": provider, "why": str(error)})
            return None
        if real is not None or not settings.simulated_cloud_url or vendor is None:
            return real
        token = _read(settings.simulated_cloud_token_file, "simulated_cloud_token_file")
        return RemoteAccount(vendor, _socket(settings.simulated_cloud_url), token)

    async def _open_real(self, provider: str) -> RealAccount | None:
        cloud = REAL_CLOUDS.get(provider)
        if cloud is None:
            return None
        fields = cloud.fields(self._settings)
        restart = partial(self._first_credentials, provider)
        try:
            credentials = await self._reader.read(fields)
        except CredentialsUnreadable:
            # Without credentials, a new process opens the simulated account.
            is_awaited = bool(self._settings.simulated_cloud_url)
            self._watches.append(CredentialWatch(self._reader, fields, None, restart, is_awaited=is_awaited))
            raise
        account = None if credentials is None else cloud.open(self._settings, credentials, self._cluster)
        changed = restart if account is None else account.set_credentials
        self._watches.append(CredentialWatch(self._reader, fields, credentials, changed))
        return account

    def _first_credentials(self, provider: str, _: Credentials) -> None:
        log.info("credentials known, ending so that a new process opens the account", extra={"cloud": provider})
        self._appeared.set()


@contextlib.asynccontextmanager
async def open_accounts(settings: Settings, client: Client, cluster: str) -> AsyncIterator[Accounts]:
    """Open the accounts of the clouds that this process may call."""
    accounts = Accounts(settings, CredentialReader(client, settings.operator_namespace, os.environ), cluster)
    try:
        await accounts.open()
        yield accounts
    finally:
        await accounts.close()


def is_simulated(account: CloudAccount) -> bool:
    """Return whether the account only pretends or simulates, so that nothing is paid."""
    return account.account in {ACCOUNT_MOCK, ACCOUNT_SIMULATED}


def kind_of(account: CloudAccount) -> str:
    """Return what the account is, as the container runtime of its node says it."""
    if is_simulated(account):
        return ACCOUNT_SIMULATED
    return ACCOUNT_STAND_IN if getattr(account, "is_stand_in", False) else ACCOUNT_REAL


def _socket(name: str) -> Path:
    path = Path(name)
    if not path.is_absolute() or not path.parent.is_dir():
        raise AccountError(
            f"simulated_cloud_url is {name!r}, which is not the path of a Unix socket in an existing folder: name the "
            "socket of the simulated clouds, such as $SKYSAIL_HOME/clouds.sock."
        )
    return path


def _read(path: str | None, name: str) -> str:
    if not path:
        raise AccountError(f"Setting {name} is missing: set it to the file with the token for simulated clouds.")
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise AccountError(f"{name} names {path}, which cannot be read: {error.strerror}.") from error
