"""Whether the caches hold what the API server has: looked at now and then, and when somebody asks."""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path

import msgspec

from skysail.app.cluster_check import CannotStart
from skysail.base import health_server
from skysail.kube.cache.audit import Finding
from skysail.kube.cache.informers import Informers
from skysail.kube.client.errors import KubeError

log = logging.getLogger(__name__)


def read_token(path: str | None) -> str:
    """Return the token that a caller of /audit must know, and nothing if no file is set. Raises `CannotStart`."""
    if path is None:
        return ""
    try:
        token = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CannotStart(f"audit_token names {path}, which cannot be read: {error}.") from error
    if not token:
        raise CannotStart(f"audit_token names {path}, which is empty: write a token into it.")
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
