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
from skysail.runtimes.fetch.errors import FetchError, ToldWrong, WrongContent
from skysail.runtimes.fetch.layouts import LAYOUTS, PACKED
from skysail.runtimes.fetch.network.uris import last_part, shown
from skysail.runtimes.fetch.sources.base import Source
from skysail.runtimes.fetch.transfer.disk_space import Room
from skysail.runtimes.fetch.transfer.downloader import Download, Received, digest_of
from skysail.runtimes.fetch.transfer.model_dir import Outcome, Place
from skysail.runtimes.fetch.transfer.os_errors import disk
from skysail.runtimes.fetch.transfer.progress import Progress, in_units
from skysail.runtimes.fetch.transfer.retry import Patience
from skysail.runtimes.fetch.unpack import archives, oci_layers
from skysail.runtimes.fetch.unpack.paths import files_in

# Files with these extensions may be web pages next to the model.
_OF_PAGES = (".html", ".htm", ".xhtml", ".xml", ".md", ".svg")
_LONGEST_SCRIPT = 10 * 2**20


class Order(msgspec.Struct, frozen=True, kw_only=True):
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


class Fetching(msgspec.Struct, frozen=True, kw_only=True):
    """Download of models and scripts. `patience` creates a retry budget for each file."""

    progress: Progress
    patience: Callable[[], Patience]

    async def fetch(self, order: Order, source: Source) -> Outcome:
        """Download the model into its folder. Raises FetchError."""
        place = Place(order.into, order.request)
        with disk(order.into):
            async with place.held(lambda: self.progress.say("Waiting for another download of this model.")):
                there = place.finished()
                if there is not None and order.digest in {"", there.digest}:
                    place.tidy()
                    self.progress.say("The model is already downloaded.")
                    return there
                if order.keep:
                    place.sweep(order.keep)
                return await self._fetch_into(place, order, source)

    async def _fetch_into(self, place: Place, order: Order, source: Source) -> Outcome:
        place.begin()
        room = Room(order.into.parent, of_node=order.on_node)
        try:
            with disk(order.into):
                received = await self._download(place.raw, place.marks, source, order.limit, room)
            digest = digest_of(received)
            _compare(digest, order)
            with _step("Layout"), disk(order.into):
                _object_to_what_is_mistaken(place.raw)
                tree = await self._unpacked(place, order, received, room)
                LAYOUTS[order.layout](tree, place.laid, order.name)
        except WrongContent:
            place.discard()  # a retry must not reuse wrong content
            raise
        outcome = place.publish(digest)
        files = "one file" if outcome.files == 1 else f"{outcome.files} files"
        self.progress.say(f"The model is downloaded: {in_units(outcome.bytes)} in {files}.")
        return outcome

    async def _download(self, raw: Path, marks: Path, source: Source, limit: int, room: Room) -> list[Received]:
        work = Download(
            source=source, raw=raw, marks=marks, limit=limit, room=room, progress=self.progress, patience=self.patience
        )
        return await work.all()

    async def _unpacked(self, place: Place, order: Order, received: list[Received], room: Room) -> Path:
        """Unpack archives and return the folder for the layout."""
        packed = [place.raw / one.path for one in received if one.layer]
        if packed:
            await self._unpack(oci_layers.unpack(packed, place.unpacked, limit=order.limit), room)
            for one in received:
                if not one.layer:
                    _move(place.raw / one.path, place.unpacked / one.path)
            return _not_empty(place.unpacked)
        only = place.raw / received[0].path
        if len(received) == 1 and order.layout not in PACKED and archives.is_archive(only):
            await self._unpack(archives.unpack(only, place.unpacked, limit=order.limit), room)
            return _not_empty(place.unpacked)
        return place.raw

    async def _unpack(self, work: Iterator[int], room: Room) -> None:
        self.progress.say("Unpacking.")
        for _count in work:
            room.keep()
            await asyncio.sleep(0)  # so that it can be interrupted

    async def fetch_script(self, uri: str, into: Path, source: Source) -> Path:
        """Download one file under its own name. Raises FetchError."""
        part, target = into / ".part", into / (last_part(uri) or "script")
        with disk(into):
            try:
                received = await self._download(part / "raw", part / "marks", source, _LONGEST_SCRIPT, Room(into))
            except (ToldWrong, WrongContent) as error:
                raise ToldWrong("ScriptNotFound", f"{shown(uri)} is not a usable script. {error}") from error
            (part / "raw" / received[0].path).replace(target)
            shutil.rmtree(part)
        return target


def _compare(digest: str, order: Order) -> None:
    if order.digest and digest != order.digest:
        raise WrongContent(
            "ChecksumMismatch",
            f"{shown(order.uri)} has digest {digest} instead of {order.digest}: correct `sha256`, or set a new version"
            " if the model was changed on purpose.",
        )


def _object_to_what_is_mistaken(raw: Path) -> None:
    """Reject web pages and the like before unpacking: a server would only report them as damaged."""
    for path in files_in(raw):
        if path.suffix.lower() in _OF_PAGES:
            continue
        if sentence := not_a_model.told(raw / path):
            raise WrongContent("UnsupportedFormat", sentence)


def _not_empty(tree: Path) -> Path:
    if not any(files_in(tree)):
        raise WrongContent("EmptyModel", "The archive of the model is empty: pack it again.")
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
