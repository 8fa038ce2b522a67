"""Steps of a download: transfer, compare, unpack, lay out, publish."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from skysail.runtimes import not_a_model
from skysail.runtimes.fetch.errors import FetchError, InvalidArgument, InvalidContent
from skysail.runtimes.fetch.layouts import LAYOUTS, PACKED
from skysail.runtimes.fetch.network.uris import last_part, redact
from skysail.runtimes.fetch.sources.base import Source
from skysail.runtimes.fetch.transfer.disk_space import DiskSpace
from skysail.runtimes.fetch.transfer.downloader import Download, Received, digest_of
from skysail.runtimes.fetch.transfer.model_dir import FetchResult, ModelDir
from skysail.runtimes.fetch.transfer.os_errors import translate_os_errors
from skysail.runtimes.fetch.transfer.progress import Progress, in_units
from skysail.runtimes.fetch.transfer.retry import RetryPolicy
from skysail.runtimes.fetch.unpack import archives, oci_layers
from skysail.runtimes.fetch.unpack.paths import files_in

# Files with these extensions may be web pages next to the model.
_OF_PAGES = (".html", ".htm", ".xhtml", ".xml", ".md", ".svg")
_MAX_SCRIPT_BYTES = 10 * 2**20


class FetchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of a download.

    - `sha256`: expected digest; not compared if empty.
    - `keep`: revisions to keep on the volume.
    - `on_node`: whether the volume is the node's disk, which other pods use as well.
    """

    uri: str
    into: Path
    layout: str
    name: str
    limit: int
    sha256: str = ""
    keep: frozenset[str] = frozenset()
    on_node: bool = False

    @property
    def request(self) -> str:
        """Return a hash of everything that decides the content of the folder. It hides secrets in the URI."""
        return hashlib.sha256(f"{self.uri}\0{self.layout}\0{self.name}".encode()).hexdigest()

    @property
    def digest(self) -> str:
        return f"sha256:{self.sha256.lower().removeprefix('sha256:')}" if self.sha256 else ""


class FetchPipeline(msgspec.Struct, frozen=True, kw_only=True):
    """Download of models and scripts. `retry_policy` creates a retry budget for each file."""

    progress: Progress
    retry_policy: Callable[[], RetryPolicy]

    async def fetch(self, request: FetchRequest, source: Source) -> FetchResult:
        """Download the model into its folder. Raises FetchError."""
        model_dir = ModelDir(request.into, request.request)
        with translate_os_errors(request.into):
            async with model_dir.lock(lambda: self.progress.report("Waiting for another download of this model.")):
                result = model_dir.completed()
                if result is not None and request.digest in {"", result.digest}:
                    model_dir.clean()
                    self.progress.report("The model is already downloaded.")
                    return result
                if request.keep:
                    model_dir.prune(request.keep)
                return await self._fetch_into(model_dir, request, source)

    async def _fetch_into(self, model_dir: ModelDir, request: FetchRequest, source: Source) -> FetchResult:
        model_dir.open()
        space = DiskSpace(request.into.parent, of_node=request.on_node)
        try:
            with translate_os_errors(request.into):
                received = await self._download(model_dir.raw, model_dir.marks, source, request.limit, space)
            digest = digest_of(received)
            _compare(digest, request)
            with _step("Layout"), translate_os_errors(request.into):
                _object_to_what_is_mistaken(model_dir.raw)
                tree = await self._unpacked(model_dir, request, received, space)
                LAYOUTS[request.layout](tree, model_dir.laid, request.name)
        except InvalidContent:
            model_dir.discard()  # a retry must not reuse wrong content
            raise
        result = model_dir.publish(digest)
        files = "one file" if result.files == 1 else f"{result.files} files"
        self.progress.report(f"The model is downloaded: {in_units(result.bytes)} in {files}.")
        return result

    async def _download(self, raw: Path, marks: Path, source: Source, limit: int, space: DiskSpace) -> list[Received]:
        work = Download(
            source=source,
            raw=raw,
            marks=marks,
            limit=limit,
            room=space,
            progress=self.progress,
            retry_policy=self.retry_policy,
        )
        return await work.all()

    async def _unpacked(
        self, model_dir: ModelDir, request: FetchRequest, received: list[Received], space: DiskSpace
    ) -> Path:
        """Unpack archives and return the folder for the layout."""
        packed = [model_dir.raw / one.path for one in received if one.layer]
        if packed:
            await self._unpack(oci_layers.unpack(packed, model_dir.unpacked, limit=request.limit), space)
            for one in received:
                if not one.layer:
                    _move(model_dir.raw / one.path, model_dir.unpacked / one.path)
            return _not_empty(model_dir.unpacked)
        only = model_dir.raw / received[0].path
        if len(received) == 1 and request.layout not in PACKED and archives.is_archive(only):
            await self._unpack(archives.unpack(only, model_dir.unpacked, limit=request.limit), space)
            return _not_empty(model_dir.unpacked)
        return model_dir.raw

    async def _unpack(self, work: Iterator[int], space: DiskSpace) -> None:
        self.progress.report("Unpacking.")
        for _count in work:
            space.keep()
            await asyncio.sleep(0)  # so that it can be interrupted

    async def fetch_script(self, uri: str, into: Path, source: Source) -> Path:
        """Download one file under its own name. Raises FetchError."""
        part, target = into / ".part", into / (last_part(uri) or "script")
        with translate_os_errors(into):
            try:
                received = await self._download(
                    part / "raw", part / "marks", source, _MAX_SCRIPT_BYTES, DiskSpace(into)
                )
            except (InvalidArgument, InvalidContent) as error:
                raise InvalidArgument("ScriptNotFound", f"{redact(uri)} is not a usable script. {error}") from error
            (part / "raw" / received[0].path).replace(target)
            shutil.rmtree(part)
        return target


def _compare(digest: str, request: FetchRequest) -> None:
    if request.digest and digest != request.digest:
        raise InvalidContent(
            "ChecksumMismatch",
            f"{redact(request.uri)} has digest {digest} instead of {request.digest}: correct `sha256`, or set a "
            "new version"
            " if the model was changed on purpose.",
        )


def _object_to_what_is_mistaken(raw: Path) -> None:
    """Reject web pages and the like before unpacking: a server would only report them as damaged."""
    for path in files_in(raw):
        if path.suffix.lower() in _OF_PAGES:
            continue
        if sentence := not_a_model.describe(raw / path):
            raise InvalidContent("UnsupportedFormat", sentence)


def _not_empty(tree: Path) -> Path:
    if not any(files_in(tree)):
        raise InvalidContent("EmptyModel", "The archive of the model is empty: pack it again.")
    return tree


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)


@contextmanager
def _step(step: Literal["Layout"]) -> Iterator[None]:
    try:
        yield
    except FetchError as error:
        error.step = step
        raise
