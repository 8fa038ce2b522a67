"""Metrics of Modal, with the names and labels of the Modal operator. Reported by the leader."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from datetime import datetime

from skysail.base import tasks as base_tasks
from skysail.base.metrics import Metrics
from skysail.base.names import Metric
from skysail.claims.plan.status import accrued_cost
from skysail.claims.requirements.types import MODAL
from skysail.claims.types import CloudInstance
from skysail.cloud.account import CloudAccount
from skysail.cloud.errors import ProviderError
from skysail.cloud.provider import Session
from skysail.kube.cache.cache import Cache

_BUCKETS = (1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0)
_ACTIVE = {"Starting", "Running"}
_NO_GPU = "none"
_SAMPLE_SECONDS = 30.0
_SAMPLE_TIMEOUT = 20.0
_KILL_TIMEOUT = 5.0
_MAX_CONCURRENT = 4
# Bytes of output of one command. Eight GPUs print 32.
_MAX_PRINTED = 4096
_NVIDIA_SMI = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")

log = logging.getLogger(__name__)

Figures = Mapping[tuple[str, ...], float]


class ModalMetrics:
    """Counts launches and ends of claims at Modal, and samples the GPUs of running instances."""

    def __init__(
        self,
        claims: Cache[CloudInstance],
        account: CloudAccount | None,
        *,
        leads: Callable[[], bool],
        now: Callable[[], datetime],
    ) -> None:
        self._claims = claims
        self._account = account
        self._leads = leads
        self._now = now
        self._jobs: Counter[tuple[str, ...]] = Counter()
        self._utilization: dict[tuple[str, ...], float] = {}
        claims.subscribe(self._changed)

    def register(self, metrics: Metrics) -> None:
        metrics.add_labelled_callback(Metric.MODAL_JOBS, ("status", "gpu_type", "replicas"), lambda: dict(self._jobs))
        metrics.add_labelled_callback(Metric.MODAL_JOBS_ACTIVE, ("gpu_type",), self._active)
        metrics.add_labelled_callback(
            Metric.MODAL_GPU_UTILIZATION, ("job_name", "gpu_type"), lambda: dict(self._utilization)
        )
        metrics.add_labelled_callback(Metric.MODAL_COST, ("job_name", "gpu_type", "time_period"), self._cost)
        self._duration = metrics.add_histogram(Metric.MODAL_JOB_DURATION, ("status", "gpu_type"), _BUCKETS)

    async def run(self) -> None:
        """Sample the GPUs until cancelled."""
        while True:
            await base_tasks.run_logged(self.sample(), "sample of GPUs at modal")
            await asyncio.sleep(_SAMPLE_SECONDS)

    async def sample(self) -> None:
        """Read the utilization of all running GPU instances. One without `nvidia-smi` has none."""
        claims = [claim for claim in self._running() if claim.spec.gpu and claim.status.state == "Running"]
        limit = asyncio.Semaphore(_MAX_CONCURRENT)

        async def read(claim: CloudInstance) -> float | None:
            async with limit:
                return await self._read(claim.status.instance_id)

        values = await asyncio.gather(*map(read, claims))
        self._utilization = {
            (_job(claim), _gpu(claim)): value for claim, value in zip(claims, values, strict=True) if value is not None
        }

    async def _read(self, instance: str) -> float | None:
        """Return the mean utilization of the GPUs of an instance in percent, or None if it is unknown."""
        if self._account is None or not self._account.features.exec:
            return None
        try:
            async with asyncio.timeout(_SAMPLE_TIMEOUT):
                session = await self._account.exec(instance, _NVIDIA_SMI, stdin=False, tty=False)
                printed = await _printed(session)
        except (ProviderError, TimeoutError) as error:
            log.debug("gpu utilization not read", extra={"instance": instance, "why": str(error)})
            return None
        return None if printed is None else mean_utilization(printed)

    def _changed(self, old: CloudInstance | None, new: CloudInstance | None) -> None:
        if old is None or new is None or new.spec.provider != MODAL or not self._leads():
            return
        if new.status.instance_id and not old.status.instance_id:
            self._jobs["created", _gpu(new), str(new.spec.members)] += 1
        if new.status.state == "Terminated" and old.status.state != "Terminated" and new.status.instance_id:
            outcome = "completed" if new.status.exit is not None and new.status.exit.code == 0 else "failed"
            self._jobs[outcome, _gpu(new), str(new.spec.members)] += 1
            self._duration.labels(outcome, _gpu(new)).observe(_seconds(new))

    def _running(self) -> list[CloudInstance]:
        return [
            claim
            for claim in self._claims.all()
            if claim.spec.provider == MODAL and claim.status.state in _ACTIVE and claim.status.instance_id
        ]

    def _active(self) -> Figures:
        return Counter((_gpu(claim),) for claim in self._running()) if self._leads() else {}

    def _cost(self) -> Figures:
        """Return the price of each running instance, and the cost so far of each that has a claim."""
        if not self._leads():
            return {}
        now, found = self._now().timestamp(), dict[tuple[str, ...], float]()
        for claim in self._running():
            found[_job(claim), _gpu(claim), "hour"] = claim.status.usd_per_hour or 0.0
        totals = defaultdict[tuple[str, ...], float](float)
        for claim in self._claims.all():
            status = claim.status
            if claim.spec.provider == MODAL and status.instance_id:
                cost = accrued_cost(status, now) if status.usd_total is None else status.usd_total
                totals[_job(claim), _gpu(claim), "total"] += cost
        return {**found, **totals}


async def _printed(session: Session) -> bytes | None:
    """Return what the command printed, or None if it failed or printed too much.

    The command is the tenant's own program, so it is killed unless it ends by itself.
    """
    printed, size, has_ended = bytearray(), 0, False
    try:
        async for piece in session.output():
            size += len(piece.data)
            if size > _MAX_PRINTED:
                return None
            if piece.stream == "stdout":
                printed += piece.data
        code = await session.wait()
        has_ended = True
        return None if code else bytes(printed)
    finally:
        if not has_ended:
            with contextlib.suppress(ProviderError, TimeoutError):
                async with asyncio.timeout(_KILL_TIMEOUT):
                    await session.kill()
        await session.close()


def mean_utilization(output: bytes) -> float | None:
    """Return the mean of one number per line, or None if the output is something else."""
    try:
        values = [float(line) for line in output.decode(errors="replace").split()]
    except ValueError:
        return None
    return sum(values) / len(values) if values and all(0 <= value <= 100 for value in values) else None  # noqa: PLR2004 (percent)


def _gpu(claim: CloudInstance) -> str:
    candidates, status = claim.spec.candidates, claim.status
    if claim.spec.gpu is None:
        return _NO_GPU
    return candidates[status.candidate].gpu_type if status.candidate < len(candidates) else claim.spec.gpu.type


def _job(claim: CloudInstance) -> str:
    return f"{claim.spec.owner.namespace}/{claim.spec.owner.name}"


def _seconds(claim: CloudInstance) -> float:
    status = claim.status
    begin, end = status.ready_time or status.start_time, status.finish_time or status.end_time
    if begin is None or end is None:
        return 0.0
    return max(0.0, (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds())
