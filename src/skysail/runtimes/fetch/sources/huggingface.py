"""A repository of the Hugging Face hub, or a file or folder in it: `hf://org/name[@revision][/path]`.

The hub's own library tells which files a revision has; they come as from any other address, so that limits, resuming
and the guard are the same for all sources. Keys of the Secret: `HF_TOKEN`, and `HF_ENDPOINT` for a hub of your own.
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

from skysail.runtimes.fetch.errors import FetchError, MayPass, NotAllowed, ToldWrong
from skysail.runtimes.fetch.network import blocking, tls
from skysail.runtimes.fetch.network.uris import shown
from skysail.runtimes.fetch.sources.base import Item, Means, Piece
from skysail.runtimes.fetch.sources.http import open_url

_FORM = re.compile(r"hf://(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[^/]+))?(/(?P<path>.*))?")
_PUBLIC = "https://huggingface.co"
_SECONDS = 10.0
_NOT_FOUND = 404
_TOO_MANY = 429
_SERVER_ERROR = 500
# What the library raises where the answer is no JSON, has no bottom, or is another one than it expects.
_NONSENSE = (AttributeError, KeyError, RecursionError, TypeError, ValueError)
# What git itself needs, and no model.
_NOT_OF_THE_MODEL = (".gitattributes", ".gitignore")


class Repository:
    def __init__(self, uri: str, means: Means) -> None:
        form = _FORM.fullmatch(uri)
        if form is None:
            raise ToldWrong("NotFound", f"{shown(uri)} is not of the form hf://organisation/name@revision/path.")
        self._uri = uri
        self._means = means
        self._repository: str = form["repository"]
        self._revision = unquote(form["revision"] or "main")
        self._path = unquote(form["path"] or "").strip("/")
        self._endpoint = (means.secrets.get("HF_ENDPOINT") or _PUBLIC).rstrip("/")
        self._token = means.secrets.get("HF_TOKEN", "").strip()

    async def items(self) -> list[Item]:
        self._means.gate.forget()
        _send_through(self._means)
        found = await blocking.call(self._list)
        if self._path in {item.path for item in found}:
            name = self._path.rpartition("/")[2]
            return [_moved(item, name) for item in found if item.path == self._path]
        folder = f"{self._path}/" if self._path else ""
        return [_moved(item, item.path.removeprefix(folder)) for item in found if item.path.startswith(folder)]

    @asynccontextmanager
    async def open(self, item: Item, start: int, mark: str) -> AsyncIterator[Piece]:
        secret = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        async with open_url(partial(self._means.web.get, secret=secret), item.key, start, mark) as piece:
            yield piece

    def _list(self) -> list[Item]:
        """All files of the revision, at addresses that name its commit: what is pushed meanwhile is not mixed in."""
        from huggingface_hub import HfApi, errors  # noqa: PLC0415  # takes half a second

        api = HfApi(endpoint=self._endpoint, token=self._token or False)
        try:
            info = api.model_info(self._repository, revision=self._revision, files_metadata=True, timeout=_SECONDS)
            return self._files(info)
        except errors.HFValidationError as error:
            raise self._translated(_NOT_FOUND) from error
        except errors.HfHubHTTPError as error:
            raise self._means.gate.failure or self._translated(error.response.status_code) from error
        except errors.HTTPError as error:  # type: ignore[attr-defined]  # of httpx or httpx2, whichever it is built on
            raise self._means.gate.failure or self._unreachable(str(error)) from error
        except _NONSENSE as error:
            raise MayPass(
                "ServerError",
                f"The hub at {shown(self._endpoint)} answers what no hub does: if that lasts, check HF_ENDPOINT in the"
                " Secret.",
            ) from error

    def _files(self, info: Any) -> list[Item]:
        """The library takes over what the hub answers as it is: here it is checked."""
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
        return msgspec.convert(rows, list[Item])

    def _unreachable(self, told: str) -> FetchError:
        if "certificate" in told.lower():
            return tls.untrusted(f"The hub at {shown(self._endpoint)}")
        return MayPass("Unreachable", f"The hub at {shown(self._endpoint)} cannot be reached.")

    def _translated(self, status: int) -> FetchError:
        """The hub says "not found" also of what one may not see."""
        if status in {401, 403}:
            return NotAllowed(
                "AccessDenied",
                f"{shown(self._uri)} is private, gated or does not exist: check its name, accept its terms, and put a"
                " token that may read it as HF_TOKEN into the Secret of `credentialsSecret`.",
            )
        if status == _TOO_MANY or status >= _SERVER_ERROR:
            return MayPass("ServerError", f"The hub answered {status} for {shown(self._uri)}: it cannot serve it now.")
        return ToldWrong("NotFound", f"{shown(self._uri)} does not exist: check the names of repository and revision.")


def _send_through(means: Means) -> None:
    """From here on the library connects by way of the gate."""
    # Read when the library is imported: it would call home, and keep the answer in a folder that is not there.
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    from huggingface_hub import get_session, set_client_factory  # noqa: PLC0415  # as above

    client: Any = type(get_session())
    gate, trust = means.gate.url, means.trust
    set_client_factory(
        lambda: client(proxy=gate, verify=trust, trust_env=False, follow_redirects=True, timeout=_SECONDS)
    )


def _moved(item: Item, path: str) -> Item:
    return Item(path=path, key=item.key, size=item.size, sha256=item.sha256)
