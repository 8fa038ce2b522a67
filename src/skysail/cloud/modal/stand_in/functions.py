"""Functions of Apps: created by a deploy, published under their names, and found by them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import msgspec
from modal_proto import api_pb2

from skysail.cloud.modal.stand_in import ids, rules
from skysail.cloud.modal.stand_in.apps import App, AppStore, page
from skysail.cloud.modal.stand_in.dispatch import Call, CallLog, Handler
from skysail.cloud.modal.stand_in.errors import invalid, not_found
from skysail.cloud.modal.stand_in.prices import max_gpus

_MAX_CLUSTER = 32
_MAX_TIMEOUT = 24 * 3600
# Fields that the service honours and the stand-in cannot: a Function that sets one of them is refused.
_UNKNOWN_FIELDS = (
    "shared_volume_mounts",
    "proxy_id",
    "cloud_bucket_mounts",
    "s3_mounts",
    "is_class",
    "is_checkpointing_function",
    "batch_max_size",
    "schedule",
    "block_network",
    "function_serialized",
    "is_server",
)


class StoredFunction(msgspec.Struct, kw_only=True):
    """`definition` is None until the function is created; a deploy announces its functions first."""

    id: str
    name: str
    app_id: str
    input_formats: list[int]
    output_formats: list[int]
    definition: api_pb2.Function | None = None
    webhook: api_pb2.WebhookConfig | None = None
    url: str = ""


# Reserves the address of a web Function. Called before each deploy of it, with its App.
ReserveUrl = Callable[[StoredFunction, App], Awaitable[str]]
# Puts the functions of an App into service, as they are defined now.
OnPublish = Callable[[App], Awaitable[None]]


class FunctionStore:
    def __init__(self, apps: AppStore, log: CallLog) -> None:
        self._apps = apps
        self._log = log
        self._functions: dict[str, StoredFunction] = {}
        self.reserve_url: ReserveUrl = _no_url
        self.on_publish: list[OnPublish] = []

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "FunctionPrecreate": self._precreate,
            "FunctionCreate": self._create,
            "FunctionGet": self._get,
            "AppGetLayout": self._layout,
            "AppPublish": self._publish,
        }

    def find(self, function_id: str) -> StoredFunction:
        """Return a function of a live App. Raises NOT_FOUND or FAILED_PRECONDITION."""
        stored = self._functions.get(function_id)
        if stored is None:
            raise not_found(f"Function {function_id}")
        self._apps.live(stored.app_id)
        return stored

    def stored(self, function_id: str) -> StoredFunction:
        """Return a function that exists, also of a stopped App."""
        return self._functions[function_id]

    def layout(self, app: App) -> api_pb2.AppLayout:
        layout = api_pb2.AppLayout(function_ids=app.functions)
        for function_id in app.functions.values():
            layout.objects.add(
                object_id=function_id, function_handle_metadata=self._metadata(self._functions[function_id])
            )
        return layout

    async def _precreate(self, request: api_pb2.FunctionPrecreateRequest, _: Call) -> api_pb2.FunctionPrecreateResponse:
        app = self._apps.live(request.app_id)
        stored = self._functions.get(request.existing_function_id)
        if stored is None:
            stored = StoredFunction(
                id=ids.identifier("fu"),
                name=request.function_name,
                app_id=request.app_id,
                input_formats=list(request.supported_input_formats),
                output_formats=list(request.supported_output_formats),
            )
            self._functions[stored.id] = stored
        if request.webhook_config.type:
            stored.webhook = request.webhook_config
            stored.url = await self.reserve_url(stored, app)
        return api_pb2.FunctionPrecreateResponse(function_id=stored.id, handle_metadata=self._metadata(stored))

    async def _create(self, request: api_pb2.FunctionCreateRequest, _: Call) -> api_pb2.FunctionCreateResponse:
        ranked = request.function_data.ranked_functions
        definition = ranked[0].function if ranked else request.function
        stored = self.find(request.existing_function_id)
        self._check(definition, is_list=len(ranked) > 1)
        if definition.webhook_config.type and group_size(definition):
            raise invalid("Clustered Functions cannot be web Functions.")
        if stored.url:
            definition.web_url = stored.url
        stored.definition = definition
        return api_pb2.FunctionCreateResponse(
            function_id=stored.id,
            function=definition,
            handle_metadata=self._metadata(stored),
            function_data=_data(definition),
        )

    async def _get(self, request: api_pb2.FunctionGetRequest, _: Call) -> api_pb2.FunctionGetResponse:
        app = self._apps.deployed(request.app_name, request.environment_name)
        function_id = app.functions.get(request.object_tag) if app else None
        if function_id is None:
            raise not_found(f"Function '{request.object_tag}' of App '{request.app_name}'")
        stored = self._functions[function_id]
        assert stored.definition is not None, "a published function was created"
        return api_pb2.FunctionGetResponse(
            function_id=stored.id, handle_metadata=self._metadata(stored), function=_data(stored.definition)
        )

    async def _layout(self, request: api_pb2.AppGetLayoutRequest, _: Call) -> api_pb2.AppGetLayoutResponse:
        return api_pb2.AppGetLayoutResponse(app_layout=self.layout(self._apps.find(request.app_id)))

    async def _publish(self, request: api_pb2.AppPublishRequest, _: Call) -> api_pb2.AppPublishResponse:
        app = self._apps.live(request.app_id)
        rules.check_tags(request.tags)
        if request.name:
            rules.check_name(request.name, "App")
        for function_id in request.function_ids.values():
            self.find(function_id)
        app.name = request.name or app.name
        app.state = request.app_state or app.state
        app.functions = dict(request.function_ids)
        app.tags = dict(request.tags)
        app.tag = request.deployment_tag
        app.deployed = time.time()
        app.version += 1
        for publish in self.on_publish:
            await publish(app)
        return api_pb2.AppPublishResponse(url=page(app), deployed_at=app.deployed)

    def _check(self, definition: api_pb2.Function, *, is_list: bool) -> None:
        unknown = [field.name for field, _ in definition.ListFields() if field.name in _UNKNOWN_FIELDS]
        if definition.retry_policy.retries:
            unknown.append("retry_policy")
        if unknown:
            raise self._log.add_unknown(f"Function.{', Function.'.join(unknown)}")
        if definition.timeout_secs > _MAX_TIMEOUT:
            raise invalid(f"timeout must be at most {_MAX_TIMEOUT} seconds.")
        gpu = definition.resources.gpu_config
        rules.check_gpu(gpu)
        if (size := group_size(definition)) == 0:
            return
        if size > _MAX_CLUSTER:
            raise invalid(f"A cluster has at most {_MAX_CLUSTER} containers.")
        if is_list:
            raise invalid("Clustered Functions take no list of GPUs.")
        if gpu.count != max_gpus(gpu.gpu_type.upper()):
            raise invalid("Each container of a cluster must request all GPUs of its host, such as H100:8.")

    def _metadata(self, stored: StoredFunction) -> api_pb2.FunctionHandleMetadata:
        return api_pb2.FunctionHandleMetadata(
            function_name=stored.name,
            function_type=api_pb2.Function.FUNCTION_TYPE_FUNCTION,
            app_id=stored.app_id,
            web_url=stored.url,
            definition_id=stored.id.replace("fu-", "de-"),
            supported_input_formats=stored.input_formats,  # type: ignore[arg-type]
            supported_output_formats=stored.output_formats,  # type: ignore[arg-type]
        )


def group_size(definition: api_pb2.Function) -> int:
    """Return the number of containers of a clustered Function. 0 for other Functions."""
    return int(definition._experimental_group_size)  # noqa: SLF001 (the name of the field)


async def _no_url(_stored: StoredFunction, _app: App) -> str:
    return ""


def _data(definition: api_pb2.Function) -> api_pb2.FunctionData:
    data = api_pb2.FunctionData(
        module_name=definition.module_name,
        function_name=definition.function_name,
        autoscaler_settings=definition.autoscaler_settings,
        timeout_secs=definition.timeout_secs,
    )
    data.ranked_functions.add(rank=0).function.CopyFrom(definition)
    return data
