"""What a program in a box sees, as bubblewrap's arguments. Pure: the machine's files are looked at through `Host`.

The root is an empty tmpfs. Into it go, read-only, the parts of the machine that programs need, then the volumes, then
the environment. So a mount path never has to exist on the machine and is never made there.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from typing import Protocol

import msgspec

from skysail.cloud.provider import Rights
from skysail.local.bubblewrap import masked_paths
from skysail.local.bubblewrap.arguments import environment_options

# The default set of most container runtimes, without MKNOD, which no user namespace allows, and without NET_RAW: a pod
# that sends raw packets could take over the address of another pod.
CAPABILITIES = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "FSETID": 4,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "SETPCAP": 8,
    "NET_BIND_SERVICE": 10,
    "SYS_CHROOT": 18,
    "AUDIT_WRITE": 29,
    "SETFCAP": 31,
}
# Without effect in a user namespace that does not own the pod's network: accepted, and reported as ignored.
IGNORED_CAPABILITIES = frozenset({"NET_RAW"})
_NOT_ROOT = 65532
# Bounds of what a container can write into memory outside of its volumes.
_ROOT_BYTES = 256 << 20
_SHARED_MEMORY_BYTES = 1 << 30
# Not the whole of /etc: a program that is root in its box could read the machine's passwords and keys.
_SHOWN = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),
    *("/etc/alternatives", "/etc/bash.bashrc", "/etc/ca-certificates", "/etc/crypto-policies", "/etc/debian_version"),
    *("/etc/fonts", "/etc/gai.conf", "/etc/group", "/etc/host.conf", "/etc/inputrc", "/etc/ld.so.cache"),
    *("/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/mime.types", "/etc/nsswitch.conf"),
    *("/etc/os-release", "/etc/passwd", "/etc/pki/tls/certs", "/etc/profile", "/etc/protocols", "/etc/services"),
    *("/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/terminfo", "/etc/timezone"),
)
_KERNELS = ("/dev", "/proc", "/sys")
# To make a mount point below a folder of the machine, its entries are shown one by one over an empty folder.
_MOST_ENTRIES = 400


class Bind(msgspec.Struct, frozen=True):
    """A file or folder of the machine, and where the program finds it.

    `is_shared`: others can put a link in the way meanwhile, so who makes the box holds it open by `descriptor`.
    """

    source: str
    target: str
    read_only: bool = False
    is_shared: bool = False
    descriptor: int | None = None


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """All that is decided before a program starts."""

    hostname: str
    env: tuple[tuple[str, str], ...]
    working_dir: str = "/"
    binds: tuple[Bind, ...] = ()
    environment: tuple[Bind, ...] = ()  # folders of an image, mounted over everything else
    rights: Rights = Rights()
    user_namespace: int | None = None  # a descriptor; None: a new one with one id
    seccomp_filter: int | None = None  # a descriptor; None: no filter


class Host(Protocol):
    """The machine's files, as far as a room depends on them."""

    def link(self, path: str) -> str | None:
        """Where a symbolic link leads; None where there is none."""
        ...

    def exists(self, path: str) -> bool: ...

    def is_folder(self, path: str) -> bool: ...

    def names(self, path: str) -> list[str]: ...

    def resolve(self, path: str) -> str: ...


class TooCrowded(Exception):
    """A mount path below a folder with more entries than can be shown one by one."""


