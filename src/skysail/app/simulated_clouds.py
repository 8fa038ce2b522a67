"""Simulated clouds on this machine, served by the node agent: they run instances in containers of their own.

They outlive the operator, as a real cloud does. Each has a ledger below `simulated/` in the home folder. Instances that
ran when the agent exited become `Lost` in the ledger at the next start.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from pathlib import Path

from aiohttp import web
from msgspec.structs import replace

from skysail.base.names import ACCOUNT_MOCK, ACCOUNT_SIMULATED, EventReason
from skysail.cloud.errors import OutcomeUnknown
from skysail.cloud.provider import Provider, RunId
from skysail.cloud.simulated.account import RemoveDisk, SimulatedAccount, remove_nothing
from skysail.cloud.simulated.http.client import RemoteAccount
from skysail.cloud.simulated.http.server import serve
from skysail.cloud.simulated.ledger import Ledger, LedgerCorrupt
from skysail.cloud.simulated.unavailable import UnavailableAccount
from skysail.cloud.simulated.vendors import VENDORS, Vendor
from skysail.local import files
from skysail.local.cluster.home import Home
from skysail.local.files import remove_tree
from skysail.local.provider.dependencies import ProviderDependencies
from skysail.local.provider.provider import LocalProvider

log = logging.getLogger(__name__)


class SimulatedClouds:
    """Opens and serves the simulated clouds.

    `deps` are the node's: instances share its network, images and limits, but none of its folders.
    """

    def __init__(self, home: Home, deps: ProviderDependencies) -> None:
        self._home = home
        folder = home.root / "simulated"
        self._disks = folder / "cloud-volumes"
        volume_paths = replace(
            deps.volume_paths,
            folder=folder / "volumes",
            memory=deps.volume_paths.memory / "simulated",
            disks=self._disks,
            allowed=(),
        )
        for stale in (volume_paths.folder, volume_paths.memory, folder / "pods"):
            remove_tree(stale, ignore_errors=True)
        self._provider = LocalProvider(
            replace(
                deps,
                volume_paths=volume_paths,
                runs=folder / "pods",
                record=_log_event,
                show_progress=_ignore_progress,
                allows_host_network=False,
            )
        )
        self._accounts: list[SimulatedAccount | UnavailableAccount] = []
        self._runner: web.AppRunner | None = None

    async def open(self) -> None:
        root = self._home.root
        self._accounts = [
            open_account(vendor, root, self._provider, remove_disk=self._remove_disk) for vendor in VENDORS.values()
        ]
        self._runner = await serve(self._accounts, token(self._home), self._home.simulated_clouds)

    async def _remove_disk(self, name: str) -> None:
        """Delete a disk with its files. Raises OutcomeUnknown if a file cannot be deleted."""
        try:
            await asyncio.to_thread(remove_tree, self._disks / name)
        except OSError as error:
            raise OutcomeUnknown(f"The disk of the volume cannot be deleted: {error}.") from error

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        for account in self._accounts:
            await account.close()
        await self._provider.close()


def _log_event(run: RunId, reason: EventReason, note: str) -> None:
    """Take the place of the node's event recorder: an instance has no pod of this cluster to record an event on."""
    log.info("simulated cloud event", extra={"pod": run.pod, "reason": reason, "note": note})


def _ignore_progress(_run: RunId, _step: str) -> None:
    """Take the place of the node's progress: the log has the events."""


def open_account(
    vendor: Vendor,
    root: Path,
    provider: Provider | None = None,
    *,
    remove_disk: RemoveDisk = remove_nothing,
) -> SimulatedAccount | UnavailableAccount:
    """Open the account whose ledger is below `simulated/`. `remove_disk` deletes a disk of the provider.

    Returns an `UnavailableAccount` if the ledger is corrupt, so that the other clouds still work.
    """
    folder = root / "simulated"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        ledger = Ledger.open(folder / f"{vendor.name}.jsonl", mark=secrets.token_hex(4))
    except LedgerCorrupt as error:
        log.error("simulated cloud not opened", extra={"cloud": vendor.name, "why": str(error)})  # noqa: TRY400 (the message has the details)
        return UnavailableAccount(vendor, ACCOUNT_SIMULATED if provider else ACCOUNT_MOCK, str(error))
    return SimulatedAccount(vendor, ledger, now=time.time, provider=provider, remove_disk=remove_disk)


def remote(home: Home, vendor: Vendor) -> RemoteAccount:
    """Return a client for a simulated cloud, for other processes of the same user. Needs a running event loop."""
    return RemoteAccount(vendor, home.simulated_clouds, token(home))


def token(home: Home) -> str:
    """Return the clouds' token, and create it if needed, because agent and operator start in any order.

    The token is a second line of defence: pods cannot reach the socket at all.
    """
    return files.token(home.simulated_cloud_token_file)
