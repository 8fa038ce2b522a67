"""Whether the caches hold what the API server has: looked at now and then, and when somebody asks."""

from __future__ import annotations

import asyncio
import logging
import random

import msgspec

from skysail.base import health_server
from skysail.kube.cache.audit import Finding
from skysail.kube.cache.informers import Informers
from skysail.kube.client.errors import KubeError

log = logging.getLogger(__name__)


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

    async def asked(self) -> list[Finding]:
        try:
            return await self._audit()
        except KubeError as error:
            raise health_server.AuditFailed(f"the API server does not answer: {error}") from error

    async def _audit(self) -> list[Finding]:
        findings = await self._informers.audit()
        for finding in findings:
            wrong = finding.missing + finding.stale + finding.extra
            self.differences[finding.kind] = self.differences.get(finding.kind, 0) + wrong
            if finding.differs:
                log.warning("cache differed and is filled anew", extra=msgspec.structs.asdict(finding))
        return findings
