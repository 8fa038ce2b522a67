"""Pods as the last list has shown them, for connections to their ports.

Probes and Services connect many times a minute. A lookup for each connection would use up the request quota of the
account, so one list serves all connections for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from skysail.cloud.runpod import api
from skysail.cloud.runpod.client import RunPodClient
from skysail.cloud.runpod.rate_budget import NORMAL

# Lists of the account itself come once per interval: a pod with its ports is used for longer than that.
_VALID_INTERVALS = 2


class PodDirectory:
    """Pods by id. `clock` is monotonic. Lists at most once per `interval` seconds, for all pods together."""

    def __init__(self, client: RunPodClient, clock: Callable[[], float], interval: float) -> None:
        self._client = client
        self._clock = clock
        self._interval = interval
        self._pods: dict[str, api.Pod] = {}
        self._listed_at: float | None = None
        self._lock = asyncio.Lock()

    def update(self, pods: Iterable[api.Pod], *, is_complete: bool) -> None:
        """Take over a list. An incomplete one removes no pod."""
        listed = {pod.id: pod for pod in pods}
        self._pods = listed if is_complete else self._pods | listed
        self._listed_at = self._clock()

    async def find(self, id_: str) -> api.Pod | None:
        """Return a pod, or None if the list does not show it: it may be newer. Raises errors of the list."""
        async with self._lock:
            if self._is_outdated(id_):
                pods, is_complete = await self._client.list_pods(reserve=NORMAL)
                self.update(pods, is_complete=is_complete)
        return self._pods.get(id_)

    def _is_outdated(self, id_: str) -> bool:
        if self._listed_at is None:
            return True
        age = self._clock() - self._listed_at
        pod = self._pods.get(id_)
        is_usable = pod is not None and pod.status == "RUNNING" and pod.runtime is not None and _has_ports(pod)
        return age >= self._interval * (_VALID_INTERVALS if is_usable else 1)


def _has_ports(pod: api.Pod) -> bool:
    """Return whether all TCP ports of a running pod are mapped."""
    mapped = {row.private for row in (pod.runtime.ports or () if pod.runtime else ()) if row.public}
    return all(int(port.partition("/")[0]) in mapped for port in pod.ports if _is_tcp(port))


def _is_tcp(port: str) -> bool:
    number, _, kind = port.partition("/")
    return kind == "tcp" and number.isascii() and number.isdigit()
