from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from skysail.app.modal_metrics import ModalMetrics, mean_utilization
from skysail.base.metrics import Metrics
from skysail.claims.types import (
    CLOUD_INSTANCE,
    Candidate,
    CloudInstance,
    CloudInstanceSpec,
    CloudInstanceStatus,
    Exit,
    Gpu,
    OwnerRef,
)
from skysail.cloud.errors import Rejected
from skysail.cloud.provider import Features, Output
from skysail.kube.api.objects import Meta
from skysail.kube.cache.cache import Cache
from tests.support import virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NOW = datetime(2026, 11, 18, 4, tzinfo=UTC)
AT = "2026-11-18T03:00:00Z"


def claim(version: int, gpu: str = "T4", **status) -> CloudInstance:
    owner = OwnerRef(kind="Pod", name="p", uid="u", namespace="n")
    candidates = (Candidate(gpu_type=gpu, usd_per_hour=0.59),)
    spec = CloudInstanceSpec(
        provider="modal", owner=owner, gpu=Gpu("any") if gpu else None, candidates=candidates if gpu else ()
    )
    meta = Meta(name="u-0", uid="c", resource_version=str(version))
    return CloudInstance(metadata=meta, spec=spec, status=CloudInstanceStatus(**status))


class Session:
    def __init__(self, printed: bytes, *, is_endless: bool = False) -> None:
        self._printed = printed
        self._is_endless = is_endless
        self.pieces = 0
        self.calls: list[str] = []

    async def output(self) -> AsyncIterator[Output]:
        # Bounded, so that the test ends without a bound in the reader.
        for _ in range(100 if self._is_endless else 1):
            self.pieces += 1
            yield Output("stdout", 0.0, self._printed)

    async def wait(self) -> int:
        if self._is_endless:
            await asyncio.Event().wait()
        return 0

    async def kill(self) -> None:
        self.calls.append("kill")

    async def close(self) -> None:
        self.calls.append("close")


class Account:
    """Runs nvidia-smi in every instance, or has none."""

    features = Features(exec=True)

    def __init__(self, printed: bytes | None, *, is_endless: bool = False) -> None:
        self._printed = printed
        self.session = Session(printed or b"", is_endless=is_endless)

    async def exec(self, _instance: str, command: tuple[str, ...], *, stdin: bool, tty: bool) -> Session:
        if self._printed is None:
            raise Rejected("CommandNotStarted", f"{command[0]} not found")
        return self.session


def reported(
    account: Account | None = None, *, leads: bool = True
) -> tuple[Cache[CloudInstance], ModalMetrics, Metrics]:
    claims: Cache[CloudInstance] = Cache(CLOUD_INSTANCE.resource, CloudInstance)
    modal_metrics = ModalMetrics(claims, account, leads=lambda: leads, now=lambda: NOW)  # type: ignore[arg-type]
    metrics = Metrics()
    modal_metrics.register(metrics)
    return claims, modal_metrics, metrics


def lines(metrics: Metrics, name: str) -> list[str]:
    return [line for line in metrics.render().decode().splitlines() if line.startswith(name)]


@pytest.mark.parametrize(("code", "want"), [(0, "completed"), (3, "failed")])
def test_launch_and_end_are_counted_once(code, want):
    claims, _, metrics = reported()
    claims.record_write(claim(1, state="Launching"))
    running = claim(2, state="Running", instance_id="sb-1", ready_time=AT, start_time=AT, usd_per_hour=0.59)
    claims.record_write(running)
    assert lines(metrics, "modal_jobs_active") == ['modal_jobs_active{gpu_type="T4"} 1.0']
    assert 'modal_cost_estimate_usd{gpu_type="T4",job_name="n/p",time_period="hour"} 0.59' in lines(
        metrics, "modal_cost_estimate_usd"
    )
    ended = replace(
        running.status, state="Terminated", exit=Exit(code=code), finish_time="2026-11-18T03:00:20Z", end_time=AT
    )
    claims.record_write(replace(running, metadata=replace(running.metadata, resource_version="3"), status=ended))
    assert set(lines(metrics, "modal_jobs_total")) == {
        'modal_jobs_total{gpu_type="T4",replicas="1",status="created"} 1.0',
        f'modal_jobs_total{{gpu_type="T4",replicas="1",status="{want}"}} 1.0',
    }
    assert f'modal_job_duration_seconds_sum{{gpu_type="T4",status="{want}"}} 20.0' in lines(
        metrics, "modal_job_duration_seconds_sum"
    )
    assert lines(metrics, "modal_jobs_active") == []


def test_claims_of_earlier_processes_and_followers_count_nothing():
    claims, _, metrics = reported()
    claims.record_write(claim(1, state="Terminated", instance_id="sb-1"))
    assert lines(metrics, "modal_jobs_total") == []
    claims, _, metrics = reported(leads=False)
    claims.record_write(claim(1, state="Launching"))
    claims.record_write(claim(2, state="Running", instance_id="sb-1"))
    assert lines(metrics, "modal_jobs") == []


async def test_utilization_is_the_mean_of_the_gpus():
    claims, modal_metrics, metrics = reported(Account(b"40\n60\n"))
    claims.record_write(claim(1, state="Running", instance_id="sb-1"))
    await modal_metrics.sample()
    assert lines(metrics, "modal_gpu_utilization") == ['modal_gpu_utilization{gpu_type="T4",job_name="n/p"} 50.0']


@pytest.mark.parametrize("printed", [None, b"", b"[N/A]\n", b"250\n"])
async def test_utilization_that_is_unknown_is_absent(printed):
    claims, modal_metrics, metrics = reported(Account(printed))
    claims.record_write(claim(1, state="Running", instance_id="sb-1"))
    await modal_metrics.sample()
    assert lines(metrics, "modal_gpu_utilization") == []


@pytest.mark.parametrize(("printed", "pieces"), [(b"1\n" * 1000, 3), (b"", 100)])
def test_a_command_that_prints_too_much_or_does_not_end_is_killed(printed, pieces):
    account = Account(printed, is_endless=True)
    claims, modal_metrics, metrics = reported(account)
    claims.record_write(claim(1, state="Running", instance_id="sb-1"))
    virtual_time.run(modal_metrics.sample())
    assert (account.session.pieces, account.session.calls) == (pieces, ["kill", "close"])
    assert lines(metrics, "modal_gpu_utilization") == []


async def test_a_command_that_ended_is_not_killed():
    account = Account(b"40\n")
    claims, modal_metrics, _ = reported(account)
    claims.record_write(claim(1, state="Running", instance_id="sb-1"))
    await modal_metrics.sample()
    assert account.session.calls == ["close"]


def test_mean_of_nothing_is_unknown():
    assert mean_utilization(b"") is None
