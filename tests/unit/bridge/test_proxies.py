"""Which way to an instance a route takes."""

from __future__ import annotations

from typing import Any

import pytest

from skysail.base.metrics import Metrics
from skysail.bridge.http_proxy import HttpProxy
from skysail.bridge.proxies import Proxies
from skysail.bridge.raw_proxy import RawProxy
from skysail.bridge.routes import Route
from skysail.bridge.traffic import Traffic


def route(**fields: Any) -> Route:
    names = {"claim": "c", "provider": "p", "account": "a", "instance": "i", "namespace": "n", "owner": "o"}
    return Route(port=20001, target_port=80, **names, **fields)


@pytest.mark.parametrize(
    ("ways", "fields", "expected"),
    [
        ("raw http", {}, "raw"),
        ("raw http", {"protocol": "http"}, "http"),
        ("raw http", {"protocol": "http", "rank": 1}, "raw"),
        ("raw", {"protocol": "http"}, "raw"),
        ("http", {}, "http"),
        ("http", {"protocol": "http"}, "http"),
    ],
)
async def test_proxies_http_is_used_for_http_and_where_there_is_nothing_else(ways, fields, expected):
    traffic = Traffic(Metrics(), max_connections=1, max_connections_per_route=1)
    account: Any = None
    raw = RawProxy(account, traffic, idle_seconds=1.0)
    http = HttpProxy(account, traffic, idle_seconds=1.0, max_request_bytes=1)
    try:
        proxies = Proxies(raw if "raw" in ways else None, http if "http" in ways else None)
        assert proxies.choose(route(**fields)) is {"raw": raw, "http": http}[expected]
    finally:
        await http.close()
