"""The folder of a model: whole or not there, wherever a crash happens, and never on a volume without room."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from skysail.runtimes.fetch.errors import InvalidContent, TransientError
from tests.support.model_sources import Bucket, Files, serving, tar_of
from tests.unit.runtimes.fetch.harness import content, fetch, names

_EFFECTS = ("rename", "replace", "mkdir", "unlink", "rmdir", "fsync")
_CONTENT = {"model.onnx": random.Random(2).randbytes(5000), "a/labels.txt": b"labels"}


class Crash(BaseException):
    """The process ends here."""


class Crashes:
    """Counts what is done to the disk, and ends it all before the chosen one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.at = 0
        self.count = 0
        for name in _EFFECTS:
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))

    def begin(self, at: int) -> None:
        self.at, self.count = at, 0

    def _counted(self, effect):
        def counted(*arguments, **options):
            self.count += 1
            # After the crash nothing is done any more, also not by those who clean up.
            if self.at and self.count >= self.at:
                raise Crash
            return effect(*arguments, **options)

        return counted


@pytest.mark.parametrize("is_there", [False, True])
async def test_a_crash_at_any_effect_leaves_no_half_and_the_next_try_ends_well(tmp_path: Path, monkeypatch, is_there):
    files = Files()
    files.files["/iris.tar.gz"] = tar_of(_CONTENT)
    crashes = Crashes(monkeypatch)
    async with serving(files) as url:
        await fetch(f"{url}/iris.tar.gz", tmp_path / "0", layout="tree")
        await fetch(f"{url}/iris.tar.gz", tmp_path / "1")
        crashes.begin(0)
        await fetch(f"{url}/iris.tar.gz", tmp_path / "2")
        effects = crashes.count
        for at in range(1, effects + 1):
            into = tmp_path / f"crash-{at}" / "m"
            if is_there:
                (into / "half").mkdir(parents=True)
            crashes.begin(at)
            with pytest.raises(Crash):
                await fetch(f"{url}/iris.tar.gz", into)
            crashes.begin(0)
            assert not into.exists() or names(into) == ["half"] or content(into) == _CONTENT, at
            await fetch(f"{url}/iris.tar.gz", into)
            assert content(into) == _CONTENT, at
            assert names(into.parent) == ["m", "m.json"], at

    assert effects > 10


async def test_a_volume_without_room_is_told_before_anything_comes(tmp_path: Path, monkeypatch):
    bucket = Bucket("models")
    bucket.files["/models/iris/model.onnx"] = bytes(3000)
    usage = namedtuple("usage", "total used free")  # noqa: PYI024  # as the standard library has it
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(10_000, 7_100, 2_900))
    async with serving(bucket) as url:
        with pytest.raises(InvalidContent) as raised:
            await fetch("s3://models/iris/", tmp_path / "m", secrets={"AWS_ENDPOINT_URL": url})

    assert raised.value.reason == "TooLarge"
    assert "3.0 kB" in str(raised.value)
    assert not any(path.endswith(".onnx") for path, _ in bucket.requests)


class Disk:
    """One of a million bytes on which others write beside the download, so many at each look."""

    def __init__(self, free: int, others: int = 0):
        self.free = free
        self._others = others

    def usage(self, _path):
        self.free -= self._others
        usage = namedtuple("usage", "total used free")  # noqa: PYI024  # as the standard library has it
        return usage(10**6, 10**6 - self.free, self.free)


@pytest.mark.parametrize(
    ("size", "free", "on_node", "is_fetched"),
    [
        (60_000, 200_000, True, False),
        (60_000, 200_000, False, True),
        (40_000, 200_000, True, True),
        (60_000, 100_000, True, False),
        (5_000, 100_000, True, True),
    ],
    ids=["reserve", "own volume", "above it", "below it", "little always"],
)
async def test_the_disk_of_a_node_is_not_filled(tmp_path: Path, monkeypatch, size, free, on_node, is_fetched):
    """Its kubelet would evict the pod before the disk is full, and the next one as well."""
    monkeypatch.setattr(shutil, "disk_usage", Disk(free).usage)
    files = Files()
    files.files = {"/a.onnx": bytes(size)}
    async with serving(files) as url:
        if is_fetched:
            await fetch(f"{url}/a.onnx", tmp_path / "m", on_node=on_node)
            return
        with pytest.raises(InvalidContent) as raised:
            await fetch(f"{url}/a.onnx", tmp_path / "m", on_node=on_node)

    assert raised.value.reason == "TooLarge"
    assert "use a node with a larger disk" in str(raised.value)


@pytest.mark.parametrize(("name", "others"), [("/a.onnx", 300_000), ("/a.tar.gz", 35_000)], ids=["comes", "unpacks"])
async def test_the_disk_of_a_node_that_others_fill_meanwhile_is_left_to_them(tmp_path, monkeypatch, name, others):
    files = Files()
    files.files = {name: tar_of({f"{number}.onnx": b"model" for number in range(30)})}
    monkeypatch.setattr(shutil, "disk_usage", Disk(10**6, others).usage)
    async with serving(files) as url:
        with pytest.raises(InvalidContent, match=r"^The disk of the node has no space left .*: use a node"):
            await fetch(f"{url}{name}", tmp_path / "m", on_node=True)
    assert names(tmp_path) == [], "it is given back"


async def test_what_came_for_another_request_is_not_used(tmp_path: Path):
    files = Files()
    files.files = {"/a.onnx": b"a" * 100, "/b.onnx": b"b" * 100}
    async with serving(files) as url:
        await fetch(f"{url}/a.onnx", tmp_path / "m")
        await fetch(f"{url}/b.onnx", tmp_path / "m")

    assert content(tmp_path / "m") == {"b.onnx": b"b" * 100}
    assert names(tmp_path) == ["m", "m.json"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOTCONN])
@pytest.mark.parametrize("effect", ["fsync", "rename"])
async def test_a_volume_that_fails_may_pass_and_the_next_try_ends_well(tmp_path: Path, monkeypatch, number, effect):
    def fails(*_arguments):
        raise OSError(number, os.strerror(number))

    files = Files()
    files.files["/iris.tar.gz"] = tar_of(_CONTENT)
    async with serving(files) as url:
        with monkeypatch.context() as patch:
            patch.setattr(os, effect, fails)
            with pytest.raises(TransientError, match=os.strerror(number)) as raised:
                await fetch(f"{url}/iris.tar.gz", tmp_path / "m")
        await fetch(f"{url}/iris.tar.gz", tmp_path / "m")

    assert raised.value.reason == "ServerError"
    assert "check the volume" in str(raised.value)
    assert content(tmp_path / "m") == _CONTENT


@pytest.mark.parametrize("marker", [b'{"x": ' + b"[" * 5000, b'{"request": "\xff"}'])
async def test_a_marker_that_cannot_be_read_marks_nothing(tmp_path: Path, marker):
    files = Files()
    files.files["/iris.tar.gz"] = tar_of(_CONTENT)
    (tmp_path / "m.json").write_bytes(marker)
    async with serving(files) as url:
        await fetch(f"{url}/iris.tar.gz", tmp_path / "m")

    assert content(tmp_path / "m") == _CONTENT