def arguments(room: Room, host: Host) -> list[str]:
    """Everything but the program itself. Later ones lie over earlier ones."""
    binds = [_canonical(bind, host) for bind in room.binds]
    return [
        # First, over bubblewrap's own root, which has no limit.
        *("--size", str(_ROOT_BYTES), "--tmpfs", "/"),
        *_machine(binds, host),
        *("--proc", "/proc", "--dev", "/dev", "--ro-bind-try", "/sys", "/sys"),
        *masked_paths.options(host),
        *("--perms", "1777", "--size", str(_SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"),  # noqa: S108 (in the container)
        *("--dir", "/run", "--dir", "/var/tmp"),  # noqa: S108 (inside the box)
        *_flat(_bind(bind) for bind in sorted(binds, key=lambda bind: bind.target.rstrip("/").count("/"))),
        # Last, because a volume or the box's own folders may lie over the place where the environment is.
        *_flat(
            ("--ro-bind", bind.source, bind.target)
            for bind in sorted(room.environment, key=lambda bind: bind.target)
            if not _is_shown(bind.target, host)
        ),
        # The memory of /dev has no limit, so nothing can be written there; device files and /dev/shm are mounts.
        *("--remount-ro", "/dev"),
        *(() if any(working_dir_in_bind(room, host)) else ("--dir", _from_root(room.working_dir))),
        *("--chdir", _from_root(room.working_dir)),
        *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--hostname", room.hostname),
        *("--die-with-parent", "--new-session"),
        *(("--remount-ro", "/") if room.rights.has_read_only_root else ()),
        *_rights(room),
        *environment_options(room.env),
    ]


def nested_mount_points(room: Room, host: Host) -> Iterator[tuple[Bind, str]]:
    """Yield each mount point that lies in a bind, as that bind and the path inside it."""
    binds = [_canonical(bind, host) for bind in room.binds]
    for path in (bind.target for bind in (*binds, *room.environment)):
        yield from _around(path, binds)


def working_dir_in_bind(room: Room, host: Host) -> Iterator[tuple[Bind, str]]:
    """Yield the bind in which the working directory lies, and the path inside it. Nothing if it lies in none."""
    return _around(_canonical(Bind("", room.working_dir), host).target, [_canonical(bind, host) for bind in room.binds])


def _around(path: str, binds: list[Bind]) -> Iterator[tuple[Bind, str]]:
    """Yield the innermost binds around a path: several only if they have the same target."""
    outer = [bind for bind in binds if path != bind.target and path.startswith(f"{bind.target.rstrip('/')}/")]
    innermost = max((len(bind.target) for bind in outer), default=0)
    for bind in outer:
        if len(bind.target) == innermost:
            yield bind, path[innermost:].lstrip("/")


def hides_the_system(target: str, host: Host) -> bool:
    """Whether a folder at this path would lie over files that programs need."""
    path = _canonical(Bind("", posixpath.normpath(f"/{target.strip('/')}")), host).target
    is_above = any(f"{shown}/".startswith(f"{path.rstrip('/')}/") for shown in (*_SHOWN, *_KERNELS))
    is_kernels = path.startswith(tuple(f"{top}/" for top in _KERNELS))
    is_taken = path.startswith(tuple(f"{shown}/" for shown in _SHOWN)) and host.exists(path)
    return is_above or is_kernels or is_taken


def capabilities(rights: Rights) -> dict[str, int]:
    """By name and number. Who is not root in the box has none, as in any container."""
    if user(rights):
        return {}
    left = frozenset() if "ALL" in rights.dropped else CAPABILITIES.keys() - rights.dropped
    return {name: number for name, number in CAPABILITIES.items() if name in left | rights.added}


def user(rights: Rights) -> int:
    """Nobody in particular, where it must only not be root: an environment has no user of its own."""
    return _NOT_ROOT if rights.user is None and rights.must_not_be_root else rights.user or 0


def group(rights: Rights) -> int:
    return rights.group or 0


def _canonical(bind: Bind, host: Host) -> Bind:
    """/bin is a link to /usr/bin on most machines; a mount point must be named by where it really is."""
    target = _from_root(bind.target)
    top = "/" + target.split("/")[1]
    if top in _SHOWN and host.link(top) is not None:
        target = host.resolve(top) + target.removeprefix(top)
    return msgspec.structs.replace(bind, target=target)


def _from_root(path: str) -> str:
    """Return the path without `..`: bubblewrap would follow it out of the new root, to the files of the machine."""
    return posixpath.normpath("/" + path.strip("/"))


def _machine(binds: list[Bind], host: Host) -> list[str]:
    """The shown parts, opened where a mount point must be made."""
    shown = [path for path in _SHOWN if host.exists(path) or host.link(path) is not None]
    found = _flat(_show(path, host) for path in shown)
    opened: set[str] = set()
    for bind in sorted(binds, key=lambda bind: bind.target):
        if host.exists(bind.target) or not any(bind.target.startswith(f"{path}/") for path in shown):
            continue
        folder = _deepest_folder(bind.target, host)
        if folder not in opened:
            opened.add(folder)
            found += _open(folder, bind.target, host)
    return found


def _deepest_folder(path: str, host: Host) -> str:
    while not host.is_folder(path):
        path = path.rpartition("/")[0] or "/"
    return path


def _open(folder: str, target: str, host: Host) -> list[str]:
    names = host.names(folder)
    if len(names) > _MOST_ENTRIES:
        raise TooCrowded(
            f"{target} cannot be mounted, because {folder} is full of the system's own files: choose another path."
        )
    return ["--tmpfs", folder, *_flat(_show(f"{folder}/{name}", host) for name in sorted(names))]


def _show(path: str, host: Host) -> tuple[str, ...]:
    leads_to = host.link(path)
    return ("--symlink", leads_to, path) if leads_to is not None else ("--ro-bind", path, path)


def _is_shown(path: str, host: Host) -> bool:
    return any(host.link(top) is None and f"{path}/".startswith(f"{top}/") for top in _SHOWN)


def _bind(bind: Bind) -> tuple[str, ...]:
    word = "--ro-bind" if bind.read_only else "--bind"
    if bind.descriptor is None:
        return word, bind.source, bind.target
    return f"{word}-fd", str(bind.descriptor), bind.target


def _rights(room: Room) -> list[str]:
    """Return user, capabilities and filter. Every container has a user namespace, also where the user is 0."""
    namespace = ["--unshare-user"] if room.user_namespace is None else ["--userns", str(room.user_namespace)]
    return [
        *namespace,
        *("--uid", str(user(room.rights)), "--gid", str(group(room.rights))),
        *("--cap-drop", "ALL"),
        *_flat(("--cap-add", f"CAP_{name}") for name in capabilities(room.rights)),
        *(("--seccomp", str(room.seccomp_filter)) if room.seccomp_filter is not None else ()),
    ]


def _flat(groups: Iterable[tuple[str, ...]]) -> list[str]:
    return [word for group in groups for word in group]
