"""HTTP server of the stand-in. It listens on a Unix socket or over TLS only: requests carry keys and secrets."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web

from skysail.base.disconnects import tolerate_disconnects
from skysail.cloud.errors import ProviderError
from skysail.cloud.runpod import api
from skysail.cloud.runpod.stand_in import proxy, replies, validation
from skysail.cloud.runpod.stand_in.catalogue import DATA_CENTERS
from skysail.cloud.runpod.stand_in.faults import Fault, Operation
from skysail.cloud.runpod.stand_in.pod_record import PodRecord
from skysail.cloud.runpod.stand_in.quota import Quota
from skysail.cloud.runpod.stand_in.replies import RawAnswer
from skysail.cloud.runpod.stand_in.service import StandInService
from skysail.cloud.runpod.stand_in.validation import Refusal

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_PROXY_PAGE = "<html><title>Access denied</title><body>error code: 1010</body></html>"
_GENERIC_AGENTS = ("python-", "aiohttp")
_REFUSALS = {
    "400": "the request cannot be served",
    "401": "invalid api key",
    "402": "insufficient balance",
    "404": "pod not found",
}


class StandInServer:
    """The API of one service, with the quota of one user. `key` is the API key of its account."""

    def __init__(self, service: StandInService, key: str) -> None:
        self.service = service
        self.requests: list[str] = []
        self._key = key
        self._quota = Quota(service.options.quota, service.now)
        self._runners: list[web.AppRunner] = []

    async def start(self, listener: socket.socket) -> None:
        """Serve a listening Unix socket."""
        await web.SockSite(await self._runner(), listener).start()

    async def listen_tls(self, host: str, port: int, context: ssl.SSLContext) -> int:
        """Listen over TLS and return the port."""
        runner = await self._runner()
        await web.TCPSite(runner, host, port, ssl_context=context).start()
        return int(runner.addresses[0][1])

    async def close(self) -> None:
        for runner in self._runners:
            await runner.cleanup()
        await self.service.close()

    def set_key(self, key: str) -> None:
        """Replace the key of the account, as its user does."""
        self._key = key

    async def _runner(self) -> web.AppRunner:
        app = web.Application(client_max_size=16 * 2**20, middlewares=[tolerate_disconnects, self._answer])
        app.on_response_prepare.append(_name_request)
        routes: tuple[tuple[str, str, Handler], ...] = (
            ("POST", "/v2/pods", self._create),
            ("GET", "/v2/pods", self._list),
            ("GET", "/v2/pods/{id}", self._get),
            ("DELETE", "/v2/pods/{id}", self._delete),
            ("GET", "/v2/pods/{id}/logs", self._logs),
            ("POST", "/v2/pods/{id}/action", self._action),
            ("POST", "/v2/pods/{id}/exec", self._exec),
            ("GET", "/v2/catalog/gpus", self._gpus),
            ("GET", "/v2/catalog/cpus", self._cpus),
            ("GET", "/v2/catalog/datacenters", self._centers),
            ("GET", "/v2/registries", self._registries),
            ("POST", "/v2/registries", self._add_registry),
            ("DELETE", "/v2/registries/{id}", self._delete_registry),
            ("GET", "/v2/network-volumes", self._volumes),
            ("POST", "/v2/network-volumes", self._add_volume),
            ("GET", "/v2/billing/pods", self._billing),
        )
        for method, path, handler in routes:
            app.router.add_route(method, path, handler)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
        await runner.setup()
        self._runners.append(runner)
        return runner

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Authenticate, count and answer a request. Every refusal is a problem of the documented form."""
        if target := proxy.target(request.host):
            return await proxy.forward(request, self.service, *target)
        self.requests.append(f"{request.method} {request.path}")
        try:
            return await self._admit(request, handler)
        except RawAnswer as raw:
            return raw.response
        except Refusal as refusal:
            return replies.problem(refusal, self._quota.headers())
        except web.HTTPException as error:
            return replies.problem(Refusal(error.status, error.reason), self._quota.headers())
        except ProviderError as error:
            return replies.problem(Refusal(409, str(error)), self._quota.headers())

    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.headers.get("User-Agent", "").lower().startswith(_GENERIC_AGENTS):
            return web.Response(status=403, text=_PROXY_PAGE, content_type="text/html")
        pod = self._caller(request)
        if pod is not None and request.match_info.get("id") != pod:
            raise Refusal(403, "this key is limited to its pod")
        retry_after = self._quota.take()
        if retry_after:
            raise Refusal(429, "rate limit exceeded", (str(retry_after),))
        response = await handler(request)
        if not response.prepared:
            response.headers.update(self._quota.headers())
        return response

    def _caller(self, request: web.Request) -> str | None:
        """Return the pod whose key the caller has, or None for the key of the account."""
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if hmac.compare_digest(given, f"Bearer {self._key}".encode()):
            return None
        for pod in self.service.pods.values():
            if hmac.compare_digest(given, f"Bearer {pod.key}".encode()):
                return pod.id
        raise Refusal(401, "invalid api key")

    async def _create(self, request: web.Request) -> web.Response:
        fault = await self._faulty("create", request)
        body = validation.decode(await replies.body(request), api.CreatePod)
        if fault.what == "slow-done":
            pod = await asyncio.shield(self._created_late(body, fault))
        else:
            pod = self.service.create(body, fault)
        return await replies.after(request, fault, replies.json(pod.to_json(), 201))

    async def _created_late(self, body: api.CreatePod, fault: Fault) -> PodRecord:
        await asyncio.sleep(fault.seconds)
        return self.service.create(body, fault)

    async def _list(self, request: web.Request) -> web.Response:
        fault = await self._faulty("list", request)
        rows = [] if fault.what == "empty" else [_pod_json(pod, fault) for pod in self.service.listed()]
        if fault.what == "partial":
            page = {"hasNextPage": not request.query.get("cursor"), "nextCursor": "2"}
            return replies.json({"pods": rows[1::2] if page["hasNextPage"] else [], "pagination": page})
        return replies.json({"pods": rows})

    async def _get(self, request: web.Request) -> web.Response:
        fault = await self._faulty("get", request)
        return replies.json(_pod_json(self.service.find(replies.pod_id(request)), fault))

    async def _delete(self, request: web.Request) -> web.Response:
        fault = await self._faulty("delete", request)
        pod = self.service.find(replies.pod_id(request))
        await self.service.terminate(pod.id)
        return await replies.after(request, fault, web.Response(status=204))

    async def _action(self, request: web.Request) -> web.Response:
        action = validation.decode(await replies.body(request), api.PodAction).action
        pod = self.service.find(replies.pod_id(request))
        allowed = pod.to_json()["actions"]
        if not isinstance(allowed, list) or action not in allowed:
            raise Refusal(409, f"{action} is not allowed in status {pod.status}")
        if action == "terminate":
            await self.service.terminate(pod.id)
        elif action == "stop":
            await self.service.stop(pod.id)
        else:
            raise Refusal(400, f"the stand-in does not {action} pods")
        return replies.json(pod.to_json())

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        fault = await self._faulty("logs", request)
        pod, source = self.service.find(replies.pod_id(request)), request.query.get("source")
        if source not in {None, "container", "system"}:
            raise Refusal(400, "unknown log source")
        start = replies.start_of_log(request, pod.log)
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers | self._quota.headers())
        await response.prepare(request)
        sent = 0
        async for entry in pod.log.read(start):
            if source in {None, entry.source}:
                await response.write(f"id: {entry.id}\ndata: ".encode() + replies.log_line(entry) + b"\n\n")
                sent += 1
            if fault.what == "cut" and sent >= fault.lines:
                replies.abort(request)
                return response
            if fault.what == "silent" and sent >= fault.lines:
                await asyncio.Event().wait()  # until the client disconnects
        return response

    async def _exec(self, request: web.Request) -> web.Response:
        await self._faulty("exec", request)
        if not self.service.options.has_exec:
            raise Refusal(404, "not found")
        command = validation.decode(await replies.body(request), api.ExecCommand)
        validation.check_exec(command)
        pod = self.service.find(replies.pod_id(request))
        if pod.status != "RUNNING":
            raise Refusal(409, "pod is not running")
        return replies.json(await replies.executed(await pod.exec(command), command.timeout_seconds))

    async def _gpus(self, request: web.Request) -> web.Response:
        fault = await self._faulty("catalogue", request)
        cloud, with_stock = request.query.get("cloud", "SECURE"), replies.with_stock(request)
        count = int(request.query.get("count", "1"))
        rows = self.service.catalogue.gpu_rows(cloud, with_stock=with_stock, count=count)
        if fault.what == "sold-out":
            rows = [row | {"availability": "NONE", "dataCenters": []} for row in rows]
        return replies.json({"gpus": rows})

    async def _cpus(self, request: web.Request) -> web.Response:
        await self._faulty("catalogue", request)
        return replies.json({"cpus": self.service.catalogue.cpu_rows(with_stock=replies.with_stock(request))})

    async def _centers(self, request: web.Request) -> web.Response:  # noqa: ARG002 (a handler of aiohttp)
        rows = [
            {"id": id_, "name": id_, "region": "EU", "networkVolumeTypes": [], "compliance": [], "globalNetwork": False}
            for id_ in DATA_CENTERS
        ]
        return replies.json({"dataCenters": rows})

    async def _registries(self, request: web.Request) -> web.Response:
        await self._faulty("registries", request)
        return replies.json(
            {"registries": [{"id": row.id, "name": row.name} for row in self.service.registries.values()]}
        )

    async def _add_registry(self, request: web.Request) -> web.Response:
        fault = await self._faulty("registries", request)
        row = self.service.add_registry(validation.decode(await replies.body(request), api.CreateRegistry))
        return await replies.after(request, fault, replies.json({"id": row.id, "name": row.name}, 201))

    async def _delete_registry(self, request: web.Request) -> web.Response:
        self.service.delete_registry(replies.pod_id(request))
        return web.Response(status=204)

    async def _volumes(self, request: web.Request) -> web.Response:
        await self._faulty("volumes", request)
        return replies.json({"networkVolumes": list(self.service.volumes.values())})

    async def _add_volume(self, request: web.Request) -> web.Response:
        body = validation.decode(await replies.body(request), api.CreateVolume)
        if not 10 <= body.size <= 4096 or body.data_center not in DATA_CENTERS:  # noqa: PLR2004 (limits of the service)
            raise Refusal(422, "request validation failed", ("$.size: from 10 to 4096",))
        return replies.json(self.service.add_volume(body.name, body.size, body.data_center), 201)

    async def _billing(self, request: web.Request) -> web.Response:
        await self._faulty("billing", request)
        id_ = request.query.get("podId", "")
        amount = self.service.billed(id_)
        record = {"podId": id_, "totalAmount": amount, "gpuAmount": amount, "cpuAmount": 0, "diskAmount": 0}
        return replies.json({"records": [record] if amount else [], "metadata": {"recordCount": 1 if amount else 0}})

    async def _faulty(self, on: Operation, request: web.Request) -> Fault:
        """Return the fault of this call. Faults before anything is done are answered here."""
        fault = self.service.faults.next_fault(on)
        match fault.what:
            case "500":
                raise Refusal(500, "internal error")
            case "400" | "401" | "402" | "404":
                raise Refusal(int(fault.what), _REFUSALS[fault.what])
            case "429":
                raise Refusal(429, "rate limit exceeded", (str(int(fault.seconds)),))
            case "proxy-403":
                raise RawAnswer(web.Response(status=403, text=_PROXY_PAGE, content_type="text/html"))
            case "redirect":
                raise RawAnswer(web.Response(status=307, headers={"Location": "https://example.test/v2/pods"}))
            case "lost":
                replies.abort(request)
                raise RawAnswer(web.Response())
        return fault


async def _name_request(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["x-request-id"] = secrets.token_hex(8)


def _pod_json(pod: PodRecord, fault: Fault) -> dict[str, object]:
    return pod.to_json() | ({"name": "pod", "env": {}} if fault.what == "unmarked" else {})
