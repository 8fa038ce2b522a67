"""Images from files: what is unpacked, and what hostile layers cannot do."""

from __future__ import annotations

import gzip
import io
import json
import os
import secrets
import stat
import tarfile
from pathlib import Path

import pytest

from skysail.cloud.errors import Rejected
from skysail.cloud.provider import SecurityContext
from skysail.local.errors import Misused
from skysail.local.images import image_users, layers
from skysail.local.images.layers import LayerUnpacker
from skysail.local.images.loaded_images import LoadedImage, LoadedImages
from tests.support import image_files, registry
from tests.support.image_files import entry, layer_of

DIR, SYM, HARD, CHAR, BLOCK, FIFO = (
    tarfile.DIRTYPE,
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
    tarfile.CHRTYPE,
    tarfile.BLKTYPE,
    tarfile.FIFOTYPE,
)


@pytest.fixture
def store(tmp_path) -> LoadedImages:
    return LoadedImages(tmp_path / "store")


@pytest.fixture
def outside(tmp_path) -> Path:
    """A file of the machine that no layer may read, change or delete."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_text("canary")
    return folder


def load(store: LoadedImages, tmp_path: Path, *blobs: bytes, **config: object) -> LoadedImage:
    folder = tmp_path / f"layout-{secrets.token_hex(4)}"
    image_files.write_layout(folder, registry.image(config, *blobs), "team/app:v1")
    (loaded,) = store.load(folder, (), lambda _: None)
    return loaded


def tree(root: Path) -> dict[str, str]:
    """Contents of files, and targets of links, without the folders that the sandbox needs."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = path.read_text()
    return found


def test_load_layers_apply_over_each_other(store, tmp_path):
    loaded = load(
        store,
        tmp_path,
        registry.layer({"a/one": b"1", "a/two": b"2", "b/three": b"3", "c/four": b"4", "d": b"5"}),
        registry.layer({"a/.wh.one": b"", "b/.wh..wh..opq": b"", "b/new": b"6", ".wh.d": b"", "c/four": b"7"}),
    )
    assert tree(Path(loaded.root)) == {"a/two": "2", "b/new": "6", "c/four": "7"}
    assert loaded.names == ("docker.io/team/app:v1",)


def test_load_opaque_folder_after_its_entries_keeps_them(store, tmp_path):
    first = registry.layer({"b/old/x": b"1", "b/both/x": b"2"})
    second = registry.layer({"b/both/y": b"3", "b/.wh..wh..opq": b""})
    assert tree(Path(load(store, tmp_path, first, second).root)) == {"b/both/y": "3"}


def test_load_entry_replaces_file_link_or_folder(store, tmp_path):
    first = layer_of((entry("file"), b"1"), (entry("link", SYM, link="file"), b""), (entry("folder/x"), b"2"))
    second = layer_of((entry("file", DIR), b""), (entry("link"), b"3"), (entry("folder", SYM, link="link"), b""))
    assert tree(Path(load(store, tmp_path, first, second).root)) == {"link": "3", "folder": "-> link"}


def test_load_entry_below_a_link_goes_where_the_link_leads_in_the_root(store, tmp_path):
    first = layer_of((entry("usr/lib", DIR), b""), (entry("lib", SYM, link="/usr/lib"), b""))
    loaded = load(store, tmp_path, first, registry.layer({"lib/x": b"1"}))
    assert tree(Path(loaded.root)) == {"lib": "-> /usr/lib", "usr/lib/x": "1"}


def test_load_hard_link_in_the_image_is_kept(store, tmp_path):
    loaded = load(store, tmp_path, layer_of((entry("a/x"), b"1"), (entry("y", HARD, link="a/x"), b"")))
    root = Path(loaded.root)
    assert (root / "y").stat().st_ino == (root / "a/x").stat().st_ino


def test_load_owners_modes_and_times_are_kept_without_setuid(store, tmp_path):
    program = entry("bin/su", mode=0o6755, user=7)
    program.mtime = 12345
    loaded = load(store, tmp_path, layer_of((entry("tmp", DIR, mode=0o1777), b""), (program, b"x")))
    found = (Path(loaded.root) / "bin/su").stat()
    assert stat.S_IMODE(found.st_mode) == 0o755
    assert found.st_mtime == 12345
    assert stat.S_IMODE((Path(loaded.root) / "tmp").stat().st_mode) == 0o1777
    if os.geteuid() == 0:
        assert (found.st_uid, found.st_gid) == (7, 7)


