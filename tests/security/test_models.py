"""Hostile models: addresses that lead inside, archives that lead out, and files that would run code when loaded."""

from __future__ import annotations

import io
import json
import pickle
import stat
import subprocess
import sys
import tarfile
import warnings
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from tests.security.samples import sampled
from tests.security.test_tenants import ml_model, model
from tests.support.model_sources import Files, serving, tar_of
from tests.support.onnx_models import Network
from tests.unit.runtimes.fetch.harness import Command, saying
from tests.unit.runtimes.fetch.network.test_address_policy import _REFUSED as LEADING_INSIDE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.tenant import Attempts, Tenant

_WRONG_CONTENT, _NOT_ALLOWED = 65, 77
# Opened on a laptop: the cluster's own Services.
_CLUSTER_NAMES = (".svc", ".svc.cluster.local", "kubernetes.default")


@sampled(6)
def test_addresses_that_lead_inside_are_refused_when_they_are_written(
    tenant: Tenant, attempts: Attempts, step: int
) -> None:
    addresses = [uri for uri in LEADING_INSIDE if not any(name in uri for name in _CLUSTER_NAMES)]
    for uri in addresses[::step]:
        for manifest in (model(modelURI=uri), ml_model(modelURL=uri), model(validateScript=f"{uri}.py")):
            if not uri.startswith("http") and "validateScript" in manifest["spec"]:
                continue  # a path in the image
            done = tenant.kubectl("create", "-f", "-", stdin=json.dumps(manifest))
            row = f"{manifest['kind']} {uri!r}"
            attempts.record("addresses when written", row, held=done.returncode != 0, detail=done)


_TARGETS = (
    "http://169.254.169.254/latest/meta-data",
    "http://[::ffff:169.254.169.254]/latest",
    "http://[fd00:ec2::254]/latest",
    "http://100.100.100.200/",
    "http://10.0.0.1/",
    "http://192.168.1.1/",
    "http://172.16.0.1/",
    "http://127.0.0.2:1/",
    "http://[::1]:1/",
    "http://0.0.0.0:1/",
    "http://0x7f000001/",
    "http://2130706433/",
    "http://localhost/",
    "http://metadata.google.internal/",
    "http://kubernetes.default.svc/",
    "http://[2002:a00:1::]/",
    "http://[2001:0:7f00:1::1]/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://[2606:4700::5efe:10.0.0.1]/",
    "http://user:password@example.com/",
    "file:///etc/passwd",
    "gopher://example.com/",
)


@sampled(2)
async def test_redirects_that_lead_inside_are_refused_when_they_are_followed(
    tmp_path: Path, attempts: Attempts, step: int
) -> None:
    for place, target in enumerate(_TARGETS[::step]):
        answer = f"HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode()
        async with saying(answer) as url:
            code, into, command = await _fetch(tmp_path, place, f"{url}/model.onnx")
        held = code in {_NOT_ALLOWED, 78} and not into.exists()
        attempts.record("redirects", target, held=held, detail=(code, command.err))


def _member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def _zip_of(*entries: tuple[str, bytes, int]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, body, mode in entries:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, body, zipfile.ZIP_DEFLATED)
    return made.getvalue()


_BOMB = bytes(64 * 2**20)
_ARCHIVES: dict[str, bytes] = {
    "traversal.tar.gz": tar_of({"../evil": b"x"}),
    "deep-traversal.tar.gz": tar_of({"a/../../../evil": b"x"}),
    "absolute.tar.gz": tar_of({"/tmp/evil": b"x"}),
    "backslash.tar.gz": tar_of({"..\\evil": b"x"}),
    "newline.tar.gz": tar_of({"a\nb": b"x"}),
    "long-name.tar.gz": tar_of({"x" * 300: b"x"}),
    "symbolic-link.tar.gz": tar_of({}, members=[_member("evil", tarfile.SYMTYPE, "/etc/passwd")]),
    "hard-link.tar.gz": tar_of({}, members=[_member("evil", tarfile.LNKTYPE, "/etc/passwd")]),
    "link-to-folder.tar.gz": tar_of({}, members=[_member("a", tarfile.SYMTYPE, ".."), _member("a/evil", b"0")]),
    "character-device.tar.gz": tar_of({}, members=[_member("null", tarfile.CHRTYPE)]),
    "block-device.tar.gz": tar_of({}, members=[_member("disk", tarfile.BLKTYPE)]),
    "pipe.tar.gz": tar_of({}, members=[_member("pipe", tarfile.FIFOTYPE)]),
    "file-and-folder.tar.gz": tar_of({"a": b"x", "a/b": b"x"}),
    "folder-and-file.tar.gz": tar_of({"a/b": b"x", "a": b"x"}),
    "bomb.tar.gz": tar_of({"zeros": _BOMB}),
    "cut.tar.gz": tar_of({"a": b"x" * 100_000})[:60],
    "no-archive.tar.gz": b"this is no archive",
    "traversal.zip": _zip_of(("../evil", b"x", 0)),
    "absolute.zip": _zip_of(("/evil", b"x", 0)),
    "link.zip": _zip_of(("evil", b"/etc/passwd", stat.S_IFLNK | 0o777)),
    "device.zip": _zip_of(("evil", b"", stat.S_IFCHR | 0o666)),
    "file-and-folder.zip": _zip_of(("a", b"x", 0), ("a/b", b"x", 0)),
    "folder-and-file.zip": _zip_of(("a/b", b"x", 0), ("a", b"x", 0)),
    "duplicate-and-folder.zip": _zip_of(("a", b"x", 0), ("a", b"y", 0), ("a/b", b"x", 0)),
    "bomb.zip": _zip_of(("zeros", _BOMB, 0)),
}


