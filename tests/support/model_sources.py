"""Small real servers that models come from: files over HTTP, a bucket, a Hugging Face hub, an OCI registry.

They listen on loopback addresses, on several of them where a test needs another host. Faults are told to them by path.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
import ssl
import tarfile
from base64 import b64encode
from collections import defaultdict
from contextlib import asynccontextmanager, suppress
from xml.sax.saxutils import escape

from aiohttp import web

CHUNK = 64 * 1024


class Files:
    """Files by path, with ranges and marks. `cuts` (bytes after which a connection ends) and `statuses` are used up."""

    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.headers: dict[str, dict[str, str]] = defaultdict(dict)
        self.redirects: dict[str, str] = {}
        self.cuts: dict[str, list[int]] = defaultdict(list)
        self.statuses: dict[str, list[int]] = defaultdict(list)
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.has_ranges = True
        self.has_marks = True
        self.tells_length = True
        # Set by whoever wants a download to stop in the middle: `reached` is set when it has.
        self.hold_after: dict[str, int] = {}
        self.reached = asyncio.Event()
        self.released = asyncio.Event()

    def ranges_of(self, path: str) -> list[str | None]:
        return [headers.get("Range") for asked, headers in self.requests if asked == path]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.requests.append((path, dict(request.headers)))
        if self.statuses[path]:
            return web.Response(status=self.statuses[path].pop(0))
        if path in self.redirects:
            return web.Response(status=302, headers={"Location": self.redirects[path]})
        if path not in self.files:
            return web.Response(status=404)
        return await self.send(request, self.files[path], self.headers[path])

    async def send(self, request: web.Request, body: bytes, headers: dict[str, str]) -> web.StreamResponse:
        tag = f'"{hashlib.md5(body).hexdigest()}"'
        start = self._start(request, tag)
        if start and start >= len(body):
            return web.Response(status=416, headers={"Content-Range": f"bytes */{len(body)}"})
        answer = web.StreamResponse(status=206 if start else 200)
        if start:
            answer.headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        if self.has_marks:
            answer.headers["ETag"] = tag
            answer.headers["Last-Modified"] = "Mon, 16 Nov 2026 12:00:00 GMT"
        if self.tells_length:
            answer.headers["Content-Length"] = str(len(body) - start)
        else:
            answer.enable_chunked_encoding()
        answer.headers.update(headers)
        await answer.prepare(request)
        with suppress(ConnectionError):  # who asks may go at any time
            await self._write(request, answer, body[start:] if request.method != "HEAD" else b"")
        return answer

    def _start(self, request: web.Request, tag: str) -> int:
        asked = request.headers.get("Range", "")
        if not self.has_ranges or not asked or request.headers.get("If-Range", tag) != tag:
            return 0
        return int(asked.removeprefix("bytes=").partition("-")[0])

    async def _write(self, request: web.Request, answer: web.StreamResponse, body: bytes) -> None:
        # The head alone is asked for first, by a request that is not read on.
        cut = self.cuts[request.path].pop(0) if self.cuts[request.path] else len(body)
        hold = self.hold_after.get(request.path, len(body))
        for begin in range(0, len(body), CHUNK):
            if begin >= cut:
                break
            if begin >= hold:
                self.reached.set()
                await self.released.wait()
            await answer.write(body[begin : min(begin + CHUNK, cut)])
        if cut < len(body):
            assert request.transport is not None
            request.transport.abort()


class Bucket(Files):
    """Speaks S3, and as much of Google's XML as is the same. With a `key`, who does not sign with it is refused."""

    def __init__(self, name: str, key: str = ""):
        super().__init__()
        self.name = name
        self.key = key

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self.key and f"Credential={self.key}/" not in request.headers.get("Authorization", ""):
            self.requests.append((request.path, dict(request.headers)))
            return web.Response(status=403, text="<Error><Code>AccessDenied</Code></Error>")
        if request.path.rstrip("/") == f"/{self.name}":
            return self._listing(request.query.get("prefix", ""), request.query.get("continuation-token", ""))
        if not request.path.startswith(f"/{self.name}/"):
            return web.Response(status=404, text="<Error><Code>NoSuchBucket</Code></Error>")
        body = self.files.get(request.path, b"")
        wanted = request.headers.get("If-Match")
        if wanted and wanted != f'"{hashlib.md5(body).hexdigest()}"':
            return web.Response(status=412)
        return await super().handle(request)

    def _listing(self, prefix: str, after: str) -> web.Response:
        """Two at a time, so that listings have pages."""
        keys = sorted(path.removeprefix(f"/{self.name}/") for path in self.files)
        rest = [key for key in keys if key.startswith(prefix) and key > after]
        rows = "".join(map(self._row, rest[:2]))
        more = f"<NextContinuationToken>{escape(rest[1])}</NextContinuationToken>" if len(rest) > 2 else ""
        page = (
            f"<ListBucketResult><IsTruncated>{str(bool(more)).lower()}</IsTruncated>{more}"
            f"<Name>{self.name}</Name><KeyCount>{len(rest[:2])}</KeyCount>{rows}</ListBucketResult>"
        )
        return web.Response(text=page, content_type="application/xml")

    def _row(self, key: str) -> str:
        body = self.files[f"/{self.name}/{key}"]
        tag = hashlib.md5(body).hexdigest()
        return (
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-16T12:00:00.000Z</LastModified>"
            f"<ETag>&quot;{tag}&quot;</ETag><Size>{len(body)}</Size></Contents>"
        )