def test_load_ids_that_no_pod_has_become_nobody(store, tmp_path):
    loaded = load(store, tmp_path, layer_of((entry("x", user=0x70000001), b"")))
    assert (Path(loaded.root) / "x").stat().st_uid in {65534, os.geteuid()}


HOSTILE = {
    "parent in the path": [(entry("../outside/secret"), b"x")],
    "parent in the middle": [(entry("a/../../outside/secret"), b"x")],
    "absolute path": [(entry("/outside/secret"), b"x")],
    "write through an absolute link": [(entry("x", SYM, link="OUTSIDE"), b""), (entry("x/secret"), b"x")],
    "write through a relative link": [(entry("x", SYM, link="../../../outside"), b""), (entry("x/secret"), b"x")],
    "write over a link": [(entry("x", SYM, link="OUTSIDE/secret"), b""), (entry("x"), b"x")],
    "hard link out": [(entry("x", HARD, link="OUTSIDE/secret"), b"")],
    "hard link out by parents": [(entry("x", HARD, link="../../../outside/secret"), b"")],
    "hard link through a link": [(entry("x", SYM, link="OUTSIDE"), b""), (entry("y", HARD, link="x/secret"), b"")],
    "hard link to a folder": [(entry("x", DIR), b""), (entry("y", HARD, link="x"), b"")],
    "character device": [(entry("x", CHAR), b"")],
    "block device": [(entry("x", BLOCK), b"")],
    "pipe": [(entry("x", FIFO), b"")],
    "whiteout of the parent": [(entry("a/.wh..."), b"")],
    "whiteout of the folder itself": [(entry("a/.wh.."), b"")],
    "whiteout without a name": [(entry("a/.wh."), b"")],
    "whiteout through a link": [(entry("x", SYM, link="OUTSIDE"), b""), (entry("x/.wh.secret"), b"")],
    "opaque through a link": [(entry("x", SYM, link="OUTSIDE"), b""), (entry("x/.wh..wh..opq"), b"")],
    "whiteout with parents": [(entry(".wh.x/../../outside/secret"), b"")],
    "folder over a link": [(entry("x", SYM, link="OUTSIDE"), b""), (entry("x", DIR, mode=0), b"")],
    "loop of links": [(entry("x", SYM, link="x"), b""), (entry("x/y"), b"x")],
    "proc is a link": [(entry("proc", SYM, link="OUTSIDE"), b"")],
    "dev is a file": [(entry("dev"), b"x")],
    "link without a target": [(entry("x", SYM, link=""), b"")],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_load_hostile_layer_touches_nothing_outside(store, tmp_path, outside, name):
    members = [(_at(info, outside), content) for info, content in HOSTILE[name]]
    before = outside.stat()
    try:
        loaded = load(store, tmp_path, registry.layer({"a/b": b"1"}), layer_of(*members))
    except Misused:
        assert store.all() == []
        assert not [path for path in (tmp_path / "store").iterdir() if path.is_dir()]
    else:
        assert all(path.lstat().st_ino != (outside / "secret").stat().st_ino for path in Path(loaded.root).rglob("*"))
        assert not [path for path in Path(loaded.root).rglob("*") if _is_special(path)]
    assert (outside / "secret").read_text() == "canary"
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert outside.stat().st_mode == before.st_mode
    assert outside.stat().st_mtime == before.st_mtime


@pytest.mark.parametrize("name", ["character device", "block device", "pipe", "proc is a link", "hard link out"])
def test_load_refused_layer_says_what_to_do(store, tmp_path, outside, name):
    members = [(_at(info, outside), content) for info, content in HOSTILE[name]]
    with pytest.raises(Misused, match=r"build|save"):
        load(store, tmp_path, layer_of(*members))


def _at(info: tarfile.TarInfo, outside: Path) -> tarfile.TarInfo:
    placed = tarfile.TarInfo.frombuf(info.tobuf(), "utf-8", "surrogateescape")
    placed.linkname = info.linkname.replace("OUTSIDE", str(outside))
    return placed


def _is_special(path: Path) -> bool:
    mode = path.lstat().st_mode
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)) or bool(mode & 0o6000)


def test_unpack_more_bytes_than_allowed_is_refused(tmp_path):
    unpacker = LayerUnpacker(tmp_path, max_bytes=10, owns_ids=False)
    unpacker.unpack(io.BytesIO(registry.layer({"a": b"12345678"})), "l")
    with pytest.raises(Misused, match="more than the limit"):
        unpacker.unpack(io.BytesIO(registry.layer({"b": b"123"})), "l")


