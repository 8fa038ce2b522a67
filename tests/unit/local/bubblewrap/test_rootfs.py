from __future__ import annotations

from pathlib import PurePosixPath

import msgspec
import pytest

from skysail.cloud.provider import SecurityContext
from skysail.local.bubblewrap import rootfs
from skysail.local.bubblewrap.arguments import InvalidArgument
from skysail.local.bubblewrap.host_files import ImageFiles
from skysail.local.bubblewrap.rootfs import BindMount, ContainerRoot


class Disk:
    """A machine with these files; a value that is not None is where a link leads."""

    is_image = False

    def __init__(self, *files: str, links: dict[str, str] | None = None) -> None:
        self._links = links or {}
        self._files = {*files, *self._links}

    def link(self, path: str) -> str | None:
        return self._links.get(path)

    def exists(self, path: str) -> bool:
        return path in self._files or self.is_folder(path)

    def is_folder(self, path: str) -> bool:
        return any(PurePosixPath(path) in PurePosixPath(file).parents for file in self._files)

    def names(self, path: str) -> list[str]:
        below = (file.removeprefix(f"{path}/") for file in self._files if file.startswith(f"{path}/"))
        return sorted({name.split("/")[0] for name in below})

    def resolve(self, path: str) -> str:
        return f"/{self._links[path]}"


MACHINE = Disk(
    "/usr/bin/sh",
    "/usr/share/doc/readme",
    "/usr/share/zoneinfo/UTC",
    "/etc/passwd",
    "/etc/shadow",
    "/root/secret",
    links={"/bin": "usr/bin", "/etc/localtime": "/usr/share/zoneinfo/UTC"},
)


ROOT = " --size 268435456 --tmpfs / "
SHARED_MEMORY = " --perms 1777 --size 1073741824 --tmpfs /dev/shm "


def words(container_root: ContainerRoot, machine: Disk = MACHINE) -> str:
    """Return the arguments after those that every container has for its root, /proc and /dev."""
    found = " " + " ".join(rootfs.arguments(container_root, machine)) + " "
    return found.replace(ROOT, " ").replace(SHARED_MEMORY, " ").replace(" --remount-ro /dev ", " ")


def room(**wishes) -> ContainerRoot:
    return ContainerRoot(hostname="pod-1", env=(("A", "b c"),), **wishes)


def test_only_what_programs_need_is_shown_and_read_only():
    shown = words(room())
    assert " --ro-bind /usr /usr " in shown
    assert " --symlink usr/bin /bin " in shown
    assert " --symlink /usr/share/zoneinfo/UTC /etc/localtime " in shown
    assert "/etc/shadow" not in shown
    assert "/root" not in shown
    assert " --bind " not in shown


def test_env_is_cleared_before_it_is_set():
    assert words(room()).endswith(" --clearenv --setenv A b c ")


def test_a_mount_path_that_the_machine_does_not_have_needs_nothing_of_it():
    bound = words(room(binds=(BindMount("/vol", "/mnt/models/"),)))
    assert " --bind /vol /mnt/models " in bound
    assert "--tmpfs" not in bound


def test_a_new_path_below_a_shown_folder_opens_that_folder():
    bound = words(
        room(binds=(BindMount("/vol", "/usr/share/new/deep", read_only=True), BindMount("/w", "/usr/share/other")))
    )
    opened = (
        " --tmpfs /usr/share --ro-bind /usr/share/doc /usr/share/doc --ro-bind /usr/share/zoneinfo /usr/share/zoneinfo "
    )
    assert bound.count(opened) == 1
    assert bound.count("--tmpfs") == 1
    assert " --ro-bind /vol /usr/share/new/deep " in bound


def test_a_path_that_is_there_is_covered():
    bound = words(room(binds=(BindMount("/vol", "/usr/share/doc"),)))
    assert " --bind /vol /usr/share/doc " in bound
    assert "--tmpfs" not in bound


def test_a_mount_path_behind_a_link_is_named_by_where_it_is():
    assert " --bind /vol /usr/bin/tool " in words(room(binds=(BindMount("/vol", "/bin/tool"),)))


def test_a_folder_with_too_many_entries_is_not_opened():
    crowded = Disk(*(f"/usr/share/{number}" for number in range(401)))
    with pytest.raises(rootfs.TooManyEntries, match="Choose another path"):
        rootfs.arguments(room(binds=(BindMount("/vol", "/usr/share/new"),)), crowded)


def test_deeper_mounts_come_after_those_that_they_lie_in():
    bound = words(room(binds=(BindMount("/2", "/a/b/c"), BindMount("/1", "/a"), BindMount("/3", "/a/b"))))
    assert " --bind /1 /a --bind /3 /a/b --bind /2 /a/b/c " in bound


def test_the_environment_comes_last_and_only_if_it_is_not_shown_already():
    bound = words(
        room(
            binds=(BindMount("/vol", "/root"),),
            environment=tuple(BindMount(f, f) for f in ("/root/env", "/usr/lib/python")),
        )
    )
    assert bound.index(" --bind /vol /root ") < bound.index(" --ro-bind /root/env /root/env ")
    assert "/usr/lib/python" not in bound


