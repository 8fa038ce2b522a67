"""File system of a container, as arguments of bubblewrap. Pure: `HostFs` gives access to the machine's files.

The root is an empty tmpfs. Read-only parts of the machine that programs need are mounted first, then the volumes, then
the environment. So a mount path need not exist on the machine and is never created there.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from typing import Protocol

import msgspec

from skysail.cloud.provider import SecurityContext
from skysail.local.bubblewrap import masked_paths
from skysail.local.bubblewrap.arguments import InvalidArgument, environment_options

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
# Limits of memory that a container can use by writing files outside of its volumes.
_ROOT_BYTES = 256 << 20
_SHARED_MEMORY_BYTES = 1 << 30
# Not all of /etc: a program that is root in its container could read the machine's passwords and keys.
_HOST_DIRS = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),
    *("/etc/alternatives", "/etc/bash.bashrc", "/etc/ca-certificates", "/etc/crypto-policies", "/etc/debian_version"),
    *("/etc/fonts", "/etc/gai.conf", "/etc/group", "/etc/host.conf", "/etc/inputrc", "/etc/ld.so.cache"),
    *("/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/mime.types", "/etc/nsswitch.conf"),
    *("/etc/os-release", "/etc/passwd", "/etc/pki/tls/certs", "/etc/profile", "/etc/protocols", "/etc/services"),
    *("/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/terminfo", "/etc/timezone"),
)
# Settings that an administrator put there, such as tokens of package registries, and no programs.
_HOST_SETTINGS = "/usr/local/etc"
_HOST_SETTINGS_BYTES = 1 << 20
_KERNELS = ("/dev", "/proc", "/sys")
# bubblewrap would follow links of the kernel there, such as /proc/self/root, to the machine's files.
_KERNEL_FILES = ("/proc/", "/sys/", "/dev/core", "/dev/fd", "/dev/std")
# To create a mount point below a folder of the machine, its entries are mounted one by one over an empty folder.
_MAX_ENTRIES = 400


class BindMount(msgspec.Struct, frozen=True):
    """A file or folder of the machine, and its path in the container.

    `is_shared`: another pod can put a link into the path at any time, so the source is opened first and mounted by
    `descriptor`.
    """

    source: str
    target: str
    read_only: bool = False
    is_shared: bool = False
    descriptor: int | None = None


class ImageRoot(msgspec.Struct, frozen=True, kw_only=True):
    """Root of an image, on which a container writes without changing it.

    `lower` is the image, shared read-only by all pods. `scratch` is a folder of the container for what it changes.
    `merged` is the mount of both, while the container starts.
    """

    lower: str
    scratch: str
    merged: str = ""


class ContainerRoot(msgspec.Struct, frozen=True, kw_only=True):
    """Mounts, environment variables and privileges of a container."""

    hostname: str
    env: tuple[tuple[str, str], ...]
    working_dir: str = "/"
    binds: tuple[BindMount, ...] = ()
    environment: tuple[BindMount, ...] = ()  # folders of an image, mounted last
    rights: SecurityContext = SecurityContext()
    image: ImageRoot | None = None  # None: the root has read-only folders of the machine
    user_namespace: int | None = None  # a descriptor; None: a new one with one id
    seccomp_filter: int | None = None  # a descriptor; None: no filter


class HostFs(Protocol):
    """Access to the machine's files, or to those of an image. Links of an image never lead out of it."""

    @property
    def is_image(self) -> bool: ...

    def link(self, path: str) -> str | None:
        """Return the target of a symbolic link. Returns None if the path is not a link."""
        ...

    def exists(self, path: str) -> bool: ...

    def is_folder(self, path: str) -> bool: ...

    def names(self, path: str) -> list[str]: ...

    def resolve(self, path: str) -> str: ...


class TooManyEntries(Exception):
    """A mount path below a folder with more entries than can be mounted one by one."""