class Hub(Files):
    """One repository of a Hugging Face hub. Large files are sent from `cdn`, as the real one does."""

    def __init__(self, repository: str, token: str = ""):
        super().__init__()
        self.repository = repository
        self.token = token
        self.commit = hashlib.sha1(repository.encode()).hexdigest()
        self.cdn = ""
        self.repository_files: dict[str, bytes] = {}
        self.told_sha256: dict[str, str] = {}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            self.requests.append((request.path, dict(request.headers)))
            return web.Response(status=401, headers={"X-Error-Code": "GatedRepo"})
        if request.path == f"/api/models/{self.repository}/revision/main":
            self.requests.append((request.path, dict(request.headers)))
            return web.json_response(self._info())
        prefix = f"/{self.repository}/resolve/{self.commit}/"
        if request.path.startswith(prefix):
            name = request.path.removeprefix(prefix)
            if self.cdn:
                self.redirects[request.path] = f"{self.cdn}/{name}"
            elif name in self.repository_files:
                self.files[request.path] = self.repository_files[name]
        return await super().handle(request)

    def _info(self) -> dict:
        files = [
            {
                "rfilename": name,
                "size": len(body),
                "lfs": {"sha256": self._sha256(name), "size": len(body), "pointerSize": 1},
            }
            for name, body in self.repository_files.items()
        ]
        return {"id": self.repository, "modelId": self.repository, "sha": self.commit, "siblings": files}

    def _sha256(self, name: str) -> str:
        return self.told_sha256.get(name) or hashlib.sha256(self.repository_files[name]).hexdigest()


class Registry(Files):
    """An OCI registry. With a `login`, tokens are given to who knows it, at `realm` (its own address, if none)."""

    def __init__(self, login: str = ""):
        super().__init__()
        self.login = login
        self.realm = ""
        self.token = "the-token"

    def push(self, repository: str, tag: str, layers: list[tuple[bytes, str, dict[str, str]]]) -> str:
        """Layers are content, media type, annotations. Returns the digest."""
        rows = [
            {"digest": self.blob(repository, body), "size": len(body), "mediaType": kind, "annotations": notes}
            for body, kind, notes in layers
        ]
        return self.manifest(repository, tag, {"schemaVersion": 2, "layers": rows})

    def manifest(self, repository: str, tag: str, content: dict) -> str:
        body = json.dumps(content).encode()
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        for reference in (tag, digest):
            self.files[f"/v2/{repository}/manifests/{reference}"] = body
        return digest

    def blob(self, repository: str, body: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        self.files[f"/v2/{repository}/blobs/{digest}"] = body
        return digest

    async def handle(self, request: web.Request) -> web.StreamResponse:
        said = request.headers.get("Authorization", "")
        if request.path == "/token":
            self.requests.append((request.path, dict(request.headers)))
            is_known = said == f"Basic {b64encode(self.login.encode()).decode()}"
            return web.json_response({"token": self.token}) if is_known else web.Response(status=401)
        if self.login and said != f"Bearer {self.token}":
            self.requests.append((request.path, dict(request.headers)))
            realm = self.realm or f"http://{request.host}/token"
            return web.Response(status=401, headers={"WWW-Authenticate": f'Bearer realm="{realm}",service="test"'})
        return await super().handle(request)


@asynccontextmanager
async def serving(files: Files, host: str = "127.0.0.1", *, tls: ssl.SSLContext | None = None):
    """Its URL."""
    server = web.Server(files.handle)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, host, 0, ssl_context=tls)
    await site.start()
    try:
        yield f"{'https' if tls else 'http'}://{host}:{runner.addresses[0][1]}"
    finally:
        files.released.set()
        await runner.cleanup()


def tar_of(files: dict[str, bytes], *, members: list[tarfile.TarInfo] | None = None, packed: bool = True) -> bytes:
    """`members` are added after the files, without content."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, body in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
        for member in members or ():
            tar.addfile(member)
    return gzip.compress(made.getvalue(), mtime=0) if packed else made.getvalue()
