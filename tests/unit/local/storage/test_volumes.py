from __future__ import annotations

from pathlib import Path

import pytest

from skysail.cloud.errors import Gone, Rejected
from skysail.cloud.provider import EmptyDir, File, HostPath, Mount, PersistentDisk, ProjectedFiles, Volume
from skysail.local.storage.volumes import VolumePaths, Volumes


@pytest.fixture
def places(tmp_path) -> VolumePaths:
    (tmp_path / "open").mkdir()
    return VolumePaths(
        folder=tmp_path / "volumes", memory=tmp_path / "memory", disks=tmp_path / "disks", allowed=(tmp_path / "open",)
    )


def made(volume_paths: VolumePaths, source: object) -> Volumes:
    volumes = Volumes("uid", volume_paths)
    volumes.make([Volume("v", source)])
    return volumes


def path_of(volumes: Volumes, **wishes) -> Path:
    return Path(volumes.bind(Mount(volume="v", path="/v", **wishes)).source)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_scratch_is_on_disk_or_in_memory_and_anybody_may_write(places):
    for in_memory, folder in ((False, places.folder), (True, places.memory)):
        path = path_of(made(places, EmptyDir(in_memory=in_memory)))
        assert path == folder / "uid" / "v"
        assert mode(path) == 0o777


def test_files_are_links_through_one_link(places):
    path = path_of(made(places, ProjectedFiles((File("a", b"1"), File("deep/b", b"2", 0o600)))))
    assert names(path) == ["..1", "..data", "a", "deep"]
    assert (path / "..data").readlink() == Path("..1")
    assert (path / "a").readlink() == Path("..data/a")
    assert (path / "deep").readlink() == Path("..data/deep")
    assert mode(path / "deep" / "b") == 0o600


def test_an_update_moves_the_link_and_follows_the_names(places):
    volumes = made(places, ProjectedFiles((File("stays", b"1"), File("goes", b"1"))))
    path = path_of(volumes)
    volumes.update("v", (File("stays", b"2"), File("comes", b"2")))
    assert names(path) == ["..2", "..data", "comes", "stays"]
    assert (path / "stays").read_text() == "2"
    volumes.update("v", ())
    assert names(path) == ["..3", "..data"]


def test_an_update_that_was_broken_off_does_not_hinder_the_next(places):
    volumes = made(places, ProjectedFiles((File("a", b"1"),)))
    path = path_of(volumes)
    (path / "..2").mkdir()
    (path / "..data_tmp").symlink_to("..2")
    volumes.update("v", (File("a", b"2"),))
    assert (path / "a").read_text() == "2"


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", ""])
def test_a_file_stays_in_its_volume(places, path):
    with pytest.raises(Rejected, match="not a path inside a volume"):
        made(places, ProjectedFiles((File(path, b""),)))


def test_files_are_read_only_whatever_the_mount_says(places):
    assert made(places, ProjectedFiles(())).bind(Mount(volume="v", path="/v", read_only=False)).read_only


def test_a_folder_of_the_machine_must_be_open_to_pods(places, tmp_path):
    (tmp_path / "closed").mkdir()
    (tmp_path / "open" / "link").symlink_to(tmp_path / "closed")
    for path in (tmp_path / "closed", tmp_path / "open" / ".." / "closed", tmp_path / "open" / "link", "/"):
        with pytest.raises(Rejected, match="Pods may not use folder") as rejected:
            made(places, HostPath(str(path)))
        assert rejected.value.reason == "HostPathNotAllowed"
    assert path_of(made(places, HostPath(str(tmp_path / "open")))) == tmp_path / "open"


def test_a_folder_of_the_machine_is_made_only_on_request(places, tmp_path):
    wanted = tmp_path / "open" / "new"
    with pytest.raises(Rejected, match="does not exist"):
        made(places, HostPath(str(wanted)))
    assert path_of(made(places, HostPath(str(wanted), create=True))) == wanted
    assert wanted.is_dir()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc"])
def test_a_disk_has_a_plain_name(places, name):
    with pytest.raises(Rejected, match="not a valid volume name"):
        made(places, PersistentDisk(name))


def test_removing_leaves_disks_and_the_machines_folders(places, tmp_path):
    volumes = Volumes("uid", places)
    volumes.make(
        [
            Volume("s", EmptyDir()),
            Volume("m", EmptyDir(in_memory=True)),
            Volume("d", PersistentDisk("one")),
            Volume("f", HostPath(str(tmp_path / "open"))),
        ]
    )
    volumes.remove()
    volumes.remove()
    assert list(places.folder.iterdir()) == list(places.memory.iterdir()) == []
    assert (places.disks / "one").is_dir()
    assert (tmp_path / "open").is_dir()


def test_a_part_is_made_in_a_writable_volume_only(places):
    with pytest.raises(Rejected, match="does not exist in its volume"):
        path_of(made(places, ProjectedFiles(())), sub_path="a/b")
    assert path_of(made(places, EmptyDir()), sub_path="a/b").is_dir()


def test_a_part_stays_in_its_volume(places, tmp_path):
    (tmp_path / "open" / "folder" / "part").mkdir(parents=True)
    (tmp_path / "closed" / "part").mkdir(parents=True)
    volumes = made(places, HostPath(str(tmp_path / "open" / "folder")))
    for part in ("..", "a/../../b", "/etc"):
        with pytest.raises(Rejected, match="leads out of its volume"):
            path_of(volumes, sub_path=part)
    (tmp_path / "open" / "folder").rename(tmp_path / "open" / "away")
    (tmp_path / "open" / "folder").symlink_to(tmp_path / "closed")
    with pytest.raises(Rejected, match="leads out of its volume"):
        path_of(volumes, sub_path="part")


def test_a_part_that_is_a_link_to_itself_cannot_be_opened(places):
    volumes = made(places, EmptyDir())
    (path_of(volumes) / "a").symlink_to("a")
    with pytest.raises(OSError, match="path contains a link"):
        path_of(volumes, sub_path="a")


def test_what_is_not_there_cannot_be_replaced(places):
    with pytest.raises(Gone):
        made(places, ProjectedFiles(())).update("other", ())


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_volume_that_outgrew_its_limit_is_named(places, in_memory):
    volumes = made(places, EmptyDir(in_memory=in_memory, size_limit=64 * 1024))
    folder = path_of(volumes) / "deep"
    folder.mkdir()
    (folder / "a").write_bytes(b"x" * 32 * 1024)
    (folder / "link").symlink_to("/etc")
    assert (volumes.have_limits, volumes.excess()) == (True, "")
    (folder / "b").write_bytes(b"x" * 64 * 1024)
    assert '"v" exceeds the limit "64Ki".' in volumes.excess()


@pytest.mark.parametrize("limit", [None, 0])
def test_a_volume_without_a_limit_may_grow(places, limit):
    volumes = made(places, EmptyDir(size_limit=limit))
    (path_of(volumes) / "a").write_bytes(b"x" * 64 * 1024)
    assert (volumes.have_limits, volumes.excess()) == (False, "")


@pytest.mark.parametrize("part", ["../canary", "/canary", "canary"])
def test_part_that_cannot_be_mounted_is_rejected_without_its_path(places, part):
    with pytest.raises(Rejected, match="The subPath of the mount at /v ") as caught:
        path_of(made(places, ProjectedFiles(())), sub_path=part)
    assert "canary" not in str(caught.value)