@sampled(2)
async def test_archives_write_nothing_but_files_below_their_folder(
    tmp_path: Path, attempts: Attempts, step: int
) -> None:
    files = Files()
    files.files = {f"/{name}": body for name, body in _ARCHIVES.items()}
    async with serving(files) as url:
        for place, name in enumerate(list(_ARCHIVES)[::step]):
            code, into, command = await _fetch(tmp_path, place, f"{url}/{name}", "--layout", "folder")
            left = _leading_out(tmp_path)
            held = code == _WRONG_CONTENT and not into.exists() and not left and "Traceback" not in command.err
            attempts.record("archives", name, held=held, detail=(code, command.err, left))


def _leading_out(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.name == "evil" or path.is_symlink()]


async def _fetch(folder: Path, place: int, uri: str, *more: str) -> tuple[int, Path, Command]:
    """By the program that pods run. Only the test's own server is open to it."""
    into = folder / f"store-{place}" / "model"
    into.parent.mkdir()
    allowed = ("--allow", "127.0.0.1", "--limit", str(2**20))
    command = Command(folder, "--uri", uri, "--into", str(into), "--name", "m", *allowed, *more)
    return await command.run(), into, command


class _Hostile:
    """Runs a command in whoever loads it."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> Any:
        return (open, (str(self._marker), "w"))


def _torch_archive(body: bytes, *members: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for member in members:
            archive.writestr(f"archive/{member}", body)
    return made.getvalue()


_PICKLES = (
    *("model.pkl", "model.pickle", "model.joblib", "model.pt", "model.pth", "model.bin", "model.onnx", "model.pt2"),
    *("model.safetensors", "model.npy", "model.h5", "model", "pytorch_model.bin", "model.py"),
)
_ARCHIVED = {
    "weights.pt": ("data.pkl", "data/0", "version"),
    "script.pt": ("data.pkl", "constants.pkl", "code/net.py"),
    "exported.pt2": ("models/model.json", "archive_format", "data.pkl"),
}
_LOAD = """
import sys
from skysail.runtimes.model_server.models.loader import load
from skysail.runtimes.model_server.settings import Settings
load(Settings(model_path=sys.argv[1], threads=1))
"""


@sampled(2)
def test_files_that_run_code_when_loaded_are_not_loaded(tmp_path: Path, attempts: Attempts, step: int) -> None:
    marker = tmp_path / "ran"
    for protocol in (2, 5)[::step]:
        body = pickle.dumps(_Hostile(marker), protocol)
        bodies = dict.fromkeys(_PICKLES, body) | {
            name: _torch_archive(body, *members) for name, members in _ARCHIVED.items()
        }
        for name, content in bodies.items():
            file = tmp_path / f"protocol-{protocol}" / name.replace(".", "-") / name
            file.parent.mkdir(parents=True)
            file.write_bytes(content)
            done = _load(file.parent)
            held = done.returncode != 0 and not marker.exists()
            attempts.record("pickles", f"{name}, protocol {protocol}", held=held, detail=done.stderr[-300:])


def _load(folder: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-c", _LOAD, str(folder)], capture_output=True, check=False)


def test_a_good_model_is_loaded_and_the_hostile_pickle_would_run(tmp_path: Path) -> None:
    """Else the attempts above show nothing."""
    (tmp_path / "good").mkdir()
    Network().save(tmp_path / "good" / "model.onnx")
    assert _load(tmp_path / "good").returncode == 0
    pickle.loads(pickle.dumps(_Hostile(tmp_path / "ran")))
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("table", [_TARGETS, _ARCHIVES, _PICKLES, LEADING_INSIDE])
def test_each_table_has_at_least_ten_rows(table: Any) -> None:
    assert len(table) >= 10
