"""metrics.k8s.io for the pods of one node, so that `kubectl top` and autoscalers work without another server.

Behind the API server, which authenticates and authorises before it asks: only its front proxy is let in, by TLS.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from skysail.cloud.contract import Provider, RunId, Usage
from skysail.cloud.errors import ProviderError
from skysail.kube.certificates import Pair
from skysail.kube.kubeconfig import load_certificate
from skysail.kube.resources import Resource
from skysail.node.keeper import Keeper
from skysail.node.snapshot import timestamp

API_SERVICE = Resource("apiregistration.k8s.io", "v1", "apiservices", "APIService", namespaced=False)
GROUP_VERSION = "metrics.k8s.io/v1beta1"
_ROOT = f"/apis/{GROUP_VERSION}"
_SAMPLE_SECONDS = 5.0
_REQUIREMENT = re.compile(r"\s*(!?)\s*([\w./-]+)\s*(?:(==|=|!=)\s*([\w./-]*)|(in|notin)\s*\(([^)]*)\))?\s*(?:,|$)")

log = logging.getLogger(__name__)

Json = dict[str, Any]


class Rate(msgspec.Struct, frozen=True):
    """What a run uses: cores on average since the sample before, and bytes now."""

    cores: float
    memory: int


class Sample(msgspec.Struct, frozen=True):
    at: float
    usage: Mapping[RunId, Usage]


class BadSelector(Exception):
    """Its text is for the caller."""


def rates(before: Sample, after: Sample) -> dict[RunId, Rate]:
    """Of the runs that are in both: of a younger one nobody knows yet how much it uses."""
    seconds = after.at - before.at
    return {
        run: Rate(max(0.0, used.cpu_seconds - before.usage[run].cpu_seconds) / seconds, used.memory)
        for run, used in after.usage.items()
        if run in before.usage and seconds > 0
    }


def selects(selector: str, labels: Mapping[str, str]) -> bool:
    """Whether a label selector chooses an object with these labels. Raises `BadSelector`."""
    position = 0
    while position < len(selector):
        found = _REQUIREMENT.match(selector, position)
        if not found:
            raise BadSelector(f"{selector!r} is no label selector.")
        if not _meets(found.groups(default=""), labels):
            return False
        position = found.end()
    return True


def _meets(requirement: tuple[str, ...], labels: Mapping[str, str]) -> bool:
    negated, key, operator, value, set_operator, values = requirement
    if operator:
        return (labels.get(key) == value) != (operator == "!=")
    if set_operator:
        chosen = {part.strip() for part in values.split(",")}
        return (labels.get(key) in chosen) != (set_operator == "notin")
    return (key in labels) != bool(negated)


class MetricsApi:
    """Samples while `run` runs."""

    def __init__(self, node: str, keeper: Keeper, provider: Provider, wall: Callable[[], float]) -> None:
        self._node = node
        self._keeper = keeper
        self._provider = provider
        self._wall = wall
        self._before = Sample(wall(), {})
        self._after = Sample(wall(), {})

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                usage = await self._provider.usage()
                self._before, self._after = self._after, Sample(self._wall(), usage)
            except ProviderError as error:
                log.info("usage not known", extra={"why": str(error)})
            await asyncio.sleep(_SAMPLE_SECONDS)

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get(_ROOT, self._resources)
        app.router.add_get(f"{_ROOT}/nodes", self._nodes)
        app.router.add_get(f"{_ROOT}/nodes/{{name}}", self._one_node)
        app.router.add_get(f"{_ROOT}/pods", self._pods)
        app.router.add_get(f"{_ROOT}/namespaces/{{namespace}}/pods", self._pods)
        app.router.add_get(f"{_ROOT}/namespaces/{{namespace}}/pods/{{name}}", self._one_pod)
        return app

    async def _resources(self, _: web.Request) -> web.Response:
        rows = [
            {"name": plural, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": ["get", "list"]}
            for plural, kind, namespaced in (("nodes", "NodeMetrics", False), ("pods", "PodMetrics", True))
        ]
        return _json({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP_VERSION, "resources": rows})

    async def _nodes(self, _: web.Request) -> web.Response:
        return _json(_list("NodeMetricsList", [self._node_metrics()]))

    async def _one_node(self, request: web.Request) -> web.Response:
        return _json(self._node_metrics()) if request.match_info["name"] == self._node else _missing()

    async def _pods(self, request: web.Request) -> web.Response:
        try:
            return _json(_list("PodMetricsList", self._pod_metrics(request)))
        except BadSelector as error:
            return _status(400, "BadRequest", str(error))

    async def _one_pod(self, request: web.Request) -> web.Response:
        found = [row for row in self._pod_metrics(request) if row["metadata"]["name"] == request.match_info["name"]]
        return _json(found[0]) if found else _missing()

    def _pod_metrics(self, request: web.Request) -> list[Json]:
        namespace, selector = request.match_info.get("namespace", ""), request.query.get("labelSelector", "")
        now = rates(self._before, self._after)
        rows = []
        for uid in sorted({run.pod for run in now}):
            book = self._keeper.books.get(uid)
            pod = self._keeper.pod(book) if book else None
            if pod is None or namespace not in {"", pod.metadata.namespace}:
                continue
            labels = pod.metadata.labels or {}
            if selects(selector, labels):
                used = [{"name": run.container, "usage": _usage(rate)} for run, rate in now.items() if run.pod == uid]
                metadata = {"name": pod.metadata.name, "namespace": pod.metadata.namespace, "labels": labels}
                rows.append({**self._head("PodMetrics", metadata), "containers": used})
        return rows

    def _node_metrics(self) -> Json:
        now = rates(self._before, self._after).values()
        total = Rate(sum(rate.cores for rate in now), sum(rate.memory for rate in now))
        return {**self._head("NodeMetrics", {"name": self._node}), "usage": _usage(total)}

    def _head(self, kind: str, metadata: Json) -> Json:
        at = timestamp(self._after.at)
        return {
            "kind": kind,
            "apiVersion": GROUP_VERSION,
            "metadata": {**metadata, "creationTimestamp": at},
            "timestamp": at,
            "window": f"{max(1, round(self._after.at - self._before.at))}s",
        }


def tls(own: Pair, front_proxy: bytes) -> ssl.SSLContext:
    """Nobody but the API server's front proxy gets through the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificate(context, own.certificate, own.key)
    context.load_verify_locations(cadata=front_proxy.decode())
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def registration(authority: str, *, service: tuple[str, str], port: int) -> Json:
    """The APIService that leads to a Service (namespace, name); `authority` is base64."""
    group, version = GROUP_VERSION.split("/")
    return {
        "apiVersion": API_SERVICE.api_version,
        "kind": API_SERVICE.kind,
        "metadata": {"name": f"{version}.{group}"},
        "spec": {
            "group": group,
            "version": version,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "caBundle": authority,
            "service": {"namespace": service[0], "name": service[1], "port": port},
        },
    }


def _usage(rate: Rate) -> Json:
    return {"cpu": f"{round(rate.cores * 1e9)}n", "memory": f"{rate.memory // 1024}Ki"}


def _list(kind: str, items: list[Json]) -> Json:
    return {"kind": kind, "apiVersion": GROUP_VERSION, "metadata": {}, "items": items}


def _missing() -> web.Response:
    return _status(404, "NotFound", "There are no metrics of that name yet.")


def _status(code: int, reason: str, message: str) -> web.Response:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": code,
    }
    return web.Response(status=code, body=msgspec.json.encode(body), content_type="application/json")


def _json(content: Json) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), content_type="application/json")