def test_unpack_sparse_file_counts_with_its_size(tmp_path):
    header = entry("bomb")
    header.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40)}
    header.size = 512
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(header, io.BytesIO(b"1\n0\n1\n".ljust(512, b"\0")))
    with pytest.raises(Misused):
        LayerUnpacker(tmp_path, max_bytes=1 << 20, owns_ids=False).unpack(io.BytesIO(written.getvalue()), "l")


def test_unpack_huge_header_is_refused(tmp_path):
    header = entry("x")
    header.pax_headers = {"comment": "x" * (2 << 20)}
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(header)
    with pytest.raises(Misused, match="damaged"):
        LayerUnpacker(tmp_path, max_bytes=1, owns_ids=False).unpack(io.BytesIO(written.getvalue()), "l")


def test_unpack_too_many_entries_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(layers, "_MAX_ENTRIES", 2)
    with pytest.raises(Misused, match="more than 2 entries"):
        LayerUnpacker(tmp_path, max_bytes=9, owns_ids=False).unpack(
            io.BytesIO(registry.layer(dict.fromkeys(("a", "b", "c"), b""))), "l"
        )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda blob: blob[:-20], "damaged"),
        (lambda blob: gzip.compress(gzip.decompress(blob)[:-512] + b"x" * 512), "does not match"),
        (lambda _: b"\x28\xb5\x2f\xfd", "zstd"),
        (lambda _: b"no archive", "damaged"),
    ],
)
def test_load_damaged_layer_is_refused(store, tmp_path, damage, message):
    folder = image_files.write_layout(tmp_path / "layout", registry.image({}, registry.layer({"a": b"1"})), "a:b")
    index = json.loads((folder / "index.json").read_text())
    manifest = folder / "blobs" / index["manifests"][0]["digest"].replace(":", "/")
    layer = folder / "blobs" / json.loads(manifest.read_text())["layers"][0]["digest"].replace(":", "/")
    layer.write_bytes(damage(layer.read_bytes()))
    with pytest.raises(Misused, match=message):
        store.load(folder, (), lambda _: None)
    assert store.all() == []


def test_load_changed_config_is_refused(store, tmp_path):
    folder = image_files.write_layout(tmp_path / "layout", registry.image({}), "a:b")
    for blob in (folder / "blobs/sha256").iterdir():
        blob.write_bytes(blob.read_bytes() + b" ")
    with pytest.raises(Misused, match="is damaged"):
        store.load(folder, (), lambda _: None)


def test_load_docker_save_file_with_all_its_names(store, tmp_path):
    file = image_files.docker_save(
        tmp_path / "app.tar", {"Cmd": ["/run"]}, registry.layer({"run": b"x"}), tags=("team/app:v1", "r.example/app:v2")
    )
    (loaded,) = store.load(file, (), lambda _: None)
    assert loaded.names == ("docker.io/team/app:v1", "r.example/app:v2")
    assert store.find("team/app:v1").program.cmd == ("/run",)
    assert store.find("r.example/app:v2") == store.find(f"app@{loaded.id}")
    assert store.find("team/app:v3") is None


def test_load_layout_in_a_tar_file(store, tmp_path):
    folder = image_files.write_layout(tmp_path / "layout", registry.image({"Cmd": ["x"]}, registry.layer({"a": b"1"})))
    with tarfile.open(tmp_path / "layout.tar.gz", "w:gz") as tar:
        tar.add(folder, arcname=".")
    (loaded,) = store.load(tmp_path / "layout.tar.gz", ("named:1",), lambda _: None)
    assert loaded.names == ("docker.io/library/named:1",)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (registry.image({}, architecture="s390x"), "is for linux/s390x"),
        (registry.image({"Cmd": "sh"}), "is invalid"),
        (registry.image({}, rootfs={"diff_ids": ["sha256:1"]}), "do not match its config"),
    ],
)
def test_load_unusable_image_is_refused(store, tmp_path, image, message):
    folder = image_files.write_layout(tmp_path / "layout", image, "a:b")
    with pytest.raises(Misused, match=message):
        store.load(folder, (), lambda _: None)


def test_load_without_a_name_asks_for_one(store, tmp_path):
    folder = image_files.write_layout(tmp_path / "layout", registry.image({}))
    with pytest.raises(Misused, match="--name"):
        store.load(folder, (), lambda _: None)
    with pytest.raises(Misused, match="is not a name of an image"):
        store.load(folder, ("Not A Name",), lambda _: None)


