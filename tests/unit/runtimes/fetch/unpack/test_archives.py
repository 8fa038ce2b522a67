"""Archives as an enemy packs them, and as others do."""

from __future__ import annotations

import bz2
import errno
import io
import lzma
import random
import stat
import tarfile
import warnings
import zipfile
from pathlib import Path

import pytest

from skysail.runtimes.fetch.errors import InvalidContent
from skysail.runtimes.fetch.unpack import archives, oci_layers
from tests.support.model_sources import tar_of
from tests.unit.runtimes.fetch.harness import content

_FILES = {"iris/model.onnx": b"onnx" * 1000, "iris/a/labels.txt": b"labels"}


def _zip_of(files: dict[str, bytes], kind: int = 0) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = kind << 16
            archive.writestr(info, body, zipfile.ZIP_DEFLATED)
    return made.getvalue()


def _unpack(tmp_path: Path, name: str, body: bytes, limit: int = 2**30) -> Path:
    (tmp_path / name).write_bytes(body)
    into = tmp_path / "into"
    list(archives.unpack(tmp_path / name, into, limit=limit))
    return into


def _tar_with(headers: dict[str, str]) -> bytes:
    """Of one file, with these extended headers."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("a")
        member.pax_headers = headers
        tar.addfile(member)
    return made.getvalue()


def _resized(tar: bytes, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """With another kind and size in its first header, which is as right as before."""
    head = bytearray(tar[:512])
    head[124:136] = size.to_bytes(12, "big", signed=True)
    head[124] |= 0x80
    head[156:157] = kind
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + tar[512:]


_PLAIN = tar_of({"a": b"x" * 5000}, packed=False)
# What the standard library says of these in its own ways, each in another one.
_DAMAGED = {
    "no number": _tar_with({"GNU.sparse.size": "abc"}),
    "no map": _tar_with({"GNU.sparse.map": "a,b"}),
    "a header before the beginning": _resized(_PLAIN, -1024, tarfile.XHDTYPE),
    "a header of more than there is memory": _resized(_PLAIN, 2**60, tarfile.XHDTYPE),
    "headers of headers": _resized(_PLAIN, 0, tarfile.GNUTYPE_LONGNAME)[:512] * 2000,
    "a cut gzip": tar_of({"a": random.Random(1).randbytes(5000)})[:50],
    "the first bytes of gzip": b"\x1f\x8b\x08\x00",
}


def _special(kind: bytes, name: str = "evil", target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("m.tar", tar_of(_FILES, packed=False)),
        ("m.tar.gz", tar_of(_FILES)),
        ("M.TGZ", tar_of(_FILES)),
        ("m.tar.bz2", bz2.compress(tar_of(_FILES, packed=False))),
        ("m.tar.xz", lzma.compress(tar_of(_FILES, packed=False))),
        ("4", tar_of(_FILES)),
        ("m.zip", _zip_of(_FILES)),
    ],
)
def test_usual_archives_are_known_and_unpacked(tmp_path: Path, name, body):
    into = _unpack(tmp_path, name, body)

    assert archives.is_archive(tmp_path / name)
    assert content(into) == _FILES


@pytest.mark.parametrize("name", ["model.pt", "model.keras", "model.mar", "model.npz", "model"])
def test_models_that_are_zip_files_themselves_are_no_archives(tmp_path: Path, name):
    (tmp_path / name).write_bytes(_zip_of(_FILES))

    assert not archives.is_archive(tmp_path / name)


@pytest.mark.parametrize(
    "body",
    [
        tar_of({"../evil": b"x"}),
        tar_of({"a/../../evil": b"x"}),
        tar_of({"/etc/cron.d/evil": b"x"}),
        tar_of({"a\\..\\evil": b"x"}),
        tar_of({"a\nb": b"x"}),
        tar_of({"a/" * 600 + "b": b"x"}),
        tar_of({}, members=[_special(tarfile.SYMTYPE, target="/etc/passwd")]),
        tar_of({}, members=[_special(tarfile.LNKTYPE, target="/etc/passwd")]),
        tar_of({}, members=[_special(tarfile.CHRTYPE)]),
        tar_of({}, members=[_special(tarfile.BLKTYPE)]),
        tar_of({}, members=[_special(tarfile.FIFOTYPE)]),
        tar_of({"a": b"x", "a/b": b"x"}, members=[_special(tarfile.SYMTYPE, "b", "..")]),
        tar_of(_FILES)[:-40],
        tar_of({"a": random.Random(1).randbytes(100_000)})[:5000],
        b"\x1f\x8b\x08 this is not gzip",
        b"this is not tar either",
        b"",
    ],
)
def test_what_leads_out_or_is_no_file_or_is_damaged_is_refused(tmp_path: Path, body):
    with pytest.raises(InvalidContent):
        _unpack(tmp_path, "m.tar.gz", body)

    assert not (tmp_path / "evil").exists()
    assert all(path.is_file() or path.is_dir() for path in (tmp_path / "into").rglob("*"))


@pytest.mark.parametrize(
    "body",
    [
        _zip_of({"../evil": b"x"}),
        _zip_of({"/evil": b"x"}),
        _zip_of({"link": b"/etc/passwd"}, stat.S_IFLNK | 0o777),
        _zip_of(_FILES)[:-30],
        b"no zip",
    ],
)
def test_zip_files_are_held_to_the_same(tmp_path: Path, body):
    with pytest.raises(InvalidContent):
        _unpack(tmp_path, "m.zip", body)

    assert not (tmp_path / "evil").exists()


# Entries in order, a folder ends with a slash; and the name that is both.
_CONFLICTS = {
    "file, then below it": (("a", "a/b"), "a"),
    "below it, then file": (("a/b", "a"), "a"),
    "file, then folder": (("a", "a/"), "a"),
    "folder, then file": (("a/", "a"), "a"),
    "file, then far below it": (("a/b", "a/b/c/d/e"), "a/b"),
    "far below it, then file": (("a/b/c/d/e", "a/b"), "a/b"),
    "with dots": (("./a", "a/./b"), "a"),
    "with two slashes": (("a//b", "a/b//c"), "a/b"),
    "other entries between": (("a", "x", "y/z", "a/b"), "a"),
    "other letters beside it": (("Models/a", "models/a", "models/a/b"), "models/a"),
    "twice, then below it": (("a", "a", "a/b"), "a"),
}


def _tar_in_order(names: tuple[str, ...]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            tar.addfile(member)
    return made.getvalue()


def _zip_in_order(names: tuple[str, ...]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are there twice
        for name in names:
            archive.writestr(name, b"")
    return made.getvalue()


@pytest.mark.parametrize("kind", ["tar", "zip", "layer"])
@pytest.mark.parametrize(("names", "both"), _CONFLICTS.values(), ids=_CONFLICTS)
def test_a_name_that_is_a_file_and_a_folder_is_told_with_the_fix(tmp_path: Path, kind, names, both):
    name = "m.zip" if kind == "zip" else "m.tar"
    body = _zip_in_order(names) if kind == "zip" else _tar_in_order(names)
    (tmp_path / name).write_bytes(body)
    into = tmp_path / "into"
    unpack = oci_layers.unpack([tmp_path / name], into, limit=9) if kind == "layer" else None
    with pytest.raises(InvalidContent, match=f"^{name} has '{both}' both as a file and as a folder: rename one"):
        list(unpack or archives.unpack(tmp_path / name, into, limit=9))


def test_a_volume_that_ignores_case_is_told_of_as_well(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(archives, "below", lambda into, name: into / name.lower())
    with pytest.raises(InvalidContent, match=r"has 'a' both as a file and as a folder"):
        _unpack(tmp_path, "m.tar", _tar_in_order(("A", "a/b")))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_link_that_others_are_below_is_refused_as_a_link(tmp_path: Path, kind, is_first):
    link = _special(kind, "a", "..")
    body = tar_of({"x": b""} if is_first else {"a/b": b"x"}, members=[link, tarfile.TarInfo("a/b")])
    with pytest.raises(InvalidContent, match="'a', a link or a device"):
        _unpack(tmp_path, "m.tar.gz", body)


@pytest.mark.parametrize("part", ["x" * 256, "ä" * 128])
def test_names_that_no_file_system_takes_are_refused(tmp_path: Path, part):
    with pytest.raises(InvalidContent, match="invalid name"):
        _unpack(tmp_path, "m.tar.gz", tar_of({f"a/{part}/b": b"x"}))


def _layers(folder: Path, *layers: tuple[str, ...]) -> list[Path]:
    paths = [folder / f"layer-{number:04}.tar" for number in range(len(layers))]
    for path, names in zip(paths, layers, strict=True):
        path.write_bytes(_tar_in_order(names))
    return paths


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [
        (("a",), ("a/b",), {"a/b"}),
        (("a",), ("a/",), set()),
        (("a/b", "a/c"), ("a",), {"a"}),
        (("a/b",), ("a/", "a/c"), {"a/b", "a/c"}),
        (("a/b",), ("a/b/c/d",), {"a/b/c/d"}),
        (("a/b/c",), ("a/b", "x"), {"a/b", "x"}),
        (("a",), (".wh.a", "a/b"), {"a/b"}),
        (("a",), ("a/.wh.b",), {"a"}),
        (("models/a", "etc/b"), ("models/a/c",), {"a/c"}),
    ],
)
def test_a_later_layer_replaces_files_by_folders_and_folders_by_files(tmp_path: Path, first, second, left):
    list(oci_layers.unpack(_layers(tmp_path, first, second), tmp_path / "into", limit=9))
    assert set(content(tmp_path / "into")) == left


@pytest.mark.parametrize("body", _DAMAGED.values(), ids=_DAMAGED)
def test_what_begins_like_an_archive_and_is_damaged_is_told_with_the_fix(tmp_path: Path, body):
    (tmp_path / "model").write_bytes(body)
    with pytest.raises(InvalidContent, match=r"^model is damaged or not an archive: upload it again"):
        archives.is_archive(tmp_path / "model")
    with pytest.raises(InvalidContent, match=r"^m\.tar is damaged or not an archive: upload it again"):
        _unpack(tmp_path, "m.tar", body)


def test_an_entry_that_leads_back_is_not_unpacked_again_and_again(tmp_path: Path, monkeypatch):
    fsyncs: list[int] = []
    monkeypatch.setattr(archives.os, "fsync", fsyncs.append)
    body = tar_of({"first": b""}, packed=False)[:512] + _resized(_PLAIN, -512)
    with pytest.raises(InvalidContent, match="damaged"):
        _unpack(tmp_path, "m.tar", body)
    with pytest.raises(InvalidContent, match="damaged"):
        list(oci_layers.unpack([tmp_path / "m.tar"], tmp_path / "layers", limit=2**20))

    assert len(fsyncs) <= 4


@pytest.mark.parametrize("is_last", [False, True], ids=["of the file", "in the table"])
def test_zip_files_with_damaged_names_are_told_with_the_fix(tmp_path: Path, is_last):
    body, name = _zip_of({"häuser.txt": b"x" * 100}), "ä".encode()
    at = body.rindex(name) if is_last else body.index(name)
    with pytest.raises(InvalidContent, match="upload it again"):
        _unpack(tmp_path, "m.zip", body[:at] + b"\xff\xff" + body[at + 2 :])


def test_zip_files_with_damaged_offsets_are_told_with_the_fix(tmp_path: Path):
    """The place of the table is one byte too large, so that the first file is said to be before the beginning."""
    body = bytearray(_zip_of({"a": b"x"}))
    body[body.rindex(b"PK\x05\x06") + 16] += 1
    with pytest.raises(InvalidContent, match="upload it again"):
        _unpack(tmp_path, "m.zip", bytes(body))


@pytest.mark.parametrize("body", [bytes(range(256)) * 4, b"BZh9", b"\xfd7zXZ\x00", b""])
def test_a_model_without_a_suffix_is_no_archive(tmp_path: Path, body):
    (tmp_path / "model").write_bytes(body)

    assert not archives.is_archive(tmp_path / "model")


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_what_a_disk_says_is_not_said_of_the_archive(tmp_path: Path, number):
    with pytest.raises(OSError) as raised, archives.readable("It is damaged."):  # noqa: PT011  # its number tells
        raise OSError(number, "away")

    assert raised.value.errno == number


@pytest.mark.parametrize(("name", "pack"), [("m.tar.gz", tar_of), ("m.zip", _zip_of)])
def test_a_small_archive_of_much_is_stopped_at_the_limit(tmp_path: Path, name, pack):
    body = pack({"zeros": bytes(50_000_000)})
    assert len(body) < 100_000
    with pytest.raises(InvalidContent) as raised:
        _unpack(tmp_path, name, body, limit=5_000_000)

    assert raised.value.reason == "TooLarge"
    assert (tmp_path / "into/zeros").stat().st_size <= 7_000_000


def test_too_many_entries_are_refused(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(archives, "_MAX_ENTRIES", 3)
    with pytest.raises(InvalidContent):
        _unpack(tmp_path, "m.tar", tar_of({str(number): b"" for number in range(4)}, packed=False))


def _layer(folder: Path, *names: str) -> Path:
    path = folder / "layer-0000.tar"
    path.write_bytes(tar_of(dict.fromkeys(names, b"x")))
    return path


@pytest.mark.parametrize("name", [".wh...", "models/.wh...", "models/.wh..", "models/.wh.", ".wh.", "a/b/.wh..."])
def test_what_is_removed_by_a_layer_is_in_its_folder(tmp_path: Path, name):
    other = tmp_path / "store" / "other"
    other.mkdir(parents=True)
    into = other.parent / "mine"
    first = "models/a" if name.startswith("models") else "a/b/c"
    with pytest.raises(InvalidContent) as raised:
        list(oci_layers.unpack([_layer(tmp_path, first, name)], into, limit=2**20))
    assert raised.value.reason == "UnsupportedFormat"
    assert (other.exists(), into.exists()) == (True, True)


def test_what_is_left_out_of_layers_is_counted_as_well(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(archives, "_MAX_ENTRIES", 10)
    system = [f"etc/{number}" for number in range(11)]
    for names in (system, ["models/a", *system]):
        told = oci_layers.unpack([_layer(tmp_path, *names)], tmp_path / "into", limit=2**20)
        with pytest.raises(InvalidContent, match="more than 10 entries"):
            list(told)


@pytest.mark.parametrize(
    "body",
    [tar_of({"a": random.Random(1).randbytes(100_000)})[:5000], tar_of({"a": b"x" * 9000}, packed=False)[:5000]],
    ids=["gzip", "tar"],
)
def test_a_layer_that_is_cut_within_a_file_is_told_with_the_fix(tmp_path: Path, body):
    (tmp_path / "layer-0000.tar").write_bytes(body)
    with pytest.raises(InvalidContent, match="upload it again"):
        list(oci_layers.unpack([tmp_path / "layer-0000.tar"], tmp_path / "into", limit=2**20))


def test_a_layer_that_names_files_from_the_root_is_refused(tmp_path: Path):
    with pytest.raises(InvalidContent, match="invalid name '/etc/evil'"):
        list(oci_layers.unpack([_layer(tmp_path, "/etc/evil")], tmp_path / "into", limit=2**20))


def test_looking_through_layers_can_be_interrupted(tmp_path: Path):
    """Whoever iterates is asked again after each name, also where nothing is written."""
    work = oci_layers.unpack([_layer(tmp_path, "etc/a", "etc/b", "models/c")], tmp_path / "into", limit=2**20)
    assert list(work) == [0, 0, 0, 0, 0, 1]


def test_rights_of_packed_files_are_not_taken_over(tmp_path: Path):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        info = tarfile.TarInfo("run")
        info.mode, info.uid, info.size = 0o6777, 1234, 1
        tar.addfile(info, io.BytesIO(b"x"))
    into = _unpack(tmp_path, "m.tar", made.getvalue())

    assert not (into / "run").stat().st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IXUSR)
