"""Control plane of sandboxes, both back ends: V1 with GPUs, V2 without."""

from __future__ import annotations

import functools
import ssl
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from google.protobuf.empty_pb2 import Empty
from grpclib import GRPCError
from modal_proto import api_pb2

from skysail.cloud.modal.stand_in import ids, prices, rules
from skysail.cloud.modal.stand_in.accounting import Accounting
from skysail.cloud.modal.stand_in.apps import App, AppStore
from skysail.cloud.modal.stand_in.dispatch import Call, CallLog, Handler
from skysail.cloud.modal.stand_in.errors import conflict, exists, invalid, not_found, unauthenticated
from skysail.cloud.modal.stand_in.images import ImageStore
from skysail.cloud.modal.stand_in.program import SandboxPrograms
from skysail.cloud.modal.stand_in.sandbox import Result, Sandbox, SandboxSpec
from skysail.cloud.modal.stand_in.secret_store import SecretStore
from skysail.cloud.modal.stand_in.tokens import TokenIssuer
from skysail.cloud.modal.stand_in.tunnels import Tunnels
from skysail.cloud.modal.stand_in.workspace import CLIENT


class SandboxOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds: until a sandbox is scheduled, and until listings show it. `page_size` is that of listings.

    `remembered` is the number of ended sandboxes that are kept.
    """

    start_delay: float = 0.0
    visibility_delay: float = 0.0
    page_size: int = 10
    remembered: int = 1000


class SandboxServiceDependencies(msgspec.Struct, frozen=True, kw_only=True):
    apps: AppStore
    images: ImageStore
    secrets: SecretStore
    programs: SandboxPrograms
    accounting: Accounting
    tokens: TokenIssuer
    log: CallLog
    tls: ssl.SSLContext
    report_port: Callable[[int], None]


class SandboxService:
    """All sandboxes of the account, also those that have ended. `router_url` is set when the router listens."""

    def __init__(self, deps: SandboxServiceDependencies, options: SandboxOptions) -> None:
        self.router_url = ""
        self.sandboxes: dict[str, Sandbox] = {}
        self._by_task: dict[str, Sandbox] = {}
        self._tunnels: dict[str, Tunnels] = {}
        self._deps = deps
        self._options = options
        self._last_created = 0.0
        deps.apps.on_stop.append(self._end_all)

    @property
    def handlers(self) -> dict[str, Handler]:
        both: dict[str, Any] = {
            "Wait": self._wait,
            "Terminate": self._terminate,
            "GetTaskId": self._task_id,
            "TagsGet": self._tags_get,
            "TagsSet": self._tags_set,
            "GetTunnels": self._get_tunnels,
            "CreateConnectToken": self._connect_token,
            "GetFromName": self._from_name,
        }
        found: dict[str, Handler] = {
            "SandboxCreate": functools.partial(self._create, 1),
            "SandboxCreateV2": functools.partial(self._create, 2),
            "SandboxList": functools.partial(self._list, 1),
            "SandboxListV2": functools.partial(self._list, 2),
            "SandboxSetName": self._set_name,
            "SandboxGetCommandRouterAccess": self._router_access,
            "TaskGetCommandRouterAccess": self._task_router_access,
        }
        for name, method in both.items():
            found[f"Sandbox{name}"] = functools.partial(method, 1)
            found[f"Sandbox{name}V2"] = functools.partial(method, 2)
        return found

    def by_task(self, task_id: str) -> Sandbox:
        """Return the sandbox of a task. Raises NOT_FOUND."""
        sandbox = self._by_task.get(task_id)
        if sandbox is None:
            raise not_found(f"Task {task_id}")
        return sandbox

    def find(self, sandbox_id: str, version: int) -> Sandbox:
        """Return a sandbox of this back end. Raises NOT_FOUND: no back end knows the sandboxes of the other one."""
        sandbox = self.sandboxes.get(sandbox_id)
        if sandbox is None or sandbox.spec.version != version:
            raise not_found(f"Sandbox {sandbox_id}")
        return sandbox

    async def close(self) -> None:
        for tunnels in self._tunnels.values():
            tunnels.close()
        for sandbox in self.sandboxes.values():
            await sandbox.close()

    async def _create(self, version: int, request: Any, call: Call) -> Any:
        tags = _tags(request.tags)
        try:
            sandbox = await self._made(version, request, tags, call)
        except GRPCError as error:
            self._deps.accounting.refuse(tags, error.message or "")
            raise
        metadata = api_pb2.SandboxHandleMetadata(app_id=sandbox.spec.app_id)
        if version == 1:
            return api_pb2.SandboxCreateResponse(sandbox_id=sandbox.spec.id, metadata=metadata)
        encrypted = [tunnel for tunnel in self._tunnels[sandbox.spec.id].data if tunnel.port]
        return api_pb2.SandboxCreateV2Response(
            sandbox_id=sandbox.spec.id,
            task_id=sandbox.spec.task_id,
            metadata=metadata,
            tunnels=encrypted,
            command_router_access=self._access(sandbox),
        )

    async def _made(self, version: int, request: Any, tags: dict[str, str], call: Call) -> Sandbox:
        definition, deps = request.definition, self._deps
        if version != 1:
            self._check_auth_token(call)
        self._check_fields(definition)
        rules.check_sandbox(definition, version)
        rules.check_tags(tags)
        app = deps.apps.live(request.app_id)
        self._check_name(definition.name, app)
        env = self._env(version, request)
        rules.check_variables(env)
        sandbox_id = ids.sandbox_id(version)
        program = deps.programs.program(sandbox_id, definition, deps.images.config(definition.image_id), env)
        spec = SandboxSpec(
            id=sandbox_id,
            version=version,
            task_id=ids.task_id(version),
            app_id=app.id,
            created=self._next_time(),
            visible_at=time.time() + self._visibility_delay(call),
            definition=definition,
            delay=self._options.start_delay,
            faults=call.faults,
        )
        regions = list(definition.scheduler_placement.regions)
        usd = prices.usd_per_hour(definition.resources, regions, is_sandbox=True)
        note = f"{app.name} {definition.name}".strip()
        deps.accounting.begin(
            sandbox_id, tags, usd=usd, seconds=float(definition.timeout_secs), regions=regions, note=note
        )
        sandbox = Sandbox(spec, program, deps.accounting, time.time)
        sandbox.tags = tags
        self.sandboxes[sandbox_id] = self._by_task[spec.task_id] = sandbox
        self._tunnels[sandbox_id] = Tunnels(sandbox, deps.tls, deps.report_port)
        await self._tunnels[sandbox_id].open()
        sandbox.launch(self._tunnels[sandbox_id].close)
        self._forget_oldest()
        return sandbox

    async def _wait(self, version: int, request: api_pb2.SandboxWaitRequest, _: Call) -> api_pb2.SandboxWaitResponse:
        sandbox = self.find(request.sandbox_id, version)
        if request.timeout > 0:
            await sandbox.until_ended(request.timeout)
        metadata = api_pb2.SandboxHandleMetadata(app_id=sandbox.spec.app_id)
        return api_pb2.SandboxWaitResponse(result=sandbox.result, metadata=metadata)

    async def _terminate(
        self, version: int, request: api_pb2.SandboxTerminateRequest, _: Call
    ) -> api_pb2.SandboxTerminateResponse:
        sandbox = self.find(request.sandbox_id, version)
        self._deps.accounting.record(sandbox.spec.id, "end asked")
        self._tunnels[sandbox.spec.id].close()
        await sandbox.end(Result.GENERIC_STATUS_TERMINATED, "Sandbox was terminated.")
        return api_pb2.SandboxTerminateResponse(existing_result=sandbox.result)

    async def _task_id(
        self, version: int, request: api_pb2.SandboxGetTaskIdRequest, _: Call
    ) -> api_pb2.SandboxGetTaskIdResponse:
        sandbox = self.find(request.sandbox_id, version)
        if request.timeout > 0:
            await sandbox.changes.until(lambda: sandbox.is_scheduled or not sandbox.is_running, request.timeout)
        is_known = sandbox.is_scheduled or version != 1
        return api_pb2.SandboxGetTaskIdResponse(
            task_id=sandbox.spec.task_id if is_known else "", task_result=sandbox.result
        )

    async def _tags_get(
        self, version: int, request: api_pb2.SandboxTagsGetRequest, _: Call
    ) -> api_pb2.SandboxTagsGetResponse:
        return api_pb2.SandboxTagsGetResponse(tags=_protos(self.find(request.sandbox_id, version).tags))

    async def _tags_set(self, version: int, request: api_pb2.SandboxTagsSetRequest, _: Call) -> Empty:
        sandbox, tags = self.find(request.sandbox_id, version), _tags(request.tags)
        rules.check_tags(tags)
        sandbox.tags = tags
        return Empty()

    async def _get_tunnels(
        self, version: int, request: api_pb2.SandboxGetTunnelsRequest, _: Call
    ) -> api_pb2.SandboxGetTunnelsResponse:
        sandbox = self.find(request.sandbox_id, version)
        if not await sandbox.changes.until(lambda: sandbox.is_scheduled or not sandbox.is_running, request.timeout):
            return api_pb2.SandboxGetTunnelsResponse(result=Result(status=Result.GENERIC_STATUS_TIMEOUT))
        success = Result(status=Result.GENERIC_STATUS_SUCCESS)
        return api_pb2.SandboxGetTunnelsResponse(result=success, tunnels=self._tunnels[sandbox.spec.id].data)

    async def _connect_token(
        self, version: int, request: api_pb2.SandboxCreateConnectTokenRequest, _: Call
    ) -> api_pb2.SandboxCreateConnectTokenResponse:
        sandbox = self.find(request.sandbox_id, version)
        if not sandbox.is_running:
            raise conflict(f"Sandbox {request.sandbox_id} has finished.")
        tunnels = self._tunnels[sandbox.spec.id]
        url, token = await tunnels.connect_token(request.port, request.user_metadata)
        return api_pb2.SandboxCreateConnectTokenResponse(url=url, token=token)

    async def _from_name(
        self, version: int, request: api_pb2.SandboxGetFromNameRequest, _: Call
    ) -> api_pb2.SandboxGetFromNameResponse:
        app = self._deps.apps.deployed(request.app_name, request.environment_name)
        named = [
            sandbox
            for sandbox in self.sandboxes.values()
            if app is not None
            and (sandbox.spec.app_id, sandbox.spec.name, sandbox.spec.version)
            == (app.id, request.sandbox_name, version)
            and (sandbox.is_running or request.include_terminated)
        ]
        if not named:
            raise not_found(f"Sandbox with name '{request.sandbox_name}' in App '{request.app_name}'")
        newest = max(named, key=lambda sandbox: sandbox.spec.created).spec
        metadata = api_pb2.SandboxHandleMetadata(app_id=newest.app_id)
        return api_pb2.SandboxGetFromNameResponse(sandbox_id=newest.id, metadata=metadata)

    async def _set_name(self, request: api_pb2.SandboxSetNameRequest, _: Call) -> Empty:
        sandbox = self.find(request.sandbox_id, 2)
        rules.check_name(request.name, "Sandbox")
        self._check_name(request.name, self._deps.apps.find(sandbox.spec.app_id))
        sandbox.spec.definition.name = request.name
        return Empty()

    async def _list(self, version: int, request: api_pb2.SandboxListRequest, _: Call) -> api_pb2.SandboxListResponse:
        """List one page, newest first. The V2 call lists the sandboxes of both back ends."""
        wanted, now = _tags(request.tags).items(), time.time()
        found = [
            sandbox
            for sandbox in self.sandboxes.values()
            if (version != 1 or sandbox.spec.version == 1)
            and (not request.app_id or sandbox.spec.app_id == request.app_id)
            and (request.include_finished or sandbox.is_running)
            and wanted <= sandbox.tags.items()
            and sandbox.spec.visible_at <= now
            and (not request.before_timestamp or sandbox.spec.created < request.before_timestamp)
        ]
        found.sort(key=lambda sandbox: -sandbox.spec.created)
        return api_pb2.SandboxListResponse(sandboxes=[_info(sandbox) for sandbox in found[: self._options.page_size]])

    async def _router_access(
        self, request: api_pb2.SandboxGetCommandRouterAccessRequest, call: Call
    ) -> api_pb2.SandboxGetCommandRouterAccessResponse:
        self._check_auth_token(call)
        sandbox = self.find(request.sandbox_id, 2) if request.sandbox_id else self.by_task(request.task_id)
        access = self._access(sandbox)
        return api_pb2.SandboxGetCommandRouterAccessResponse(url=access.url, jwt=access.jwt)

    async def _task_router_access(
        self, request: api_pb2.TaskGetCommandRouterAccessRequest, _: Call
    ) -> api_pb2.TaskGetCommandRouterAccessResponse:
        sandbox = self.by_task(request.task_id)
        if not sandbox.is_running:
            raise conflict(f"Task {request.task_id} has finished.")
        access = self._access(sandbox)
        return api_pb2.TaskGetCommandRouterAccessResponse(url=access.url, jwt=access.jwt)

    async def _end_all(self, app: App) -> None:
        for sandbox in list(self.sandboxes.values()):
            if sandbox.spec.app_id == app.id and sandbox.is_running:
                self._deps.accounting.record(sandbox.spec.id, "end asked", note="App stopped")
                await sandbox.end(Result.GENERIC_STATUS_TERMINATED, "App was stopped.")

    def _forget_oldest(self) -> None:
        """Forget sandboxes that ended long ago, with their logs. Dicts keep the order of creation."""
        ended = [sandbox for sandbox in self.sandboxes.values() if not sandbox.is_running]
        for sandbox in ended[: max(len(ended) - self._options.remembered, 0)]:
            del self.sandboxes[sandbox.spec.id], self._by_task[sandbox.spec.task_id], self._tunnels[sandbox.spec.id]

    def _access(self, sandbox: Sandbox) -> api_pb2.CommandRouterAccess:
        return api_pb2.CommandRouterAccess(url=self.router_url, jwt=self._deps.tokens.jwt(sandbox.spec.task_id))

    def _check_auth_token(self, call: Call) -> None:
        jwt = str(call.metadata.get("x-modal-auth-token", ""))
        if not jwt:
            raise unauthenticated(f"{call.rpc} needs an auth token.")
        self._deps.tokens.verify(jwt, CLIENT)

    def _check_fields(self, definition: api_pb2.Sandbox) -> None:
        unknown = [field.name for field, _ in definition.ListFields() if field.name in rules.UNKNOWN_FIELDS]
        if definition.network_access.network_access_type not in {
            api_pb2.NetworkAccess.UNSPECIFIED,
            api_pb2.NetworkAccess.OPEN,
        }:
            unknown.append("network_access")
        if unknown:
            raise self._deps.log.add_unknown(f"Sandbox.{', Sandbox.'.join(unknown)}")

    def _check_name(self, name: str, app: App) -> None:
        for sandbox in self.sandboxes.values():
            if name and sandbox.is_running and (sandbox.spec.app_id, sandbox.spec.name) == (app.id, name):
                raise exists(f"Sandbox with name '{name}' already exists in App '{app.name}'.")

    def _env(self, version: int, request: Any) -> dict[str, str]:
        if version != 1:
            if request.definition.secret_ids and not request.secret_sources:
                raise invalid("V2 Sandboxes take secrets from secret_sources.")
            return self._deps.secrets.from_sources(list(request.secret_sources))
        env: dict[str, str] = {}
        for secret_id in request.definition.secret_ids:
            env |= self._deps.secrets.values(secret_id)
        return env

    def _visibility_delay(self, call: Call) -> float:
        return max([self._options.visibility_delay, *(f.seconds for f in call.faults if f.kind == "hidden")])

    def _next_time(self) -> float:
        """Return the current time, but later than each earlier one: listings use it as their cursor."""
        self._last_created = max(time.time(), self._last_created + 1e-5)
        return self._last_created


def _tags(tags: Iterable[api_pb2.SandboxTag]) -> dict[str, str]:
    return {tag.tag_name: tag.tag_value for tag in tags}


def _protos(tags: dict[str, str]) -> list[api_pb2.SandboxTag]:
    return [api_pb2.SandboxTag(tag_name=name, tag_value=value) for name, value in tags.items()]


def _info(sandbox: Sandbox) -> api_pb2.SandboxInfo:
    spec = sandbox.spec
    info = api_pb2.SandboxInfo(
        id=spec.id,
        created_at=spec.created,
        app_id=spec.app_id,
        name=spec.name,
        tags=_protos(sandbox.tags),
        image_id=spec.definition.image_id,
        regions=list(spec.definition.scheduler_placement.regions),
        timeout_secs=spec.definition.timeout_secs,
        metadata=api_pb2.SandboxHandleMetadata(app_id=spec.app_id, result=sandbox.result),
    )
    if sandbox.is_scheduled:
        info.task_info.id = spec.task_id
    if sandbox.started is not None:
        info.task_info.started_at = sandbox.started
    if sandbox.result is not None:
        info.task_info.result.CopyFrom(sandbox.result)
    return info
