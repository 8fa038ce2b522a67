"""Progress server with Kubeflow Trainer's protocol: POST, bearer token, JSON, and a Status object on errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import msgspec
from aiohttp import web

from skysail.base.disconnects import tolerate_disconnects
from skysail.base.timestamps import timestamp
from skysail.kinds.training.api.training_job import TrainingJob
from skysail.kinds.training.caches import Caches
from skysail.kinds.training.children.progress_endpoint import path
from skysail.kinds.training.progress.auth import NotAuthorized, ReporterAuthenticator, StaleAttempt
from skysail.kinds.training.progress.report import InvalidReport, Report, parse, report
from skysail.kinds.training.progress.status_writer import JobGone, StatusWriter
from skysail.kube.api.objects import Key
from skysail.kube.client.errors import KubeError

_MAX_BODY_BYTES = 65536
# Twice the rate of a hundred workers that each report every five seconds.
_MAX_REPORTS = 400
_WINDOW_SECONDS = 10.0
_MAX_JOBS = 20_000
# Time for which the sender of a checkpoint waits: the write interval and a margin.
_WRITE_SECONDS = 25.0
_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Gone",
    413: "RequestEntityTooLarge",
    429: "TooManyRequests",
    503: "ServiceUnavailable",
}
_CODES: dict[type[Exception], int] = {InvalidReport: 400, NotAuthorized: 401, StaleAttempt: 409, JobGone: 410}
_SENTENCES = {
    404: "The path does not exist: send reports to KUBEFLOW_TRAINER_SERVER_URL unchanged.",
    405: "The method is not allowed: send reports by POST.",
    413: f"The report is larger than {_MAX_BODY_BYTES} bytes: send fewer or shorter metrics.",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ReportRateLimiter:
    """Rate limiter per job. `clock` is monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._counts: dict[str, tuple[float, int]] = {}

    def allows(self, uid: str) -> bool:
        now = self._clock()
        began, count = self._counts.get(uid, (now, 0))
        if now - began >= _WINDOW_SECONDS:
            began, count = now, 0
        self._counts.pop(uid, None)
        self._counts[uid] = (began, count + 1)
        if len(self._counts) > _MAX_JOBS:
            del self._counts[next(iter(self._counts))]
        return count < _MAX_REPORTS


class ProgressServer:
    """Request handler for reports. Runs on every replica."""

    def __init__(
        self,
        authenticator: ReporterAuthenticator,
        status_writer: StatusWriter,
        caches: Caches,
        *,
        report_rate_limiter: ReportRateLimiter,
        now: Callable[[], datetime],
    ) -> None:
        self._authenticator = authenticator
        self._status_writer = status_writer
        self._caches = caches
        self._report_rate_limiter = report_rate_limiter
        self._now = now

    def application(self) -> web.Application:
        app = web.Application(middlewares=[tolerate_disconnects, _as_status], client_max_size=_MAX_BODY_BYTES)
        app.router.add_post(_route(), self._take)
        return app

    async def _take(self, request: web.Request) -> web.Response:
        known = (self._caches.training, self._caches.jobs, self._caches.pods)
        if not self._status_writer.is_open or not all(cache.synced.is_set() for cache in known):
            return _refusal(503, "Skysail is starting or stopping. Report again in a few seconds.", retry_after=2)
        key = Key(request.match_info["namespace"], request.match_info["name"])
        try:
            job = await self._authenticator.check(key, request.headers.get("Authorization", ""))
            if not self._report_rate_limiter.allows(job.metadata.uid):
                sentence = f"TrainingJob {key} receives too many reports: send one every five seconds."
                return _refusal(429, sentence, retry_after=int(_WINDOW_SECONDS))
            request_body = parse(await request.read())
            await self._record(job, report(job, request_body, timestamp(self._now())))
        except (NotAuthorized, StaleAttempt, InvalidReport, JobGone) as error:
            return _refusal(_CODES[type(error)], str(error))
        except (KubeError, TimeoutError):
            return _refusal(503, "The API server did not answer in time. Report again in a few seconds.", retry_after=5)
        return _json(200, request_body)

    async def _record(self, job: TrainingJob, report: Report) -> None:
        """Record the report.

        A checkpoint is written before the reply, because the sender may then delete the previous one.
        """
        if report.checkpoint is None:
            self._status_writer.enqueue(job, report)
        else:
            await asyncio.wait_for(self._status_writer.write(job, report), _WRITE_SECONDS)


@web.middleware
async def _as_status(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer errors of the web framework with a Status object as well."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _refusal(error.status, _SENTENCES.get(error.status, error.reason))


def _route() -> str:
    return path(Key("NAMESPACE", "NAME")).replace("NAMESPACE", "{namespace}").replace("NAME", "{name}")


def _refusal(code: int, message: str, *, retry_after: int | None = None) -> web.Response:
    status = {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "message": message,
        "reason": _REASONS.get(code, "InternalError"),
        "code": code,
    }
    return _json(code, status, {} if retry_after is None else {"Retry-After": str(retry_after)})


def _json(code: int, body: Any, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=code, body=msgspec.json.encode(body), content_type="application/json", headers=headers)
