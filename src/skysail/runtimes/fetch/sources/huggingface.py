"""Repository of the Hugging Face hub, or a file or folder in it: `hf://org/name[@revision][/path]`.

The hub's library lists the files of a revision. They are downloaded like any other URL, so that limits, resuming and
the egress policy are the same for all sources. Keys of the Secret: `HF_TOKEN`, and `HF_ENDPOINT` for a private hub.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import unquote

import msgspec

from skysail.runtimes.fetch.errors import AccessDenied, FetchError, InvalidArgument, TransientError
from skysail.runtimes.fetch.network import blocking, tls
from skysail.runtimes.fetch.network.uris import redact
from skysail.runtimes.fetch.sources.base import FileStream, SourceContext, SourceFile
from skysail.runtimes.fetch.sources.http import open_url

_FORM = re.compile(r"hf://(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[^/]+))?(/(?P<path>.*))?")
_PUBLIC = "https://huggingface.co"
_SECONDS = 10.0
_NOT_FOUND = 404
_TOO_MANY = 429
_SERVER_ERROR = 500
# Errors that the library raises for answers that are no JSON, nested too deeply, or unexpected.
_NONSENSE = (AttributeError, KeyError, RecursionError, TypeError, ValueError)
# Files for git, not for the model.
_NOT_OF_THE_MODEL = (".gitattributes", ".gitignore")


class HuggingFaceSource:
    def __init__(self, uri: str, context: SourceContext) -> None:
        form = _FORM.fullmatch(uri)
        if form is None:
            raise InvalidArgument(
                "NotFound", f"{redact(uri)} is not a hub address: write hf://organisation/name@revision/path."
            )
        self._uri = uri
        self._context = context
        self._repository: str = form["repository"]
        self._revision = unquote(form["revision"] or "main")
        self._path = unquote(form["path"] or "").strip("/")
        self._endpoint = (context.secrets.get("HF_ENDPOINT") or _PUBLIC).rstrip("/")
        self._token = context.secrets.get("HF_TOKEN", "").strip()

    async def items(self) -> list[SourceFile]:
        self._context.gate.forget()
        _send_through(self._context)
        source_files = await blocking.call(self._list)
        if self._path in {source_file.path for source_file in source_files}:
            name = self._path.rpartition("/")[2]
            return [_moved(source_file, name) for source_file in source_files if source_file.path == self._path]
        folder = f"{self._path}/" if self._path else ""
        return [
            _moved(source_file, source_file.path.removeprefix(folder))
            for source_file in source_files
            if source_file.path.startswith(folder)
        ]

    @asynccontextmanager
    async def open(self, source_file: SourceFile, start: int, mark: str) -> AsyncIterator[FileStream]:
        secret = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        async with open_url(partial(self._context.web.get, secret=secret), source_file.key, start, mark) as file_stream:
            yield file_stream

    def _list(self) -> list[SourceFile]:
        """List the files of the revision, at URLs that name its commit, so that a push meanwhile has no effect."""
        from huggingface_hub import HfApi, errors  # noqa: PLC0415  # takes half a second

        api = HfApi(endpoint=self._endpoint, token=self._token or False)
        try:
            info = api.model_info(self._repository, revision=self._revision, files_metadata=True, timeout=_SECONDS)
            return self._files(info)
        except errors.HFValidationError as error:
            raise self._translated(_NOT_FOUND) from error
        except errors.HfHubHTTPError as error:
            raise self._context.gate.failure or self._translated(error.response.status_code) from error
        except errors.HTTPError as error:  # type: ignore[attr-defined]  # of httpx or httpx2, whichever it is built on
            raise self._context.gate.failure or self._unreachable(str(error)) from error
        except _NONSENSE as error:
            raise TransientError(
                "ServerError",
                f"The hub at {redact(self._endpoint)} sent an invalid answer: if that persists, check HF_ENDPOINT "
                "in the"
                " Secret.",
            ) from error

    def _files(self, info: Any) -> list[SourceFile]:
        """Validate the hub's answer, which the library passes on unchecked."""
        from huggingface_hub import hf_hub_url  # noqa: PLC0415  # as above

        files = [file for file in info.siblings or () if file.rfilename not in _NOT_OF_THE_MODEL]
        place = partial(hf_hub_url, self._repository, revision=info.sha or self._revision, endpoint=self._endpoint)
        rows = [
            {
                "path": file.rfilename,
                "key": place(file.rfilename),
                "size": file.size,
                "sha256": file.lfs.sha256 if file.lfs else "",
            }
            for file in files
        ]
        return msgspec.convert(rows, list[SourceFile])

    def _unreachable(self, message: str) -> FetchError:
        if "certificate" in message.lower():
            return tls.untrusted(f"The hub at {redact(self._endpoint)}")
        return TransientError("Unreachable", f"The hub at {redact(self._endpoint)} is unreachable.")

    def _translated(self, status: int) -> FetchError:
        """Return the error for a status. The hub also answers "not found" for a private repository."""
        if status in {401, 403}:
            return AccessDenied(
                "AccessDenied",
                f"{redact(self._uri)} is private, gated or does not exist: check its name, accept its terms, and put a"
                " token with read access into the Secret of `credentialsSecret` as HF_TOKEN.",
            )
        if status == _TOO_MANY or status >= _SERVER_ERROR:
            return TransientError(
                "ServerError", f"The hub answered {status} for {redact(self._uri)}: it is unavailable."
            )
        return InvalidArgument("NotFound", f"{redact(self._uri)} does not exist: check repository and revision.")


def _send_through(context: SourceContext) -> None:
    """Make the library connect through the egress proxy."""
    # Set before the import: otherwise the library sends telemetry and caches the answer in a missing folder.
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    from huggingface_hub import get_session, set_client_factory  # noqa: PLC0415  # as above

    client: Any = type(get_session())
    gate, trust = context.gate.url, context.trust
    set_client_factory(
        lambda: client(proxy=gate, verify=trust, trust_env=False, follow_redirects=True, timeout=_SECONDS)
    )


def _moved(source_file: SourceFile, path: str) -> SourceFile:
    return SourceFile(path=path, key=source_file.key, size=source_file.size, sha256=source_file.sha256)
