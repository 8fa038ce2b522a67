"""The admission server: answers the API server's admission reviews with pure functions.

Every replica serves it over TLS. A mutating hook fails open: an operator that is down must not block any pod.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from aiohttp import web

from skysail.base import untrusted_json
from skysail.base.disconnects import tolerate_disconnects
from skysail.kube.admission.hooks import AdmissionResponse, Hook
from skysail.kube.api.resources import MUTATING_WEBHOOK

_MAX_REVIEW_BYTES = 8 * 2**20
_TIMEOUT_SECONDS = 5

Manifest = dict[str, Any]

log = logging.getLogger(__name__)


class WebhookAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Address at which the API server reaches us: a Service in a cluster, a URL on one machine."""

    service: tuple[str, str] | None = None
    url: str | None = None

    def client_config(self, path: str, ca_bundle: bytes) -> Manifest:
        bundle = base64.b64encode(ca_bundle).decode()
        if self.service:
            namespace, name = self.service
            return {"service": {"namespace": namespace, "name": name, "path": path}, "caBundle": bundle}
        return {"url": f"{self.url}{path}", "caBundle": bundle}


class _Request(msgspec.Struct):
    uid: str
    namespace: str = ""
    object: Any = None
    old_object: Any = msgspec.field(default=None, name="oldObject")


class _Review(msgspec.Struct):
    request: _Request


class NamespaceScope(msgspec.Struct, frozen=True):
    """Namespaces whose objects are reviewed: those in `only`; if it is empty, all except `excluded`."""

    only: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()

    def selector(self) -> Manifest:
        operator, names = ("In", self.only) if self.only else ("NotIn", self.excluded)
        expression = {"key": "kubernetes.io/metadata.name", "operator": operator, "values": sorted(names)}
        return {"matchExpressions": [expression]}


def configuration(
    name: str, hooks: Iterable[Hook], webhook_address: WebhookAddress, ca_bundle: bytes, namespace_scope: NamespaceScope
) -> Manifest:
    """Return the MutatingWebhookConfiguration for these hooks."""
    return {
        "apiVersion": MUTATING_WEBHOOK.api_version,
        "kind": MUTATING_WEBHOOK.kind,
        "metadata": {"name": name},
        "webhooks": [
            {
                "name": f"{hook.name}.skysail.dev",
                "admissionReviewVersions": ["v1"],
                "clientConfig": webhook_address.client_config(hook.path, ca_bundle),
                "failurePolicy": "Ignore",
                "matchConditions": [{"name": title, "expression": cel} for title, cel in hook.match_conditions],
                "matchPolicy": "Equivalent",
                "namespaceSelector": namespace_scope.selector(),
                "reinvocationPolicy": "IfNeeded",
                "rules": list(hook.rules),
                "sideEffects": "None",
                "timeoutSeconds": _TIMEOUT_SECONDS,
            }
            for hook in hooks
        ],
    }


def application(hooks: Iterable[Hook]) -> web.Application:
    """Return the HTTP application, with one route per hook."""
    app = web.Application(client_max_size=_MAX_REVIEW_BYTES, middlewares=[tolerate_disconnects])
    for hook in hooks:
        app.router.add_post(hook.path, _handler(hook))
    return app


def _handler(hook: Hook) -> Callable[[web.Request], Any]:
    async def handle(request: web.Request) -> web.Response:
        try:
            review = untrusted_json.decode(await request.read(), _Review)
        except untrusted_json.InvalidJson as error:
            return web.json_response({"message": f"The body is not an AdmissionReview: {error}."}, status=400)
        object_ = _with_namespace(review.request)
        admit = hook.admit if hook.observe is None else await hook.observe(object_)
        admission_response = admit(object_, review.request.old_object)
        return web.Response(
            body=msgspec.json.encode(_answer(review.request.uid, admission_response)), content_type="application/json"
        )

    return handle


def _with_namespace(request: _Request) -> Manifest:
    """Return the object with its namespace, which a new object need not have."""
    object_ = request.object or {}
    if not request.namespace:
        return object_
    return {**object_, "metadata": {"namespace": request.namespace, **(object_.get("metadata") or {})}}


def _answer(uid: str, admission_response: AdmissionResponse) -> Manifest:
    response: Manifest = {"uid": uid, "allowed": admission_response.denied is None}
    if admission_response.denied is not None:
        response["status"] = {"code": 422, "reason": "Invalid", "message": admission_response.denied}
    if admission_response.warnings:
        response["warnings"] = list(admission_response.warnings)
    if admission_response.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(admission_response.patch)).decode()
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
