"""A webhook server of a contestant: the placement of pods, or one that answers without looking.

usage: python -m bench.admission_server placement|empty PORT
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec
from aiohttp import web

from skysail.base.settings import Settings
from skysail.claims.limits.offload_policy import OFFLOAD_POLICY, OffloadPolicy
from skysail.cloud.modal.prices import PriceTable
from skysail.cloud.offers import OfferList
from skysail.cloud.simulated.vendors import VENDORS
from skysail.kinds.offload import placement_webhook, resource_limits_webhook
from skysail.kinds.offload.caches import Caches
from skysail.kinds.offload.config import offload_config
from skysail.kinds.offload.objects import Pod
from skysail.kinds.offload.observer import PlacementObserver
from skysail.kube.admission import server
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import NAMESPACE
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client

PLACEMENT, EMPTY = "placement", "empty"
PATHS = {PLACEMENT: "/admit/placement", EMPTY: "/empty"}
_OFFERS = {"modal": PriceTable().offers(), "runpod": OfferList(VENDORS["runpod"].offers, 0.0)}
_POLICY = {"namespaceSelector": {}, "providers": ["modal", "runpod"], "maxInstances": 1000, "automatic": True}


class _Clouds:
    """Two clouds that have listed their offers."""

    accounts = frozenset(VENDORS)

    async def offers(self, provider: str) -> OfferList:
        return _OFFERS[provider]

    def outages(self) -> dict[str, str]:
        return {}

    def exhausted(self, pod: Pod) -> frozenset[str]:  # noqa: ARG002 (of the interface)
        return frozenset()

    def has_private_network(self, provider: str) -> bool:
        return provider == "modal"

    def unsupported(self, pod: Pod, provider: str) -> tuple[str, ...]:  # noqa: ARG002 (of the interface)
        return ()


class _NoApi:
    """An API server that is never asked: a pod without an owner needs no read."""

    async def send(self, request: Any) -> Any:
        raise AssertionError(f"The webhook read {request}.")


def placement() -> web.Application:
    config = offload_config(Settings())
    caches = Caches.create(Cache(OFFLOAD_POLICY.resource, OffloadPolicy), Cache(NAMESPACE, Object))
    caches.policies.put(msgspec.convert({"metadata": {"name": "default"}, "spec": _POLICY}, OffloadPolicy))
    caches.namespaces.put(_namespace("bench"))
    for cache in (caches.policies, caches.namespaces):
        cache.synced.set()
    client: Any = Client(_NoApi())  # type: ignore[arg-type]
    observer = PlacementObserver(
        client, caches, config, _Clouds(), now=lambda: datetime.now(UTC), clock=asyncio.get_running_loop().time
    )
    hooks = (*resource_limits_webhook.hooks(config.nodes), *placement_webhook.hooks(observer, config))
    return server.application(hooks)


def _namespace(name: str) -> Object:
    return msgspec.convert({"metadata": {"name": name}}, Object)


def empty() -> web.Application:
    """Decode the review and allow it: less than this no webhook can do."""

    async def handle(request: web.Request) -> web.Response:
        review = msgspec.json.decode(await request.read())
        response = {"uid": review["request"]["uid"], "allowed": True}
        body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")

    app = web.Application()
    app.router.add_post(PATHS[EMPTY], handle)
    return app


async def main(contestant: str, port: int) -> None:
    runner = web.AppRunner(placement() if contestant == PLACEMENT else empty(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
