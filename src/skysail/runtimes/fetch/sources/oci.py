"""Artifact or image in an OCI registry: `oci://registry/repository[:tag|@digest]`.

Artifacts (of ORAS and the CNCF model formats) are files with names in their annotations. The layers of an image are
unpacked over each other; the model is its folder `models`, or the whole image without such a folder. Keys of the
Secret: `OCI_USERNAME` and `OCI_PASSWORD`, or `.dockerconfigjson` as `kubectl create secret docker-registry` writes it.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Literal
from urllib.parse import urlencode

import msgspec
from aiohttp import ClientResponse

from skysail.runtimes.fetch import untrusted_json
from skysail.runtimes.fetch.errors import AccessDenied, InvalidArgument, InvalidContent, TransientError
from skysail.runtimes.fetch.network.http_client import ANSWERS, origin
from skysail.runtimes.fetch.network.uris import redact
from skysail.runtimes.fetch.sources.base import FileStream, SourceContext, SourceFile
from skysail.runtimes.fetch.sources.http import open_url

_FORM = re.compile(
    r"oci://(?P<host>[^/]+)/(?P<repository>[a-z0-9._/-]+?)(:(?P<tag>[\w.-]+))?(@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_TYPES = (
    "application/vnd.oci.image.manifest.v1+json,application/vnd.oci.image.index.v1+json,"
    "application/vnd.docker.distribution.manifest.v2+json,application/vnd.docker.distribution.manifest.list.v2+json"
)
_CNCF = "org.cncf.model.filepath"
_NAMES = ("org.opencontainers.image.title", _CNCF)
_UNPACK = "io.deis.oras.content.unpack"
_MAX_MANIFEST_BYTES = 4 * 2**20
_MAX_TOKEN_BYTES = 2**20
_SECONDS = 30.0
_UNAUTHORIZED = 401
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
# Host of Docker Hub's API, and names under which its credentials are stored.
_DOCKER = "registry-1.docker.io"
_DOCKER_NAMES = ("https://index.docker.io/v1/", "docker.io", "index.docker.io")


class _Platform(msgspec.Struct, frozen=True):
    os: str = ""
    architecture: str = ""


class _Descriptor(msgspec.Struct, frozen=True, rename="camel"):
    digest: str
    size: int
    media_type: str = ""
    annotations: dict[str, str] | None = None
    platform: _Platform | None = None

    @property
    def sha256(self) -> str:
        algorithm, _, value = self.digest.partition(":")
        if algorithm != "sha256":
            raise InvalidContent(
                "UnsupportedFormat", f"The registry uses {algorithm[:20]} digests: push the model with sha256."
            )
        return value


class _Manifest(msgspec.Struct, frozen=True):
    layers: tuple[_Descriptor, ...] = ()
    manifests: tuple[_Descriptor, ...] = ()


class _Login(msgspec.Struct, frozen=True):
    username: str = ""
    password: str = ""
    auth: str = ""

    @property
    def basic(self) -> str:
        return self.auth or b64encode(f"{self.username}:{self.password}".encode()).decode()


class _DockerConfig(msgspec.Struct, frozen=True):
    auths: dict[str, _Login]


class _Token(msgspec.Struct, frozen=True):
    token: str = ""
    access_token: str = ""


class OciSource:
    def __init__(self, uri: str, context: SourceContext) -> None:
        form = _FORM.fullmatch(uri)
        if form is None:
            raise InvalidArgument(
                "NotFound", f"{redact(uri)} is not an OCI address: write oci://registry/repository:tag."
            )
        self._uri = uri
        self._http = context.web
        self._host = _DOCKER if form["host"] in _DOCKER_NAMES else form["host"]
        self._repository: str = form["repository"]
        self._reference: str = form["digest"] or form["tag"] or "latest"
        self._login = _login(form["host"], context.secrets)
        self._secret: dict[str, str] = {}
        self._scheme: Literal["http", "https"] = "http" if context.secrets.get("OCI_PLAIN_HTTP") == "true" else "https"

    async def items(self) -> list[SourceFile]:
        manifest = await self._manifest(self._reference)
        if manifest.manifests:
            manifest = await self._manifest(_for_servers(manifest.manifests).digest)
        return [self._item(layer, number) for number, layer in enumerate(manifest.layers)]

    @asynccontextmanager
    async def open(self, source_file: SourceFile, start: int, mark: str) -> AsyncIterator[FileStream]:
        """Open a blob. It never changes under its digest, so the digest is its mark."""
        url = self._url(f"blobs/sha256:{source_file.sha256}")
        same = start if mark == source_file.sha256 else 0
        async with open_url(self._get, url, same, source_file.sha256, is_fixed=True) as file_stream:
            yield file_stream

    def _item(self, layer: _Descriptor, number: int) -> SourceFile:
        notes = layer.annotations or {}
        name = next((notes[key] for key in _NAMES if key in notes), "")
        is_packed = "tar" in layer.media_type if not name or _CNCF in notes else notes.get(_UNPACK) == "true"
        if is_packed and layer.media_type.endswith("zstd"):
            raise InvalidContent("UnsupportedFormat", f"{redact(self._uri)} has zstd layers: push it with gzip.")
        path = f"layer-{number:04}.tar" if is_packed or not name else name
        return SourceFile(path=path, key=layer.digest, size=layer.size, sha256=layer.sha256, layer=is_packed)

    async def _manifest(self, reference: str) -> _Manifest:
        async with self._get(self._url(f"manifests/{reference}"), {"Accept": _TYPES}) as answer:
            body = await _whole(answer, _MAX_MANIFEST_BYTES, redact(self._uri))
        if reference.startswith("sha256:") and hashlib.sha256(body).hexdigest() != reference.removeprefix("sha256:"):
            raise TransientError(
                "ServerError", f"The registry of {redact(self._uri)} sent a wrong manifest for {reference}."
            )
        try:
            return untrusted_json.decode(body, _Manifest)
        except untrusted_json.InvalidJson as error:
            raise InvalidContent(
                "UnsupportedFormat", f"{redact(self._uri)} has an invalid manifest: push it again."
            ) from error

    def _url(self, path: str) -> str:
        return f"{self._scheme}://{self._host}/v2/{self._repository}/{path}"

    @asynccontextmanager
    async def _get(self, url: str, headers: Mapping[str, str]) -> AsyncIterator[ClientResponse]:
        """Send a request. Log in when the registry requires it, also when a token has expired."""
        async with self._http.get(url, headers, secret=self._secret, accept=(*ANSWERS, _UNAUTHORIZED)) as answer:
            if answer.status != _UNAUTHORIZED:
                yield answer
                return
            self._object_to_strangers(url, str(answer.url))
            challenge = answer.headers.get("WWW-Authenticate", "")
        self._secret = await self._log_in(challenge)
        async with self._http.get(url, headers, secret=self._secret) as answer:
            yield answer

    def _object_to_strangers(self, asked: str, answered: str) -> None:
        """Reject a login at a redirect target: it must not get the password or name a token server."""
        if origin(asked) != origin(answered):
            raise AccessDenied(
                "AccessDenied",
                f"The registry of {redact(self._uri)} redirects to {redact(answered)}, which requires its own "
                "login: make"
                " the registry serve its files itself, or redirect to URLs without a login.",
            )

    async def _log_in(self, challenge: str) -> dict[str, str]:
        basic = {"Authorization": f"Basic {self._login.basic}"} if self._login else {}
        if not challenge.lower().startswith("bearer "):
            return basic
        asked = dict(_CHALLENGE.findall(challenge))
        realm = self._realm(asked.get("realm", ""))
        query = urlencode({"service": asked.get("service", ""), "scope": asked.get("scope", self._scope)})
        secret = basic if self._may_know(realm) else {}
        async with self._http.get(f"{realm}{query}", {}, secret=secret, accept=(200,)) as answer:
            body = await _whole(answer, _MAX_TOKEN_BYTES, redact(self._uri))
        return {"Authorization": f"Bearer {self._token(body)}"}

    def _realm(self, url: str) -> str:
        """Return the registry's token URL, ready for a query. The egress policy checks it later."""
        if url.partition("://")[0] not in {"https", self._scheme}:
            raise AccessDenied(
                "AddressForbidden",
                f"The registry of {redact(self._uri)} has its token server at {redact(url)}, which is not https: use a"
                " registry with an encrypted login.",
            )
        return url + ("&" if "?" in url else "?")

    def _token(self, body: bytes) -> str:
        try:
            reply = untrusted_json.decode(body, _Token)
        except untrusted_json.InvalidJson as error:
            raise TransientError("ServerError", f"The registry of {redact(self._uri)} returned no token.") from error
        token = reply.token or reply.access_token
        if not token.isascii() or not token.isprintable():
            raise TransientError("ServerError", f"The registry of {redact(self._uri)} returned an invalid token.")
        return token

    @property
    def _scope(self) -> str:
        return f"repository:{self._repository}:pull"

    def _may_know(self, realm: str) -> bool:
        """Return whether the token server may get the password: over https, or if it is the registry itself."""
        return realm.startswith(("https://", f"{self._scheme}://{self._host}/"))


