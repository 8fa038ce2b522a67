import asyncio

import aiohttp
import pytest
from aiohttp import test_utils

from skysail.base.health_server import HealthServer
from skysail.base.metrics import Metrics
from skysail.base.names import Metric

TOKEN = {"Authorization": "Bearer right"}


async def get(
    health_server: HealthServer, path: str, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[int, str]:
    async with (
        test_utils.TestServer(health_server.application()) as server,
        aiohttp.ClientSession() as session,
        session.request(method, server.make_url(path), headers=headers) as reply,
    ):
        return reply.status, await reply.text()


OUTAGES = {"modal": "", "runpod": "runpod does not list its instances: 502."}


def health(unready: list[str] | None = None, audit=None, token: str = "right") -> HealthServer:
    async def nothing():
        return []

    return HealthServer(
        Metrics(),
        unready=lambda: unready or [],
        outages=lambda: OUTAGES,
        audit=audit or nothing,
        audit_token=token,
    )


async def test_a_cloud_that_is_down_is_told_and_leaves_the_process_ready():
    assert await get(health(), "/readyz/modal") == (200, "ok\n")
    assert await get(health(), "/readyz/runpod") == (503, "runpod does not list its instances: 502.\n")
    assert await get(health(), "/readyz/aws") == (404, "aws not found: the names are modal, runpod\n")
    assert await get(health(), "/readyz") == (200, "ok\n")


async def test_a_process_that_waits_lives_and_is_not_ready():
    waiting = health(["trainingjobs.ml.example.com"])
    assert await get(waiting, "/healthz") == (200, "ok\n")
    assert await get(waiting, "/readyz") == (503, "waiting for trainingjobs.ml.example.com\n")
    assert await get(health(), "/readyz") == (200, "ok\n")


async def test_metrics_have_the_names_that_dashboards_know():
    metrics = Metrics()
    metrics.add_callback(Metric.CACHED_OBJECTS, "kind", lambda: {"pods": 3})
    metrics.add_callback(Metric.EFFECTS, "", lambda: {"": 7})
    metrics.reconcile_started("TrainingJob", 0.2)
    metrics.reconcile_finished("TrainingJob", "success", 0.01)
    pages = HealthServer(metrics, unready=list, outages=dict, audit=lambda: asyncio.sleep(0, []))
    code, page = await get(pages, "/metrics")
    assert code == 200
    assert 'controller_runtime_reconcile_total{controller="TrainingJob",result="success"} 1.0' in page
    assert 'controller_runtime_active_workers{controller="TrainingJob"} 0.0' in page
    assert 'skysail_cache_objects{kind="pods"} 3.0' in page
    assert "skysail_effects_total 7.0" in page
    assert 'workqueue_queue_duration_seconds_count{name="TrainingJob"} 1.0' in page


async def test_metrics_switched_off_are_not_served():
    off = HealthServer(Metrics(), unready=list, outages=dict, audit=lambda: asyncio.sleep(0, []), with_metrics=False)
    assert (await get(off, "/metrics"))[0] == 404
    assert (await get(off, "/readyz"))[0] == 200


async def test_one_audit_at_a_time():
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def audit():
        begun.set()
        await go_on.wait()
        return [{"kind": "pods"}]

    pages = health(audit=audit)
    first = asyncio.create_task(get(pages, "/audit", "POST", TOKEN))
    await begun.wait()
    assert (await get(pages, "/audit", "POST", TOKEN))[0] == 429
    go_on.set()
    assert await first == (200, '[{"kind":"pods"}]')


async def test_an_audit_has_an_effect_so_it_cannot_be_asked_for_by_a_link():
    assert (await get(health(), "/audit"))[0] == 405


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer right "},
        {"Authorization": "Bearer rightt"},
        {"Authorization": "bearer right"},
        {"Authorization": "Basic right"},
        {"Authorization": "right"},
        {"Authorization": "Bearer r\u00efght"},
        {"X-Token": "right"},
        {"Cookie": "token=right"},
    ],
    ids=str,
)
async def test_an_audit_needs_the_token(headers):
    asked = []

    async def audit():
        asked.append(1)
        return []

    status, text = await get(health(audit=audit), "/audit", "POST", headers)
    # Space at the end of a header is no part of it.
    assert (status, bool(asked)) == ((200, True) if headers == {"Authorization": "Bearer right "} else (401, False))
    assert "right" not in text


async def test_without_a_token_audits_are_switched_off():
    for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": "Bearer None"}):
        status, text = await get(health(token=""), "/audit", "POST", headers)
        assert (status, "audit_token" in text) == (403, True)
