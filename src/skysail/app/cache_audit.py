"""Comparison of the caches with the API server: at intervals, and on request."""

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
    """Return the token that a caller of /audit must send.

    Returns an empty string if no file is set.
    Raises `StartupError` if the file is empty or cannot be read.
    """
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
    """Audits all caches. `differences` counts, by kind, the objects that differed from the API server."""

    def __init__(self, informers: Informers, seconds: float, rng: random.Random) -> None:
        self._informers = informers
        self._seconds = seconds
        self._rng = rng
        self.differences: dict[str, float] = {}

    async def run(self) -> None:
        """Audit at intervals until cancelled."""
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
            count = audit_result.missing + audit_result.stale + audit_result.extra
            self.differences[audit_result.kind] = self.differences.get(audit_result.kind, 0) + count
            if audit_result.differs:
                log.warning("cache differs from the API server, relisted", extra=msgspec.structs.asdict(audit_result))
        return audit_results
