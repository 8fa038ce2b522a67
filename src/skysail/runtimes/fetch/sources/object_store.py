"""Objects of a bucket at S3 (or a compatible store) or Google Cloud Storage: one object, or all below a prefix.

Keys of the Secret have the names that the vendors' tools use: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
`AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT_URL`; `GOOGLE_SERVICE_ACCOUNT_KEY` (JSON) or `GOOGLE_BEARER_TOKEN`.
Without keys, the bucket is read anonymously: the credentials of the node are never used.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, PreconditionError, UnauthenticatedError
from obstore.store import GCSStore, S3Store

from skysail.runtimes.fetch.errors import AccessDenied, ContentChanged, FetchError, InvalidArgument, TransientError
from skysail.runtimes.fetch.network import tls
from skysail.runtimes.fetch.network.egress_proxy import EgressProxy
from skysail.runtimes.fetch.network.uris import redact
from skysail.runtimes.fetch.sources.base import CHUNK, MAX_FILES, FileStream, SourceContext, SourceFile, nothing

if TYPE_CHECKING:
    from obstore import ObjectMeta  # exists in the stubs only

_S3_KEYS = {
    "access_key_id": ("AWS_ACCESS_KEY_ID",),
    "secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
    "session_token": ("AWS_SESSION_TOKEN",),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
}
_GCS_KEYS = {
    "service_account_key": ("GOOGLE_SERVICE_ACCOUNT_KEY",),
    "bearer_token": ("GOOGLE_BEARER_TOKEN",),
    "base_url": ("GOOGLE_BASE_URL",),
}
_IDENTITIES = ("access_key_id", "service_account_key", "bearer_token")
_CLIENT_ERROR = re.compile(r"status code: (4\d\d)\b")
_PASSING = ("408", "425", "429")


class ObjectStoreSource:
    def __init__(self, uri: str, context: SourceContext) -> None:
        self._uri = uri
        self._egress_proxy = context.gate
        self._store = _store(uri, context)
        self._prefix = unquote(urlsplit(uri).path).lstrip("/")

    async def items(self) -> list[SourceFile]:
        with self._translate_errors():
            if self._prefix and not self._prefix.endswith("/"):
                try:
                    return [_item(await obstore.head_async(self._store, self._prefix), self._prefix.rpartition("/")[0])]
                except FileNotFoundError:
                    pass  # the prefix is a folder
            return await self._below()

    async def _below(self) -> list[SourceFile]:
        folder = self._prefix.rstrip("/")
        source_files: list[SourceFile] = []
        async for page in obstore.list(self._store, prefix=folder or None, chunk_size=1000):
            source_files += [_item(meta, folder) for meta in page]
            if len(source_files) > MAX_FILES:
                break  # the downloader rejects this many
        folders = {parent for source_file in source_files for parent in _parents(source_file.path)}
        return [source_file for source_file in source_files if source_file.size or source_file.path not in folders]

    @asynccontextmanager
    async def open(self, source_file: SourceFile, start: int, mark: str) -> AsyncIterator[FileStream]:
        """Open the object with the tag from the listing: the store rejects a request for changed content."""
        path, _, tag = source_file.key.rpartition("\0")
        start = start if mark == tag else 0
        if start and start == source_file.size:
            yield FileStream(chunks=nothing(), start=start, total=start, mark=tag)
            return
        options = {"if_match": tag or None, **({"range": {"offset": start}} if start else {})}
        with self._translate_errors():
            answer = await obstore.get_async(self._store, path, options=options)  # type: ignore[arg-type]  # a TypedDict
            chunks = self._chunks(answer.stream(min_chunk_size=CHUNK))
        yield FileStream(chunks=chunks, start=start, total=source_file.size, mark=tag)

    async def _chunks(self, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        with self._translate_errors():
            async for chunk in stream:
                yield bytes(chunk)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Translate errors of the library into ours."""
        self._egress_proxy.forget()
        try:
            yield
        except (BaseError, FileNotFoundError, ValueError) as error:
            raise self._egress_proxy.failure or _translated(error, self._uri) from error


def _store(uri: str, context: SourceContext) -> S3Store | GCSStore:
    parts = urlsplit(uri)
    config = _config(context.secrets, _S3_KEYS if parts.scheme == "s3" else _GCS_KEYS)
    place = config.get("endpoint") or config.get("base_url") or ""
    options = {**_client(context.gate), "allow_http": place.startswith("http://")}
    if own := context.secrets.get(tls.KEY):
        options["root_certificate"] = own
    kind: Any = S3Store if parts.scheme == "s3" else GCSStore
    try:
        return kind(parts.netloc, config=config, client_options=options, retry_config={"max_retries": 0})  # type: ignore[no-any-return]
    except (BaseError, ValueError) as error:
        raise AccessDenied(
            "AccessDenied", f"The credentials for {redact(uri)} are invalid: check the keys of the Secret."
        ) from error


def _client(egress_proxy: EgressProxy) -> dict[str, Any]:
    """Return client options. Retries and overall timeouts are ours."""
    return {
        "proxy_url": egress_proxy.url,
        "connect_timeout": timedelta(seconds=10),
        "read_timeout": timedelta(seconds=15),
        "timeout": timedelta(days=7),
        "user_agent": "skysail-fetch",
    }


def _config(secrets: Mapping[str, str], keys: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    found = {name: next((secrets[key] for key in names if secrets.get(key)), None) for name, names in keys.items()}
    config: dict[str, Any] = {name: value for name, value in found.items() if value is not None}
    if not any(name in config for name in _IDENTITIES):
        config["skip_signature"] = True
    return config


def _item(meta: ObjectMeta, folder: str) -> SourceFile:
    path = meta["path"].removeprefix(folder).lstrip("/")
    return SourceFile(path=path, key=f"{meta['path']}\0{meta['e_tag'] or ''}", size=meta["size"])


def _parents(path: str) -> list[str]:
    """Return the parent folders, including "".

    Tools that show buckets as folders create empty objects of these names.
    """
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts))]


def _translated(error: Exception, uri: str) -> FetchError:
    if isinstance(error, FileNotFoundError):
        return InvalidArgument("NotFound", f"{redact(uri)} does not exist: check bucket and path.")
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return AccessDenied(
            "AccessDenied",
            f"{redact(uri)} is not readable: put keys with read access into the Secret of `credentialsSecret`.",
        )
    if isinstance(error, PreconditionError):
        return ContentChanged(redact(uri))
    if "certificate" in str(error).lower():
        return tls.untrusted(f"The store of {redact(uri)}")
    status = _CLIENT_ERROR.search(str(error))
    if status and status[1] not in _PASSING:
        return InvalidArgument(
            "NotFound", f"The store answered {status[1]} for {redact(uri)}: check bucket, region and endpoint."
        )
    return TransientError("ServerError", f"The store of {redact(uri)} is unavailable.")