def arguments(container_root: ContainerRoot, host_fs: HostFs) -> list[str]:
    """Return all arguments except for the program. Later mounts cover earlier ones."""
    bind_mounts = [_canonical(bind_mount, host_fs) for bind_mount in container_root.binds]
    return [
        *_base(container_root, bind_mounts, host_fs),
        *("--proc", "/proc", "--dev", "/dev", "--ro-bind-try", "/sys", "/sys"),
        *masked_paths.options(host_fs),
        *("--perms", "1777", "--size", str(_SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"),  # noqa: S108 (in the container)
        *("--dir", _resolved("/run", host_fs), "--dir", _resolved("/var/tmp", host_fs)),  # noqa: S108 (inside the container)
        *_flat(
            _bind(bind_mount)
            for bind_mount in sorted(bind_mounts, key=lambda bind_mount: bind_mount.target.rstrip("/").count("/"))
        ),
        # Last, because volumes or the container's own folders may cover the path of the environment.
        *_flat(
            ("--ro-bind", bind_mount.source, bind_mount.target)
            for bind_mount in sorted(container_root.environment, key=lambda bind_mount: bind_mount.target)
            if not _is_host_dir(bind_mount.target, host_fs)
        ),
        # The tmpfs of /dev has no size limit, so it is read-only; device files and /dev/shm are mounts of their own.
        *("--remount-ro", "/dev"),
        *(
            ()
            if any(working_dir_in_bind(container_root, host_fs))
            else ("--dir", _resolved(container_root.working_dir, host_fs))
        ),
        *("--chdir", _from_root(container_root.working_dir)),
        *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--hostname", container_root.hostname),
        *("--die-with-parent", "--new-session"),
        *(("--remount-ro", "/") if container_root.rights.read_only_root else ()),
        *_rights(container_root),
        *environment_options(container_root.env),
    ]


def nested_mount_points(container_root: ContainerRoot, host_fs: HostFs) -> Iterator[tuple[BindMount, str]]:
    """Yield each mount point inside a bind, as that bind and the path inside it."""
    bind_mounts = [_canonical(bind_mount, host_fs) for bind_mount in container_root.binds]
    for path in (bind_mount.target for bind_mount in (*bind_mounts, *container_root.environment)):
        yield from _innermost_binds(path, bind_mounts)


def working_dir_in_bind(container_root: ContainerRoot, host_fs: HostFs) -> Iterator[tuple[BindMount, str]]:
    """Yield the bind that contains the working directory, and the path inside it, if there is one."""
    return _innermost_binds(
        _canonical(BindMount("", container_root.working_dir), host_fs).target,
        [_canonical(bind_mount, host_fs) for bind_mount in container_root.binds],
    )


def _innermost_binds(path: str, bind_mounts: list[BindMount]) -> Iterator[tuple[BindMount, str]]:
    """Yield the innermost binds around a path: several only if they have the same target."""
    outer = [
        bind_mount
        for bind_mount in bind_mounts
        if path != bind_mount.target and path.startswith(f"{bind_mount.target.rstrip('/')}/")
    ]
    innermost = max((len(bind_mount.target) for bind_mount in outer), default=0)
    for bind_mount in outer:
        if len(bind_mount.target) == innermost:
            yield bind_mount, path[innermost:].lstrip("/")


def hides_the_system(target: str, host_fs: HostFs) -> bool:
    """Return whether a mount at this path would cover files that programs need."""
    path = _without_links(target, host_fs)
    is_above = any(f"{host_dir}/".startswith(f"{path.rstrip('/')}/") for host_dir in (*_HOST_DIRS, *_KERNELS))
    is_kernels = path.startswith(tuple(f"{top}/" for top in _KERNELS))
    is_taken = path.startswith(tuple(f"{host_dir}/" for host_dir in _HOST_DIRS)) and host_fs.exists(path)
    return is_above or is_kernels or is_taken


def capabilities(security: SecurityContext) -> dict[str, int]:
    """Return capabilities by name, with their numbers. Users other than root have none, as in any container."""
    if user(security):
        return {}
    left = frozenset() if "ALL" in security.drop else CAPABILITIES.keys() - security.drop
    return {name: number for name, number in CAPABILITIES.items() if name in left | security.add}


def user(security: SecurityContext) -> int:
    """Return the user id.

    With runAsNonRoot and no user an arbitrary id, because an environment has no user of its own.
    """
    return _NOT_ROOT if security.user is None and security.run_as_non_root else security.user or 0


def group(security: SecurityContext) -> int:
    return security.group or 0


def _base(container_root: ContainerRoot, bind_mounts: list[BindMount], host_fs: HostFs) -> list[str]:
    """Return the mounts of the root: the image, or an empty folder with folders of the machine."""
    if container_root.image is not None:
        return ["--bind", container_root.image.merged, "/"]
    # First, over bubblewrap's own root, which has no size limit.
    return ["--size", str(_ROOT_BYTES), "--tmpfs", "/", *_machine(bind_mounts, host_fs)]


def _canonical(bind_mount: BindMount, host_fs: HostFs) -> BindMount:
    return msgspec.structs.replace(bind_mount, target=_resolved(bind_mount.target, host_fs))


def _resolved(path: str, host_fs: HostFs) -> str:
    """Return the real path of a mount point. Raises InvalidArgument if the kernel's files are there."""
    target = _without_links(path, host_fs)
    if target.startswith(_KERNEL_FILES):
        raise InvalidArgument(f"{path} is a file of the kernel: choose another path.")
    return target


def _without_links(path: str, host_fs: HostFs) -> str:
    """Resolve links in a path of the container: a mount point must be a real path, and /bin is often a link.

    In an image, all links are resolved: bubblewrap would follow them to files of the machine.
    """
    target = _from_root(path)
    if host_fs.is_image:
        return host_fs.resolve(target)
    top = "/" + target.split("/")[1]
    if top in _HOST_DIRS and host_fs.link(top) is not None:
        target = host_fs.resolve(top) + target.removeprefix(top)
    return target


def _from_root(path: str) -> str:
    """Return the path without `..`, which bubblewrap would follow out of the new root to the machine's files."""
    return posixpath.normpath("/" + path.strip("/"))


def _machine(bind_mounts: list[BindMount], host_fs: HostFs) -> list[str]:
    """Return the mounts of the machine's folders, split into entries where a mount point must be created."""
    arguments = [path for path in _HOST_DIRS if host_fs.exists(path) or host_fs.link(path) is not None]
    found = _flat(_show(path, host_fs) for path in arguments)
    opened: set[str] = set()
    for bind_mount in sorted(bind_mounts, key=lambda bind_mount: bind_mount.target):
        if host_fs.exists(bind_mount.target) or not any(bind_mount.target.startswith(f"{path}/") for path in arguments):
            continue
        folder = _deepest_folder(bind_mount.target, host_fs)
        if folder not in opened:
            opened.add(folder)
            found += _open(folder, bind_mount.target, host_fs)
    if host_fs.is_folder(_HOST_SETTINGS):
        found += ["--size", str(_HOST_SETTINGS_BYTES), "--tmpfs", _HOST_SETTINGS]
    return found


def _deepest_folder(path: str, host_fs: HostFs) -> str:
    while not host_fs.is_folder(path):
        path = path.rpartition("/")[0] or "/"
    return path


def _open(folder: str, target: str, host_fs: HostFs) -> list[str]:
    names = host_fs.names(folder)
    if len(names) > _MAX_ENTRIES:
        raise TooManyEntries(
            f"Mount at {target} rejected: {folder} has too many files of the system. Choose another path."
        )
    return ["--tmpfs", folder, *_flat(_show(f"{folder}/{name}", host_fs) for name in sorted(names))]


def _show(path: str, host_fs: HostFs) -> tuple[str, ...]:
    leads_to = host_fs.link(path)
    return ("--symlink", leads_to, path) if leads_to is not None else ("--ro-bind", path, path)


def _is_host_dir(path: str, host_fs: HostFs) -> bool:
    return any(host_fs.link(top) is None and f"{path}/".startswith(f"{top}/") for top in _HOST_DIRS)


def _bind(bind_mount: BindMount) -> tuple[str, ...]:
    word = "--ro-bind" if bind_mount.read_only else "--bind"
    if bind_mount.descriptor is None:
        return word, bind_mount.source, bind_mount.target
    return f"{word}-fd", str(bind_mount.descriptor), bind_mount.target


def _rights(container_root: ContainerRoot) -> list[str]:
    """Return user, capabilities and filter. Every container has a user namespace, even if the user is 0."""
    namespace = (
        ["--unshare-user"]
        if container_root.user_namespace is None
        else ["--userns", str(container_root.user_namespace)]
    )
    return [
        *namespace,
        *("--uid", str(user(container_root.rights)), "--gid", str(group(container_root.rights))),
        *("--cap-drop", "ALL"),
        *_flat(("--cap-add", f"CAP_{name}") for name in capabilities(container_root.rights)),
        *(("--seccomp", str(container_root.seccomp_filter)) if container_root.seccomp_filter is not None else ()),
    ]


def _flat(groups: Iterable[tuple[str, ...]]) -> list[str]:
    return [word for group in groups for word in group]