async def _whole(answer: ClientResponse, limit: int, who: str) -> bytes:
    """Read a short answer of a registry, such as a manifest or token. Raises FetchError."""
    body = b""
    try:
        async with asyncio.timeout(_SECONDS):
            while more := await answer.content.read(limit + 1 - len(body)):
                body += more
    except TimeoutError as error:
        raise TransientError("Unreachable", f"The registry of {who} did not answer in time.") from error
    if len(body) > limit:
        raise InvalidContent(
            "TooLarge", f"The registry of {who} answered with more than {limit} bytes: check its address."
        )
    return body


def _login(host: str, secrets: Mapping[str, str]) -> _Login | None:
    if username := secrets.get("OCI_USERNAME"):
        return _Login(username, secrets.get("OCI_PASSWORD", ""))
    names = (host, f"https://{host}", *(_DOCKER_NAMES if host in _DOCKER_NAMES else ()))
    try:
        known = untrusted_json.decode(secrets.get(".dockerconfigjson", '{"auths":{}}'), _DockerConfig).auths
    except untrusted_json.InvalidJson as error:
        raise AccessDenied(
            "AccessDenied", ".dockerconfigjson in the Secret is invalid: create the Secret again."
        ) from error
    return next((known[name] for name in names if name in known), None)


def _for_servers(manifests: tuple[_Descriptor, ...]) -> _Descriptor:
    """Return the manifest to use. Models are the same on all platforms; "unknown" marks an attestation."""
    real = [
        descriptor for descriptor in manifests if descriptor.platform is None or descriptor.platform.os != "unknown"
    ]
    best = [descriptor for descriptor in real if descriptor.platform == _Platform("linux", "amd64")]
    return (best or real or list(manifests))[0]
