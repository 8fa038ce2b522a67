"""The API metrics.k8s.io for the pods of one node, so that `kubectl top` and the HPA work without metrics-server.

The API server authenticates and authorizes callers before it forwards a request. TLS admits only its front proxy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from skysail.base.disconnects import tolerate_disconnects
from skysail.kube.api.resources import Resource
from skysail.node.kubelet import Kubelet
from skysail.node.sync.snapshot import timestamp
from skysail.node.usage_sampler import Rate, UsageSampler

API_SERVICE = Resource("apiregistration.k8s.io", "v1", "apiservices", "APIService", namespaced=False)
GROUP_VERSION = "metrics.k8s.io/v1beta1"
_ROOT = f"/apis/{GROUP_VERSION}"
_REQUIREMENT = re.compile(r"\s*(!?)\s*([\w./-]+)\s*(?:(==|=|!=)\s*([\w./-]*)|(in|notin)\s*\(([^)]*)\))?\s*(?:,|$)")

Json = dict[str, Any]


class BadSelector(Exception):
    """Invalid label selector; the caller sees the message."""


def selects(selector: str, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector matches these labels. Raises `BadSelector`."""
    position = 0
    while position < len(selector):
        match = _REQUIREMENT.match(selector, position)
        if not match:
            raise BadSelector(f"{selector!r} is not a valid label selector.")
        if not _meets(match.groups(default=""), labels):
            return False
        position = match.end()
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
    def __init__(self, node: str, kubelet: Kubelet, usage_sampler: UsageSampler) -> None:
        self._node = node
        self._kubelet = kubelet
        self._usage_sampler = usage_sampler

    def application(self) -> web.Application:
        app = web.Application(middlewares=[tolerate_disconnects])
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
        return _json(_list("NodeMetricsList", [self._node_metrics()] if self._is_known else []))

    async def _one_node(self, request: web.Request) -> web.Response:
        is_here = self._is_known and request.match_info["name"] == self._node
        return _json(self._node_metrics()) if is_here else _missing()

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
        now = self._usage_sampler.rates()
        rows = []
        for uid in sorted({run.pod for run in now}):
            pod_state = self._kubelet.pod_states.get(uid)
            pod = self._kubelet.effective_pod(pod_state) if pod_state else None
            if pod is None or namespace not in {"", pod.metadata.namespace}:
                continue
            labels = pod.metadata.labels or {}
            if selects(selector, labels):
                used = [{"name": run.container, "usage": _usage(rate)} for run, rate in now.items() if run.pod == uid]
                metadata = {"name": pod.metadata.name, "namespace": pod.metadata.namespace, "labels": labels}
                rows.append({**self._head("PodMetrics", metadata), "containers": used})
        return rows

    @property
    def _is_known(self) -> bool:
        """Return whether rates are known. Before that, metrics are missing: a zero would be wrong."""
        return self._usage_sampler.window is not None

    def _node_metrics(self) -> Json:
        now = self._usage_sampler.rates().values()
        total = Rate(sum(rate.cores for rate in now), sum(rate.memory for rate in now))
        return {**self._head("NodeMetrics", {"name": self._node}), "usage": _usage(total)}

    def _head(self, kind: str, metadata: Json) -> Json:
        at = timestamp(self._usage_sampler.latest.at)
        return {
            "kind": kind,
            "apiVersion": GROUP_VERSION,
            "metadata": {**metadata, "creationTimestamp": at},
            "timestamp": at,
            "window": f"{max(1, round(self._usage_sampler.window or 0))}s",
        }


def registration(authority: str, *, service: tuple[str, str], port: int) -> Json:
    """Return the APIService that points to a Service (namespace, name). `authority` is base64."""
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
    return _status(404, "NotFound", "No metrics of that name yet.")


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
