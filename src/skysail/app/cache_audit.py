"""Whether the caches hold what the API server has: looked at now and then, and when somebody asks."""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path

import msgspec

from skysail.app.cluster_check import StartupError
from skysail.base import health_server
from skysail.kube.cache.audit import AuditResult
from skysail.kube.cache.informers import Informers
from skysail.kube.client.errors import KubeError

log = logging.getLogger(__name__)


def read_token(path: str | None) -> str:
    """Return the token that a caller of /audit must know, and nothing if no file is set. Raises `StartupError`."""
    if path is None:
        return ""
    try:
        token = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"audit_token names {path}, which cannot be read: {error}.") from error
    if not token:
        raise StartupError(f"audit_token names {path}, which is empty: write a token into it.")
    return token


class Audits:
    """`differences` counts, by kind, the objects that a cache had wrong."""

    def __init__(self, informers: Informers, seconds: float, rng: random.Random) -> None:
        self._informers = informers
        self._seconds = seconds
        self._rng = rng
        self.differences: dict[str, float] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._seconds * self._rng.uniform(0.9, 1.1))
            try:
                await self._audit()
            except KubeError as error:
                log.info("caches not audited", extra={"why": str(error)})

    async def audit_now(self) -> list[AuditResult]:
        try:
            return await self._audit()
        except KubeError as error:
            raise health_server.AuditFailed(f"the API server does not answer: {error}") from error

    async def _audit(self) -> list[AuditResult]:
        audit_results = await self._informers.audit()
        for audit_result in audit_results:
            wrong = audit_result.missing + audit_result.stale + audit_result.extra
            self.differences[audit_result.kind] = self.differences.get(audit_result.kind, 0) + wrong
            if audit_result.differs:
                log.warning("cache differed and is filled anew", extra=msgspec.structs.asdict(audit_result))
        return audit_results
