"""Deletions of volumes at clouds. Each call is a task, so that a cloud that does not answer delays no reconcile.

Results are kept in memory only. After a restart the deletion is repeated, which has no effect on a deleted volume.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from skysail.cloud.account import CloudAccount
from skysail.cloud.checkpoint_volumes import VolumeDeletion, volume_id
from skysail.cloud.errors import Gone, ProviderError, Rejected, Unsupported
from skysail.core.actions import DeleteCloudVolume
from skysail.kube.api.objects import Key

# Forget results after this time: their object is deleted long before.
_KEPT_FOR = timedelta(hours=1)

log = logging.getLogger(__name__)


class VolumeDeletions:
    """Deletions of one process. `on_finished` gets the key of the object whose deletion has finished."""

    def __init__(self, accounts: Mapping[str, CloudAccount], now: Callable[[], datetime]) -> None:
        self._accounts = accounts
        self._now = now
        # By cloud and UID of the object.
        self._results: dict[tuple[str, str], VolumeDeletion] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[VolumeDeletion]] = {}
        self.on_finished: Callable[[Key], None] = lambda _: None

    def results(self, uid: str) -> dict[str, VolumeDeletion | None]:
        """Return the deletions of this object's volumes by cloud. One in progress has no result."""
        running = {cloud: None for cloud, owner in self._tasks if owner == uid}
        return {cloud: result for (cloud, owner), result in self._results.items() if owner == uid} | running

    def delete(self, action: DeleteCloudVolume) -> None:
        """Start a deletion, unless one of this volume is in progress."""
        key = (action.cloud, action.object.metadata.uid)
        if key not in self._tasks:
            first_at = self._results[key].first_at if key in self._results else self._now()
            task = self._tasks[key] = asyncio.get_running_loop().create_task(self._delete(action, first_at))
            task.add_done_callback(lambda done: self._finished(action, first_at, done))

    async def close(self) -> None:
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _delete(self, action: DeleteCloudVolume, first_at: datetime) -> VolumeDeletion:
        problem, is_final = await self._call(action)
        return VolumeDeletion(first_at=first_at, at=self._now(), problem=problem, is_final=is_final)

    async def _call(self, action: DeleteCloudVolume) -> tuple[str, bool]:
        """Return the problem, empty if the volume is deleted, and whether it is final."""
        metadata, account = action.object.metadata, self._accounts.get(action.cloud)
        if account is None:
            return f"Skysail has no account at {action.cloud}.", False
        try:
            await account.delete_volume(metadata.namespace, volume_id(metadata.namespace, metadata.uid))
        except Gone:
            return "", False
        except ProviderError as error:
            return str(error), isinstance(error, Rejected | Unsupported)
        return "", False

    def _finished(self, action: DeleteCloudVolume, first_at: datetime, task: asyncio.Task[VolumeDeletion]) -> None:
        metadata = action.object.metadata
        self._tasks.pop((action.cloud, metadata.uid), None)
        if task.cancelled():
            return
        extra = {"provider": action.cloud, "object": str(metadata.key)}
        if (error := task.exception()) is not None:
            log.error("volume deletion failed", exc_info=error, extra=extra)
            problem = "The deletion failed: see the operator's log."
            result = VolumeDeletion(first_at=first_at, at=self._now(), problem=problem)
        else:
            result = task.result()
            log.info("volume deletion answered", extra={**extra, "problem": result.problem})
        kept = {key: old for key, old in self._results.items() if self._now() - old.at < _KEPT_FOR}
        self._results = kept | {(action.cloud, metadata.uid): result}
        self.on_finished(metadata.key)
