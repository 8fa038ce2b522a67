"""TLS servers of the operator: admission for the API server, progress reports for pods. They share one certificate."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable

from aiohttp import web

from skysail.app import training
from skysail.app.cluster_check import StartupError, missing_rbac
from skysail.base import clock
from skysail.base.settings import Settings
from skysail.kinds.modal_endpoints import webhook as modal_endpoints_webhook
from skysail.kinds.offload import resource_limits_webhook
from skysail.kinds.serving.admission import webhook as serving_webhook
from skysail.kinds.serving.spec.config import serving_config
from skysail.kinds.training.admission import webhook as training_webhook
from skysail.kube.admission import registration, server
from skysail.kube.admission.hooks import Hook
from skysail.kube.admission.registration import WebhookRegistrar
from skysail.kube.api.objects import Key
from skysail.kube.client.client import Client
from skysail.kube.client.errors import Forbidden, KubeError, NotFound

log = logging.getLogger(__name__)


class WebhookServer:
    """Serves admission on every replica. Only the leader, by `leads()`, registers the webhooks at the API server."""

    def __init__(self, client: Client, settings: Settings, leads: Callable[[], bool]) -> None:
        self._settings = settings
        self._leads = leads
        self._hooks: tuple[Hook, ...] = (
            *resource_limits_webhook.hooks(settings.nodes),
            *training_webhook.HOOKS,
            *modal_endpoints_webhook.HOOKS,
            *serving_webhook.hooks(serving_config(settings)),
        )
        self._registrar = WebhookRegistrar(
            client,
            secret=Key(settings.operator_namespace, registration.SECRET_NAME),
            webhook_address=_address(settings),
            names=_names(settings),
            now=clock.now,
        )

    def add(self, hooks: tuple[Hook, ...]) -> None:
        """Add webhooks. Call before the server starts."""
        self._hooks = (*self._hooks, *hooks)

    @property
    def is_enabled(self) -> bool:
        return self._settings.webhooks or training.is_progress_enabled(self._settings)

    @property
    def tls(self) -> ssl.SSLContext:
        return self._registrar.tls

    def authority(self) -> bytes:
        return self._registrar.ca_bundle

    def application(self) -> web.Application:
        """Return the admission server, which the API server calls."""
        return server.application(self._hooks)

    async def load_certificate(self) -> None:
        namespace = self._settings.operator_namespace
        try:
            await self._registrar.load_certificate()
        except Forbidden as error:
            raise missing_rbac(error) from error
        except NotFound as error:
            raise StartupError(
                f"Namespace {namespace} is missing ({error.message}): run `kubectl create namespace {namespace}`."
            ) from error
        except KubeError as error:
            raise StartupError(
                f"The webhook's Secret in {namespace} cannot be read or created: {error}. Try again."
            ) from error

    async def run(self) -> None:
        """Keep the certificate and the webhook registration current until cancelled."""
        await self._registrar.run(self._register)

    async def register(self) -> None:
        try:
            await self._register()
        except KubeError as error:
            log.warning("webhooks not registered, retried in a minute", extra={"why": str(error)})

    async def _register(self) -> None:
        if self._settings.webhooks and self._leads():
            excluded = ("kube-system", self._settings.operator_namespace)
            await self._registrar.register(self._hooks, server.NamespaceScope(self._settings.namespaces, excluded))


def _address(settings: Settings) -> server.WebhookAddress:
    if settings.webhook_host:
        return server.WebhookAddress(url=f"https://{settings.webhook_host}:{settings.webhook_port}")
    return server.WebhookAddress(service=(settings.operator_namespace, settings.webhook_service))


def _names(settings: Settings) -> tuple[str, ...]:
    return (f"{settings.webhook_service}.{settings.operator_namespace}.svc", training.host(settings))
