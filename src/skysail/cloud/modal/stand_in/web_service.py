"""Web Functions at the control plane: addresses, deployments, scaling, and tokens for their proxy."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator

import msgspec
from google.protobuf.empty_pb2 import Empty
from modal_proto import api_pb2

from skysail.cloud.modal.stand_in import ids, prices
from skysail.cloud.modal.stand_in.apps import App, AppStore
from skysail.cloud.modal.stand_in.container import FunctionContainer
from skysail.cloud.modal.stand_in.container_specs import ContainerSpecs
from skysail.cloud.modal.stand_in.dispatch import Call, Handler
from skysail.cloud.modal.stand_in.errors import invalid, not_found
from skysail.cloud.modal.stand_in.functions import FunctionStore, StoredFunction
from skysail.cloud.modal.stand_in.web_function import Version, WebDependencies, WebFunction
from skysail.cloud.modal.stand_in.web_gateway import WebGateway

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_MAX_CONTAINERS = 100


class WebServiceDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """`tokens` are the proxy tokens of the workspace, secrets by id."""

    apps: AppStore
    functions: FunctionStore
    specs: ContainerSpecs
    gateway: WebGateway
    tokens: dict[str, str]
    web: WebDependencies


class WebService:
    """All web Functions of the account, by function id. A label belongs to the Function that was deployed last."""

    def __init__(self, deps: WebServiceDependencies) -> None:
        self.functions: dict[str, WebFunction] = {}
        self._deps = deps
        self._labels: dict[str, str] = {}
        self._token_names: dict[str, tuple[str, float]] = {}
        deps.functions.reserve_url = self._reserve_url
        deps.functions.on_publish.append(self._publish)
        deps.apps.on_stop.append(self._stop)
        deps.gateway.find_function = self._by_label

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "FunctionUpdateSchedulingParams": self._update,
            "FunctionGetCurrentStats": self._stats,
            "WebhookTokenCreate": self._create_token,
            "WebhookTokenList": self._list_tokens,
            "WebhookTokenDelete": self._delete_token,
        }

    @property
    def has_room(self) -> bool:
        """Return whether the workspace may run one more container."""
        return sum(len(function.containers) for function in self.functions.values()) < _MAX_CONTAINERS

    def containers(self) -> Iterator[tuple[str, FunctionContainer]]:
        """Yield running containers with the id of their App."""
        for function in self.functions.values():
            for container in function.containers:
                if container.started is not None and container.ended is None:
                    yield function.app_id, container

    async def close(self) -> None:
        await self._deps.gateway.close()
        for function in self.functions.values():
            await function.close()

    async def _reserve_url(self, stored: StoredFunction, app: App) -> str:
        return await self._deps.gateway.url(_label(stored, app))

    def _by_label(self, label: str) -> WebFunction | None:
        return self.functions.get(self._labels.get(label, ""))

    async def _publish(self, app: App) -> None:
        """Put the web Functions of an App into service, and end those that it no longer has."""
        for function in [each for each in self.functions.values() if each.app_id == app.id]:
            if function.function_id not in app.functions.values():
                await self._end(function)
        for function_id in app.functions.values():
            stored = self._deps.functions.stored(function_id)
            if stored.webhook is None or stored.definition is None:
                continue
            version = self._version(stored, app)
            known = self.functions.get(function_id)
            if known is None:
                self.functions[function_id] = WebFunction(function_id, app.id, version, self._deps.web)
            else:
                known.publish(version)
            self._labels = {label: id_ for label, id_ in self._labels.items() if id_ != function_id}
            self._labels[_label(stored, app)] = function_id

    def _version(self, stored: StoredFunction, app: App) -> Version:
        definition = stored.definition
        assert definition is not None, "checked by the caller"
        regions = list(definition.scheduler_placement.regions)
        return Version(
            number=app.version,
            make=self._deps.specs.maker(stored, app),
            definition=definition,
            tags=dict(app.tags),
            usd=round(prices.usd_per_hour(definition.resources, regions, is_sandbox=False), 6),
        )

    async def _stop(self, app: App) -> None:
        for function in [each for each in self.functions.values() if each.app_id == app.id]:
            await self._end(function)

    async def _end(self, function: WebFunction) -> None:
        await function.stop()
        self.functions.pop(function.function_id, None)

    async def _update(
        self, request: api_pb2.FunctionUpdateSchedulingParamsRequest, _: Call
    ) -> api_pb2.FunctionUpdateSchedulingParamsResponse:
        function = self._find(request.function_id)
        new = request.settings
        if new.HasField("max_containers") and new.min_containers > new.max_containers > 0:
            raise invalid("min_containers is above max_containers.")
        return api_pb2.FunctionUpdateSchedulingParamsResponse(current_settings=function.update(new))

    async def _stats(self, request: api_pb2.FunctionGetCurrentStatsRequest, _: Call) -> api_pb2.FunctionStats:
        return self._find(request.function_id).stats()

    def _find(self, function_id: str) -> WebFunction:
        self._deps.functions.find(function_id)
        function = self.functions.get(function_id)
        if function is None:
            raise not_found(f"Web Function {function_id}")
        return function

    async def _create_token(self, request: api_pb2.WebhookTokenCreateRequest, _: Call) -> api_pb2.TokenCreateResponse:
        token_id, secret = ids.identifier("wk"), f"ws-{secrets.token_urlsafe(24)}"
        self._deps.tokens[token_id] = secret
        self._token_names[token_id] = (request.name, time.time())
        return api_pb2.TokenCreateResponse(token_id=token_id, token_secret=secret)

    async def _list_tokens(self, _request: object, _: Call) -> api_pb2.WebhookTokenListResponse:
        reply = api_pb2.WebhookTokenListResponse()
        for token_id, (name, created) in self._token_names.items():
            reply.tokens.add(token_id=token_id, name=name, created_at=created)
        return reply

    async def _delete_token(self, request: api_pb2.TokenDeleteRequest, _: Call) -> Empty:
        if self._deps.tokens.pop(request.token_id, None) is None:
            raise not_found(f"Proxy token {request.token_id}")
        del self._token_names[request.token_id]
        return Empty()


def _label(stored: StoredFunction, app: App) -> str:
    """Return the label of a web Function: the requested one, or App and Function. Raises INVALID_ARGUMENT."""
    assert stored.webhook is not None, "only web Functions have a label"
    requested = stored.webhook.requested_suffix
    if requested and not _LABEL.fullmatch(requested):
        raise invalid(f"Label {requested!r} must have at most 63 characters of a-z, 0-9 and '-'.")
    return requested or f"{app.name}-{stored.name}".lower().replace("_", "-").replace(".", "-")