@pytest.mark.parametrize(("content", "message"), [(None, "does not exist"), (b"text", "is not a tar file")])
def test_load_other_file_is_refused(store, tmp_path, content, message):
    file = tmp_path / "file"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(Misused, match=message):
        store.load(file, (), lambda _: None)


def test_load_folder_that_is_no_layout_is_refused(store, tmp_path):
    with pytest.raises(Misused, match="neither an OCI layout"):
        store.load(tmp_path, (), lambda _: None)


def test_load_same_name_again_moves_the_name(store, tmp_path):
    first = load(store, tmp_path, registry.layer({"a": b"1"}))
    second = load(store, tmp_path, registry.layer({"a": b"2"}))
    assert store.find("team/app:v1").id == second.id
    assert {row.id: row.names for row in store.all()}[first.id] == ()
    assert store.remove(f"app@{first.id}")
    assert [row.id for row in store.all()] == [second.id]


def test_load_same_image_again_keeps_one_copy(store, tmp_path):
    load(store, tmp_path, registry.layer({"a": b"1"}))
    again = load(store, tmp_path, registry.layer({"a": b"1"}))
    assert [row.id for row in store.all()] == [again.id]


def test_remove_deletes_the_last_name_with_the_files(store, tmp_path):
    file = image_files.docker_save(tmp_path / "app.tar", {}, registry.layer({"a": b"1"}), tags=("a:1", "b:1"))
    (loaded,) = store.load(file, (), lambda _: None)
    assert store.remove("a:1")
    assert store.find("a:1") is None
    assert Path(loaded.root).exists()
    assert store.remove("b:1")
    assert not Path(loaded.root).exists()
    assert not store.remove("b:1")


def test_remove_image_in_use_is_refused(store, tmp_path):
    loaded = load(store, tmp_path, registry.layer({"a": b"1"}))
    with store.in_use(loaded), pytest.raises(Misused, match="used by a pod"):
        store.remove("team/app:v1")
    assert store.remove("team/app:v1")
    with pytest.raises(OSError, match="No such file"), store.in_use(loaded):
        pass


def test_remove_image_in_use_without_a_name_is_refused_by_its_id(store, tmp_path):
    loaded = load(store, tmp_path, registry.layer({"a": b"1"}))
    load(store, tmp_path, registry.layer({"a": b"2"}))  # takes the name
    with store.in_use(loaded), pytest.raises(Misused, match=f"Image {loaded.id} is used by a pod"):
        store.remove(f"team/app@{loaded.id}")


PASSWD = "root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\nbroken\nno:x:a:b:::\n"
GROUPS = "staff:x:50:\n"


@pytest.mark.parametrize(
    ("user", "pod", "expected"),
    [
        ("", SecurityContext(), (0, 0, "/root")),
        ("app", SecurityContext(), (1000, 1001, "/home/app")),
        ("1000", SecurityContext(), (1000, 1001, "/home/app")),
        ("7", SecurityContext(), (7, 0, "/")),
        ("app:staff", SecurityContext(), (1000, 50, "/home/app")),
        ("7:8", SecurityContext(), (7, 8, "/")),
        ("app", SecurityContext(user=0), (0, 0, "/root")),
        ("app", SecurityContext(user=1000), (1000, 1001, "/home/app")),
        ("app", SecurityContext(user=5, group=6), (5, 6, "/")),
        ("app", SecurityContext(run_as_non_root=True), (1000, 1001, "/home/app")),
    ],
)
def test_resolve_user_as_container_runtimes_do(tmp_path, user, pod, expected):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(PASSWD)
    (tmp_path / "etc/group").write_text(GROUPS)
    found = image_users.resolve(pod, user, tmp_path)
    assert (found.user, found.group, image_users.home(found.user, tmp_path)) == expected


@pytest.mark.parametrize(
    ("user", "pod", "message"),
    [
        ("ghost", SecurityContext(), "no user 'ghost'"),
        ("7:ghost", SecurityContext(), "no group 'ghost'"),
        ("", SecurityContext(run_as_non_root=True), "runAsNonRoot"),
    ],
)
def test_resolve_user_that_cannot_run_is_rejected(tmp_path, user, pod, message):
    with pytest.raises(Rejected, match=message):
        image_users.resolve(pod, user, tmp_path)


def test_resolve_user_reads_no_file_of_the_machine(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").symlink_to("/etc/passwd")
    with pytest.raises(Rejected):
        image_users.resolve(SecurityContext(), "nobody", tmp_path)
