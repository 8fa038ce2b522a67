"""Values of fields that reach a file, a path or an environment, in tables of at least ten each.

No cluster is needed: `node.config.container_config` decides for every node, and `local.storage.volumes` and
`local.bubblewrap.mount_points` decide about links. tests/security/test_fields.py tries samples of them on a cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from skysail.cloud.errors import Rejected
from skysail.cloud.provider import EmptyDir, File, Mount, ProjectedFiles, Volume
from skysail.local.bubblewrap import mount_points, rootfs
from skysail.local.bubblewrap.arguments import InvalidArgument
from skysail.local.bubblewrap.host_files import files_of
from skysail.local.bubblewrap.rootfs import BindMount, ContainerRoot, ImageRoot
from skysail.local.storage.volumes import VolumePaths, Volumes
from skysail.node.config import container_config
from skysail.node.config.env import ResolvedReferences
from skysail.node.config.errors import InvalidField
from tests.unit.node.pods import container, pod

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.tenant import Attempts

# More than one word or line, or no text at all.
HOST_NAMES = (
    *("a\nb", "a b", "a\tb", "a\0b", "a\rb", "\x0b", "a\x1f", "a\x7f", "a\x85b", "a\u2028b", "a\u00a0b", "\u3000"),
    *("a\n127.0.0.1 kubernetes", "x" * 256, "x\0--ro-bind\0/\0/host", "\ud800", "\u2603", "\x1b[31m"),
)
VARIABLE_NAMES = (
    *("", "=", "A=B", "=A", "A=", "A\0", "\0", "A\0=B", "LD_PRELOAD=/x\0", "A=\nB", "a==b", "\ud800"),
    *("x\0--setenv\0LD_PRELOAD\0/x", "N" * 200_000),
)
FILE_PATHS = (
    *("..", "../a", "a/..", "a/../b", "a/../../b", "/a", "/", "//a", "./../a", "a/b/../../../c", "a\0b", "\0"),
    *("x" * 256, "a/" * 3000, "\ud800", "../..data", "../../etc/passwd"),
)
# Where a link named `out` in a volume leads to.
LINKS = (
    *("/", "/etc", "..", "../..", "../../..", "/proc/self/root", "/proc/self/cwd", "/oldroot/etc", "/newroot"),
    *("inside/../../..", "/dev/shm", "out", "chain", "/proc/1/root/etc", "./../../outside"),
)

# Paths that lead through links of the kernel to the machine's files, while bubblewrap prepares a container.
KERNEL_PATHS = (
    *("/proc/self/root/oldroot/tmp/x", "/proc/1/root/oldroot/x", "/proc/self/cwd/x", "/proc/thread-self/root/oldroot"),
    *("/proc/self/fd/3", "/a/../proc/self/root/x", "//proc/self/root/x", "/./proc/self/root/x", "/sys/fs/cgroup/x"),
    *("/sys/kernel/x", "/dev/fd/3", "/dev/stdin", "/dev/stdout/x", "/dev/stderr"),
)


def _facts(**data: dict[str, bytes]) -> ResolvedReferences:
    return ResolvedReferences(config_maps=data, secrets=data, services={})


def _rejects(path: str, decide: Callable[[], object]) -> tuple[bool, str]:
    """Return whether the field is rejected by its path, without the value itself."""
    try:
        found = decide()
    except InvalidField as error:
        message = str(error)
        return message.startswith(path) and "--ro-bind" not in message and "\0" not in message, message
    return False, repr(found)


@pytest.mark.parametrize("field", ["hostname", "subdomain", "hostAliases.ip", "hostAliases.hostnames"])
def test_host_name_of_several_words_or_lines_is_rejected(attempts: Attempts, field: str) -> None:
    for value in HOST_NAMES:
        spec: dict[str, Any] = {field: value}
        if field.startswith("hostAliases"):
            ip, names = (value, ["a"]) if field.endswith("ip") else ("10.0.0.1", ["a", value])
            spec = {"hostAliases": [{"ip": ip, "hostnames": names}]}
        path = f"spec.{field.replace('hostAliases', 'hostAliases[0]')}"
        held, detail = _rejects(path, lambda spec=spec: container_config.sandbox(pod(**spec), _facts()))
        attempts.record(f"field: {field}", repr(value)[:60], held=held, detail=detail)


@pytest.mark.parametrize("field", ["env", "envFrom.secretRef", "envFrom.configMapRef", "envFrom.prefix"])
def test_name_that_is_no_variable_is_rejected(attempts: Attempts, field: str) -> None:
    for name in VARIABLE_NAMES:
        facts, fields = _facts(), {"env": [{"name": name, "value": "x"}]}
        if field == "envFrom.prefix":
            facts, fields = _facts(s={"": b"x"}), {"envFrom": [{"prefix": name, "secretRef": {"name": "s"}}]}
        elif field != "env":
            facts, fields = _facts(s={name: b"x"}), {"envFrom": [{field.partition(".")[2]: {"name": "s"}}]}
        of = pod(container("main", **fields))
        path = f"spec.containers[0].{field.partition('.')[0]}[0]"
        try:
            container_config.container(of, of.spec.containers[0], facts)
        except InvalidField as error:
            held, detail = str(error).startswith(path), str(error)[:200]
        else:
            held, detail = False, "accepted"
        attempts.record(f"field: {field}", repr(name)[:60], held=held, detail=detail)


@pytest.mark.parametrize("source", ["configMap", "secret", "downwardAPI", "projected", "serviceAccountToken"])
def test_path_of_a_file_outside_of_its_volume_is_rejected(attempts: Attempts, source: str) -> None:
    for path in FILE_PATHS:
        item, name = {"key": "k", "path": path}, {"fieldRef": {"fieldPath": "metadata.name"}}
        volume: dict[str, Any] = {
            "configMap": {"configMap": {"name": "c", "items": [item]}},
            "secret": {"secret": {"secretName": "c", "items": [item]}},
            "downwardAPI": {"downwardAPI": {"items": [{"path": path, **name}]}},
            "projected": {"projected": {"sources": [{"secret": {"name": "c", "items": [item]}}]}},
            "serviceAccountToken": {"projected": {"sources": [{"serviceAccountToken": {"path": path}}]}},
        }[source]
        of = pod(volumes=[{"name": "v", **volume}])
        tokens = container_config.required_refs(of).tokens
        facts = ResolvedReferences(
            config_maps={"c": {"k": b"x"}},
            secrets={"c": {"k": b"x"}},
            services={},
            tokens=dict.fromkeys(tokens, "token"),
        )
        held, detail = _rejects("spec.volumes (v)", lambda of=of, facts=facts: container_config.sandbox(of, facts))
        attempts.record(f"field: {source} items.path", repr(path)[:60], held=held, detail=detail)


@pytest.mark.parametrize("path", ["..data", "..1/a", "..data_tmp", "../a", "/a", "", ".", "a\0b", "a/../../b", "...a"])
def test_file_of_a_volume_with_a_reserved_name_writes_nothing_outside(
    attempts: Attempts, places: VolumePaths, tmp_path: Path, path: str
) -> None:
    before = _all(tmp_path / "outside")
    try:
        _made(places, ProjectedFiles((File(path, b"x"),)))
    except Rejected as error:
        held, detail = "not a path inside a volume" in str(error), str(error)
    else:
        held, detail = False, "written"
    attempts.record(
        "field: file of a volume", repr(path), held=held and _all(tmp_path / "outside") == before, detail=detail
    )


@pytest.mark.parametrize("part", ["out", "out/made", "inside/../out/made"])
def test_link_in_a_volume_leads_no_sub_path_out(
    attempts: Attempts, places: VolumePaths, tmp_path: Path, part: str
) -> None:
    volumes = _made(places, EmptyDir())
    root = places.folder / "uid" / "v"
    for link in LINKS:
        _linked(root, link)
        before = _all(tmp_path / "outside")
        try:
            found = volumes.bind(Mount(volume="v", path="/v", sub_path=part)).source
        except (Rejected, OSError) as error:
            held, detail = True, str(error)
        else:
            held, detail = found.startswith(f"{root}/"), found
        held = held and _all(tmp_path / "outside") == before
        attempts.record("links in volumes: subPath", f"{part} by {link}", held=held, detail=detail)


@pytest.mark.parametrize("part", ["out/made", "inside/../out/made", "out/a/b"])
def test_link_in_a_volume_leads_no_mount_point_out(
    attempts: Attempts, places: VolumePaths, tmp_path: Path, part: str
) -> None:
    source = str(_made(places, EmptyDir()).bind(Mount(volume="v", path="/v")).source)
    root = places.folder / "uid" / "v"
    binds = (BindMount(source, "/v"), BindMount(str(tmp_path / "outside"), f"/v/{part}"))
    container_root = ContainerRoot(hostname="h", env=(), binds=binds)
    for link in LINKS:
        _linked(root, link)
        before = _all(tmp_path / "outside")
        try:
            mount_points.prepare(container_root)
        except InvalidArgument as error:
            held, detail = "leads out of the volume" in str(error), str(error)
        except OSError as error:  # a link that cannot be read
            held, detail = True, str(error)
        else:  # a link to itself, which nothing can be made behind
            held, detail = link in {"out", "chain"}, "accepted"
        held = held and _all(tmp_path / "outside") == before
        attempts.record("links in volumes: mount point", f"{part} by {link}", held=held, detail=detail)


@pytest.mark.parametrize("field", ["workingDir", "mountPath", "link of an image"])
def test_path_through_links_of_the_kernel_is_rejected(attempts: Attempts, tmp_path: Path, field: str) -> None:
    """The file of terminationMessagePath is a mount, too."""
    link = tmp_path / "out"
    for path in KERNEL_PATHS:
        link.unlink(missing_ok=True)
        link.symlink_to(path)
        container_root = {
            "workingDir": ContainerRoot(hostname="h", env=(), working_dir=path),
            "mountPath": ContainerRoot(hostname="h", env=(), binds=(BindMount(str(tmp_path), path),)),
            "link of an image": ContainerRoot(
                hostname="h", env=(), working_dir="/out", image=ImageRoot(lower=str(tmp_path), scratch="")
            ),
        }[field]
        try:
            rootfs.arguments(container_root, files_of(container_root))
        except InvalidArgument as error:
            held, detail = str(error).endswith(" is a file of the kernel: choose another path."), str(error)
        else:
            held, detail = False, "accepted"
        attempts.record(f"field: {field}", path, held=held, detail=detail)


def test_links_that_follow_each_other_by_thousands_are_an_error_of_the_system(places: VolumePaths) -> None:
    volumes = _made(places, EmptyDir())
    root = places.folder / "uid" / "v"
    for number in range(2000):
        (root / f"l{number}").symlink_to(f"l{number + 1}")
    with pytest.raises(OSError, match="symbolic links"):
        volumes.bind(Mount(volume="v", path="/v", sub_path="l0"))
    binds = (BindMount(str(root), "/v"), BindMount(str(root), "/v/l0/made"))
    with pytest.raises(OSError, match="symbolic links"):
        mount_points.prepare(ContainerRoot(hostname="h", env=(), binds=binds))


@pytest.fixture
def places(tmp_path: Path) -> VolumePaths:
    (tmp_path / "outside").mkdir()
    return VolumePaths(folder=tmp_path / "volumes", memory=tmp_path / "memory", disks=tmp_path / "disks")


def _made(places: VolumePaths, source: Any) -> Volumes:
    volumes = Volumes("uid", places)
    volumes.make([Volume("v", source)])
    return volumes


def _linked(root: Path, link: str) -> None:
    """Put the link into the volume. `chain` is a second one, which leads back to it."""
    (root / "inside").mkdir(exist_ok=True)
    for name, target in (("out", link), ("chain", "out")):
        (root / name).unlink(missing_ok=True)
        (root / name).symlink_to(target)


def _all(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))
