"""Client of RunPod's REST API v2. Every failure is an error of `cloud.errors`, whatever the answer contains.

No call is retried here, because only the caller knows whether a repetition could pay twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec
from yarl import URL

from skysail.base import untrusted_json
from skysail.base.errors import UserError
from skysail.base.untrusted_json import InvalidJson
from skysail.cloud.errors import Gone, OutcomeUnknown, ProviderError, Rejected, Throttled
from skysail.cloud.runpod import answers, api, event_stream
from skysail.cloud.runpod.rate_budget import DEFERRABLE, NORMAL, URGENT, RateBudget

DEFAULT_URL = "https://api.runpod.io"
USER_AGENT = "skysail/0.1 (+https://skysail.dev)"
MAX_BODY_BYTES = 102_400
_MAX_ANSWER_BYTES = 32 * 2**20
_CONNECT_SECONDS = 10.0
_CALL_SECONDS = 30.0
_CREATE_SECONDS = 60.0
# A stream without an event for a time between these two is opened again: a connection may be lost without notice. An
# ended container deletes its pod after 15 minutes, and its exit code has to be read before. Many streams must not be
# opened at the same time: they would take the quota from probes.
_MIN_SILENT_SECONDS = 300.0
_MAX_SILENT_SECONDS = 600.0
_MAX_PAGES = 100
# Number of earlier lines that a log stream may begin with. The service sends 100 if a request names none.
_MAX_LOG_TAIL = 5000
_UNIX = "unix:"
_SERVER_ERROR = 500
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


log = logging.getLogger(__name__)


class InvalidEndpoint(UserError):
    """The address of the API cannot be used; the message says why."""


class Endpoint(msgspec.Struct, frozen=True):
    """Address of the API: `https://…`, or `unix:/path` for a stand-in on this machine. `ca` is a private CA as PEM."""

    url: str = DEFAULT_URL
    ca: str = ""

    def __post_init__(self) -> None:
        """Refuse addresses over which the key would travel in plain text, and logins, which messages would quote."""
        if self.socket is not None:
            return
        parts = urlsplit(self.url)
        if "@" in parts.netloc:
            raise InvalidEndpoint(
                "RUNPOD_API_BASE_URL contains a user name or a password: remove them, because the API key is the login."
            )
        is_private = parts.scheme == "http" and parts.hostname in _LOOPBACK
        if parts.scheme != "https" and not is_private:
            raise InvalidEndpoint(
                f"RUNPOD_API_BASE_URL is {self.url!r}, over which the API key would travel unprotected: use an https "
                "address, or unix:/path of a stand-in."
            )

    @property
    def socket(self) -> Path | None:
        return Path(self.url.removeprefix(_UNIX)) if self.url.startswith(_UNIX) else None

    @property
    def is_stand_in(self) -> bool:
        return self.socket is not None or urlsplit(self.url).hostname in _LOOPBACK

    @property
    def base(self) -> str:
        """URL before the version; a Unix socket has a name that is never resolved."""
        base = "http://runpod" if self.socket else self.url.rstrip("/")
        return base.removesuffix("/v2")


class RunPodClient:
    """Client of one account. Must be created inside the running event loop, to which aiohttp's sessions belong.

    `key` returns the API key of the moment, so that a rotated key is used without a restart. Call `close` once.
    """

    def __init__(self, endpoint: Endpoint, key: Callable[[], str], *, clock: Callable[[], float] | None = None) -> None:
        self.endpoint = endpoint
        self._key = key
        self.budget = RateBudget(clock or asyncio.get_running_loop().time)
        self._folder: int | None = None
        # Through the proxy of the environment, except to a stand-in on this machine.
        is_proxied = endpoint.socket is None
        self._session = aiohttp.ClientSession(
            connector=self._connector(limit=20), auto_decompress=False, trust_env=is_proxied
        )
        # Streams have their own session without a connection limit, because each running pod keeps one open.
        self._streams = aiohttp.ClientSession(
            connector=self._connector(limit=0),
            auto_decompress=False,
            read_bufsize=event_stream.MAX_LINE_BYTES,
            trust_env=is_proxied,
        )

    async def close(self) -> None:
        await self._session.close()
        await self._streams.close()
        if self._folder is not None:
            os.close(self._folder)

    async def create_pod(self, body: api.CreatePod) -> api.Pod:
        """Create a pod.

        Raises `NoCapacity` if no machine is free, `Throttled` if the account cannot create anything now, `Rejected` if
        the request is wrong, and `OutcomeUnknown` if a pod may exist.
        """
        content = msgspec.json.encode(body)
        if len(content) > MAX_BODY_BYTES:
            raise Rejected(
                "TooLarge",
                f"Command, variables and files take {len(content)} bytes, and RunPod takes {MAX_BODY_BYTES}: put them "
                "into the image or onto a network volume.",
            )
        reply = await self._send("POST", "/pods", body=content, reserve=NORMAL, seconds=_CREATE_SECONDS)
        if reply.status != answers.CREATED:
            # The script contains the files of Secrets.
            raise answers.create_error(reply.without(*body.env.values(), *body.cmd[:1]))
        return _usable(reply.decode(api.Pod))

    async def delete_pod(self, pod: str) -> None:
        """Delete a pod and its container disk. Raises `Gone` if the service does not have it."""
        await self._expect("DELETE", f"/pods/{_quoted(pod)}", want=answers.NO_CONTENT, reserve=URGENT)

    async def get_pod(self, pod: str) -> api.Pod:
        """Raises `Gone` if the service does not have the pod. That is no proof shortly after its creation."""
        reply = await self._expect("GET", f"/pods/{_quoted(pod)}", reserve=NORMAL)
        found = _usable(reply.decode(api.Pod))
        if found.id != pod:
            raise OutcomeUnknown(f"RunPod answered with another pod than {pod}.")
        return found

    async def list_pods(self, *, reserve: int = URGENT) -> tuple[tuple[api.Pod, ...], bool]:
        """Return all pods of the account, and whether the list is complete and every pod could be decoded."""
        pods: dict[str, api.Pod] = {}
        cursor, is_complete = "", True
        for _ in range(_MAX_PAGES):
            query = {"cursor": cursor} if cursor else {}
            page = (await self._expect("GET", "/pods", query=query, reserve=reserve)).decode(api.PodPage)
            for raw in page.pods:
                pod = _decoded_pod(raw)
                is_complete = is_complete and pod is not None
                if pod is not None:
                    pods[pod.id] = pod
            if page.pagination is None or not page.pagination.has_next_page:
                return tuple(pods.values()), is_complete
            following = page.pagination.next_cursor or ""
            if following in {"", cursor}:
                break
            cursor = following
        return tuple(pods.values()), False

    async def gpu_types(self, cloud: str) -> tuple[api.GpuType, ...]:
        query = {"include": "AVAILABILITY", "product": "POD", "count": "1", "cloud": cloud}
        return (await self._expect("GET", "/catalog/gpus", query=query)).decode(api.GpuTypes).gpus

    async def cpu_types(self) -> tuple[api.CpuType, ...]:
        query = {"include": "AVAILABILITY", "product": "POD"}
        return (await self._expect("GET", "/catalog/cpus", query=query)).decode(api.CpuTypes).cpus

    async def registries(self, *, reserve: int = NORMAL) -> tuple[api.Registry, ...]:
        return (await self._expect("GET", "/registries", reserve=reserve)).decode(api.Registries).registries

    async def create_registry(self, body: api.CreateRegistry) -> api.Registry:
        reply = await self._send("POST", "/registries", body=msgspec.json.encode(body))
        if reply.status != answers.CREATED:
            raise answers.error(reply.without(body.username, body.password))
        return reply.decode(api.Registry)

    async def delete_registry(self, registry: str) -> None:
        await self._expect("DELETE", f"/registries/{_quoted(registry)}", want=answers.NO_CONTENT, reserve=DEFERRABLE)

    async def network_volumes(self) -> tuple[api.NetworkVolume, ...]:
        return (await self._expect("GET", "/network-volumes")).decode(api.NetworkVolumes).network_volumes

    async def billed(self, pod: str) -> float:
        """Return what the billing records show for a pod until now, in US dollars."""
        query = {"podId": pod, "bucketSize": "hour", "lastN": "1000"}
        records = (await self._expect("GET", "/billing/pods", query=query, reserve=DEFERRABLE)).decode(api.Billing)
        return round(sum(record.total_amount for record in records.records if record.pod_id == pod), 6)

    async def exec(self, pod: str, command: api.ExecCommand) -> api.ExecResult:
        """Run one command to its end. Raises `Gone` also where the API has no such call."""
        body = msgspec.json.encode(command)
        return (await self._expect("POST", f"/pods/{_quoted(pod)}/exec", body=body)).decode(api.ExecResult)

    async def logs(self, pod: str, *, since: float, last_event: str = "") -> AsyncIterator[api.LogEvent]:
        """Yield log events, continued after `last_event`, until the service ends the stream.

        Raises `Gone` if the service does not have the pod, `Throttled` if it asks to wait, and `OutcomeUnknown` if the
        stream breaks.
        """
        # A cursor wins over `since` and `tail`: without one, the service leaves out all but the last lines.
        cursor = last_event or api.timestamp(since)
        headers = self._headers() | {"Accept": "text/event-stream", "Last-Event-ID": cursor}
        await self.budget.acquire(DEFERRABLE)
        silent = random.uniform(_MIN_SILENT_SECONDS, _MAX_SILENT_SECONDS)  # noqa: S311 (spreads the load)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=silent)
        url = self._url(f"/pods/{_quoted(pod)}/logs", {"since": api.timestamp(since), "tail": str(_MAX_LOG_TAIL)})
        try:
            async with self._streams.get(url, headers=headers, timeout=timeout, allow_redirects=False) as response:
                self._observe(response)
                if response.status != answers.OK:
                    async with asyncio.timeout(_CALL_SECONDS):
                        reply = await self._read(response)
                    self._check_throttled(reply)
                    raise answers.error(reply)
                async for event in event_stream.read(response.content):
                    yield event
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise _no_answer(error) from error

    async def _expect(
        self,
        method: str,
        path: str,
        *,
        want: int = answers.OK,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        reserve: int = NORMAL,
    ) -> answers.Reply:
        reply = await self._send(method, path, query=query, body=body, reserve=reserve)
        if reply.status != want:
            raise answers.error(reply)
        return reply

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        reserve: int = NORMAL,
        seconds: float = _CALL_SECONDS,
    ) -> answers.Reply:
        await self.budget.acquire(reserve)
        headers = self._headers()
        if body is not None:
            headers["Content-Type"] = "application/json"
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=_CONNECT_SECONDS)
        url = self._url(path, query or {})
        try:
            async with self._session.request(
                method, url, headers=headers, data=body, timeout=timeout, allow_redirects=False
            ) as response:
                self._observe(response)
                reply = await self._read(response)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _Unreachable(f"RunPod cannot be reached at {self.endpoint.url}: {_name(error)}.") from error
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise _no_answer(error) from error
        self._check_throttled(reply)
        if reply.status >= _SERVER_ERROR:
            # The vendor's support asks for the id of the request.
            extra = {"call": f"{method} {path}", "status": reply.status, "request": reply.request_id}
            log.info("runpod answered with an error", extra=extra)
        return reply

    def _check_throttled(self, reply: answers.Reply) -> None:
        """Raise `Throttled` for a 429, and let all later calls wait as long as the service asks."""
        if reply.status == answers.TOO_MANY:
            wait = self.budget.throttled(reply.headers.get("retry-after", ""))
            raise Throttled(f"RunPod throttles this account for {wait:.0f} seconds.", wait)

    async def _read(self, response: aiohttp.ClientResponse) -> answers.Reply:
        """Read an answer of limited size, because a proxy may answer with anything. Its errors do not quote the key."""
        content = bytearray()
        async for chunk in response.content.iter_chunked(2**16):
            content += chunk
            if len(content) > _MAX_ANSWER_BYTES:
                raise OutcomeUnknown(f"RunPod answered with more than {_MAX_ANSWER_BYTES} bytes.")
        headers = {name.lower(): value for name, value in response.headers.items()}
        return answers.Reply(response.status, bytes(content), headers, secrets=(self._key(),))

    def _observe(self, response: aiohttp.ClientResponse) -> None:
        headers = response.headers
        self.budget.observe(headers.get("RateLimit", ""), headers.get("RateLimit-Policy", ""))

    def _headers(self) -> dict[str, str]:
        # A generic User-Agent is rejected by the service's proxy. Compressed answers could grow without limit.
        return {
            "Authorization": f"Bearer {self._key()}",
            "User-Agent": USER_AGENT,
            "Accept": "application/json",
            "Accept-Encoding": "identity",
        }

    def _url(self, path: str, query: Mapping[str, str]) -> URL:
        return URL(f"{self.endpoint.base}/v2{path}", encoded=True).with_query(dict(query))

    def _connector(self, limit: int) -> aiohttp.BaseConnector:
        path = self.endpoint.socket
        if path is not None:
            if self._folder is None:  # kept open for a short path: the kernel limits the length of a socket's path
                self._folder = _open_folder(path)
            return aiohttp.UnixConnector(f"/proc/self/fd/{self._folder}/{path.name}", limit=limit)
        context = ssl.create_default_context(cadata=self.endpoint.ca or None)
        return aiohttp.TCPConnector(ssl=context, limit=limit)


class _Unreachable(Throttled):
    """No connection was made, so nothing was executed."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 10.0)


def _open_folder(path: Path) -> int:
    try:
        return os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    except OSError as error:
        raise InvalidEndpoint(
            f"RUNPOD_API_BASE_URL names the socket {path}, whose folder cannot be opened ({error.strerror}): start the "
            "stand-in with `skysail dev runpod`, or correct the path."
        ) from error


def _decoded_pod(raw: msgspec.Raw) -> api.Pod | None:
    with contextlib.suppress(InvalidJson):
        pod = untrusted_json.decode(bytes(raw), api.Pod)
        return None if api.pod_problem(pod) else pod
    return None


def _usable(pod: api.Pod) -> api.Pod:
    problem = api.pod_problem(pod)
    if problem:
        raise OutcomeUnknown(f"RunPod answered with a pod that cannot be used: {problem}.")
    return pod


def _quoted(id_: str) -> str:
    """Return an id as part of a path. Raises `Gone` for a text that no id can be, such as one with a slash."""
    if not api.is_id(id_):
        raise Gone("RunPod has no object with such an id.")
    return quote(id_, safe="")


def _no_answer(error: Exception) -> ProviderError:
    return OutcomeUnknown(f"RunPod gave no usable answer: {_name(error)}.")


def _name(error: Exception) -> str:
    return str(error) or type(error).__name__
