"""Apps: found by name while deployed, listed, tagged and stopped. A stopped App frees its name."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from google.protobuf.empty_pb2 import Empty
from modal_proto import api_pb2

from skysail.cloud.modal.stand_in import ids, rules
from skysail.cloud.modal.stand_in.dispatch import Call, Handler
from skysail.cloud.modal.stand_in.errors import conflict, not_found

_LIVE = (api_pb2.APP_STATE_DEPLOYED, api_pb2.APP_STATE_INITIALIZING, api_pb2.APP_STATE_EPHEMERAL)


class App(msgspec.Struct, kw_only=True):
    """`functions` are ids by name, as last published."""

    id: str
    name: str
    environment: str
    state: int
    created: float
    tags: dict[str, str] = {}
    functions: dict[str, str] = {}
    version: int = 0
    deployed: float = 0.0
    stopped: float = 0.0
    tag: str = ""

    @property
    def is_live(self) -> bool:
        return self.state in _LIVE


class AppStore:
    """`on_stop` ends everything that runs in an App."""

    def __init__(self) -> None:
        self.apps: dict[str, App] = {}
        self.on_stop: list[Callable[[App], Awaitable[None]]] = []

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "AppGetOrCreate": self._get_or_create,
            "AppGetByDeploymentName": self._by_name,
            "AppCreate": self._create,
            "AppList": self._list,
            "AppGetInfo": self._info,
            "AppGetTags": self._get_tags,
            "AppSetTags": self._set_tags,
            "AppHeartbeat": self._heartbeat,
            "AppClientDisconnect": self._disconnect,
            "AppStop": self._stop,
        }

    def find(self, app_id: str) -> App:
        """Return an App in any state. Raises NOT_FOUND."""
        app = self.apps.get(app_id)
        if app is None:
            raise not_found(f"App {app_id}")
        return app

    def live(self, app_id: str) -> App:
        """Return an App that can run something. Raises NOT_FOUND or FAILED_PRECONDITION."""
        app = self.find(app_id)
        if not app.is_live:
            raise conflict(f"App {app_id} is stopped.")
        return app

    def deployed(self, name: str, environment: str) -> App | None:
        for app in self.apps.values():
            if (app.name, app.environment, app.state) == (name, environment or "main", api_pb2.APP_STATE_DEPLOYED):
                return app
        return None

    def create(self, name: str, environment: str, state: int, tags: dict[str, str]) -> App:
        rules.check_tags(tags)
        app = App(
            id=ids.identifier("ap"),
            name=name,
            environment=environment or "main",
            state=state,
            created=time.time(),
            tags=tags,
        )
        self.apps[app.id] = app
        return app

    async def stop(self, app: App) -> None:
        app.state = api_pb2.APP_STATE_STOPPED
        app.stopped = time.time()
        for end_all in self.on_stop:
            await end_all(app)

    async def _get_or_create(self, request: api_pb2.AppGetOrCreateRequest, _: Call) -> api_pb2.AppGetOrCreateResponse:
        rules.check_name(request.app_name, "App")
        app = self.deployed(request.app_name, request.environment_name)
        if app is None:
            if request.object_creation_type != api_pb2.OBJECT_CREATION_TYPE_CREATE_IF_MISSING:
                raise not_found(f"App '{request.app_name}'")
            app = self.create(request.app_name, request.environment_name, api_pb2.APP_STATE_DEPLOYED, {})
            app.deployed = app.created
        return api_pb2.AppGetOrCreateResponse(app_id=app.id, handle_metadata=metadata(app))

    async def _by_name(
        self, request: api_pb2.AppGetByDeploymentNameRequest, _: Call
    ) -> api_pb2.AppGetByDeploymentNameResponse:
        app = self.deployed(request.name, request.environment_name)
        return api_pb2.AppGetByDeploymentNameResponse(app_id=app.id if app else "")

    async def _create(self, request: api_pb2.AppCreateRequest, _: Call) -> api_pb2.AppCreateResponse:
        app = self.create(request.description, request.environment_name, request.app_state, dict(request.tags))
        return api_pb2.AppCreateResponse(app_id=app.id, app_page_url=page(app), app_logs_url=page(app))

    async def _list(self, request: api_pb2.AppListRequest, _: Call) -> api_pb2.AppListResponse:
        reply = api_pb2.AppListResponse()
        for app in self.apps.values():
            if app.environment == (request.environment_name or "main"):
                reply.apps.add(
                    app_id=app.id,
                    description=app.name,
                    name=app.name,
                    state=_state(app),
                    created_at=app.created,
                    stopped_at=app.stopped,
                    metadata=metadata(app),
                )
        return reply

    async def _info(self, request: api_pb2.AppGetInfoRequest, _: Call) -> api_pb2.AppGetInfoResponse:
        return api_pb2.AppGetInfoResponse(info=metadata(self.find(request.app_id)))

    async def _get_tags(self, request: api_pb2.AppGetTagsRequest, _: Call) -> api_pb2.AppGetTagsResponse:
        return api_pb2.AppGetTagsResponse(tags=self.find(request.app_id).tags)

    async def _set_tags(self, request: api_pb2.AppSetTagsRequest, _: Call) -> Empty:
        rules.check_tags(request.tags)
        self.find(request.app_id).tags = dict(request.tags)
        return Empty()

    async def _heartbeat(self, request: api_pb2.AppHeartbeatRequest, _: Call) -> Empty:
        self.find(request.app_id)
        return Empty()

    async def _disconnect(self, request: api_pb2.AppClientDisconnectRequest, _: Call) -> Empty:
        """End an App whose client left before it was deployed. A deployed App stays."""
        app = self.find(request.app_id)
        if app.state != api_pb2.APP_STATE_DEPLOYED:
            await self.stop(app)
        return Empty()

    async def _stop(self, request: api_pb2.AppStopRequest, _: Call) -> Empty:
        await self.stop(self.find(request.app_id))
        return Empty()


def page(app: App) -> str:
    return f"https://modal.com/apps/stand-in/{app.environment}/{app.id}"


def metadata(app: App) -> api_pb2.AppHandleMetadata:
    lifecycle = api_pb2.AppLifecycle(
        app_state=_state(app),
        created_at=app.created,
        created_by="stand-in",
        deployed_at=app.deployed,
        version=app.version,
        stopped_at=app.stopped,
    )
    return api_pb2.AppHandleMetadata(
        description=app.name,
        app_id=app.id,
        environment_name=app.environment,
        lifecycle=lifecycle,
        functions=app.functions,
    )


def _state(app: App) -> Any:
    return app.state