def test_what_is_held_open_is_bound_by_its_descriptor():
    held = (
        BindMount("/vol", "/a", is_shared=True, descriptor=7),
        BindMount("/vol", "/b", read_only=True, descriptor=8),
    )
    assert " --bind-fd 7 /a --ro-bind-fd 8 /b " in words(room(binds=held))


@pytest.mark.parametrize("user", [None, 0])
def test_root_has_the_usual_rights_of_a_container_only(user):
    rights = words(room(rights=SecurityContext(user=user)))
    assert " --cap-drop ALL --cap-add CAP_CHOWN " in rights
    assert " --unshare-user --uid 0 --gid 0 " in rights
    assert not any(f"CAP_{name} " in rights for name in ("SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "MKNOD", "NET_RAW"))


@pytest.mark.parametrize(
    ("rights", "ids"),
    [
        (SecurityContext(user=1000), "--uid 1000 --gid 0"),
        (SecurityContext(user=1000, group=2000), "--uid 1000 --gid 2000"),
        (SecurityContext(run_as_non_root=True), "--uid 65532 --gid 0"),
        (SecurityContext(user=7, run_as_non_root=True), "--uid 7 --gid 0"),
    ],
)
def test_another_user_has_no_capabilities(rights, ids):
    given = words(room(rights=rights))
    assert f" --unshare-user {ids} --cap-drop ALL " in given
    assert "--cap-add" not in given


def test_root_may_be_in_another_group():
    assert " --unshare-user --uid 0 --gid 5 --cap-drop ALL --cap-add CAP_CHOWN " in words(
        room(rights=SecurityContext(group=5))
    )


@pytest.mark.parametrize(
    ("dropped", "added", "left"),
    [
        ({"ALL"}, set(), set()),
        ({"ALL"}, {"NET_BIND_SERVICE"}, {"NET_BIND_SERVICE"}),
        ({"CHOWN"}, {"SYS_ADMIN"}, set(rootfs.CAPABILITIES) - {"CHOWN"}),
    ],
)
def test_capabilities_are_dropped_and_kept_by_name(dropped, added, left):
    security = SecurityContext(drop=frozenset(dropped), add=frozenset(added))
    assert set(rootfs.capabilities(security)) == left


def test_a_root_that_may_only_be_read_is_closed_when_it_is_furnished():
    closed = words(room(rights=SecurityContext(read_only_root=True), binds=(BindMount("/vol", "/data"),)))
    assert closed.index(" --bind /vol /data ") < closed.index(" --remount-ro / ")
    assert "--remount-ro" not in words(room())


def test_rootfs_root_tmpfs_is_bounded_and_dev_is_read_only_after_mounts():
    found = " ".join(rootfs.arguments(room(binds=(BindMount("/vol", "/dev/shm"),)), MACHINE))
    assert f" {found}".startswith(ROOT)
    assert found.index("--dev /dev") < found.index(SHARED_MEMORY) < found.index("--bind /vol /dev/shm")
    assert found.index("--bind /vol /dev/shm") < found.index("--remount-ro /dev")


def test_a_user_namespace_and_a_filter_that_are_handed_over_are_used():
    handed = words(msgspec.structs.replace(room(rights=SecurityContext(user=5)), user_namespace=7, seccomp_filter=8))
    assert " --userns 7 --uid 5 --gid 0 --cap-drop ALL --seccomp 8 " in handed
    assert "--unshare-user" not in handed


def test_proc_is_covered_after_it_is_mounted_and_only_where_the_kernel_has_the_file():
    kernel = Disk("/proc/sys/kernel/core_pattern", "/proc/keys", "/proc/acpi/alarm", "/sys/firmware/dmi")
    found = " ".join(rootfs.arguments(room(), kernel))
    assert found.index("--proc /proc") < found.index("--ro-bind /proc/sys /proc/sys")
    for covered in (
        "--ro-bind /dev/null /proc/keys",
        "--tmpfs /proc/acpi --remount-ro /proc/acpi",
        "--tmpfs /sys/firmware --remount-ro /sys/firmware",
    ):
        assert covered in found
    assert "/proc/kcore" not in found


@pytest.mark.parametrize(
    "path", ["/proc/self/root/oldroot/x", "/a/../proc/1/cwd", "/sys/x", "/dev/fd/3", "/dev/stdout"]
)
def test_path_below_the_kernels_files_is_rejected(path):
    for root in (room(working_dir=path), room(binds=(BindMount("/vol", path),))):
        with pytest.raises(InvalidArgument, match="is a file of the kernel: choose another path"):
            rootfs.arguments(root, MACHINE)


def test_link_of_an_image_to_the_kernels_files_is_rejected(tmp_path):
    (tmp_path / "out").symlink_to("/proc/self/root/oldroot")
    for root in (room(working_dir="/out/x"), room(binds=(BindMount("/vol", "/out/x"),))):
        with pytest.raises(InvalidArgument, match="/out/x is a file of the kernel"):
            rootfs.arguments(root, ImageFiles(tmp_path))


def test_termination_log_is_no_file_of_the_kernel():
    assert " --bind /log /dev/termination-log " in words(room(binds=(BindMount("/log", "/dev/termination-log"),)))


def test_kernels_files_hide_the_system():
    assert rootfs.hides_the_system("/proc/self/root", MACHINE)
