"""Build the binary of the control plane, once per version of its sources, into the user's cache.

Two concurrent callers build once. An interrupted build leaves nothing that looks finished.
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from skysail.local.control_plane import go_toolchain
from skysail.local.control_plane.file_lock import exclusive
from skysail.local.errors import BuildFailed

SOURCES = Path(__file__).parent / "kubeplane"
VERSION = "v1.36.3"

_STAMP = "k8s.io/component-base/version"
_FLAGS = ("-v", "-trimpath", "-buildvcs=false")
# As upstream builds its releases. The user's own flags or workspace must not change the binary of a key. GOFLAGS is not
# empty, because Go ignores an empty value and reads the user's file instead.
_ENV = {"CGO_ENABLED": "0", "GOFLAGS": "-trimpath", "GOWORK": "off"}
_UNSET = ("GOOS", "GOARCH", "GOEXPERIMENT")

_PACKAGES = 2700
_REPORT_EVERY = 100
_MAX_ATTEMPTS = 8
_INITIAL_BACKOFF = 5.0
_MAX_BACKOFF = 60.0
# Signs of a transient failure: rate limit of the module proxy, network errors. 403 and 404 are permanent.
_TRANSIENT = (
    "429 Too Many Requests",
    "502 Bad Gateway",
    "503 Service Unavailable",
    "504 Gateway",
    "i/o timeout",
    "TLS handshake timeout",
    "connection reset by peer",
    "unexpected EOF",
)


class Kubernetes(msgspec.Struct, frozen=True, kw_only=True):
    """A version of Kubernetes, and the folder with its program and the Go modules that the program is made from."""

    version: str
    sources: Path

    @property
    def flags(self) -> tuple[str, ...]:
        """Return flags of `go build`: without a version, the server reports v0.0.0-master, and tools reject it."""
        major, minor, _ = self.version.removeprefix("v").split(".")
        stamps = {"gitVersion": self.version, "gitMajor": major, "gitMinor": minor}
        stamped = " ".join(f"-X {_STAMP}.{name}={value}" for name, value in stamps.items())
        return (*_FLAGS, "-ldflags", f"-s -w {stamped}")


CURRENT = Kubernetes(version=VERSION, sources=SOURCES)


class BuildDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """Dependencies of a build."""

    env: Mapping[str, str]
    cache: Path
    report: Callable[[str], None]
    sleep: Callable[[float], None]


def cache_folder(env: Mapping[str, str]) -> Path:
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "skysail"


def key(kubernetes: Kubernetes = CURRENT) -> str:
    """Return the cache key of the binary, which changes if and only if its inputs change."""
    digest = hashlib.sha256()
    for name in ("main.go", "go.mod", "go.sum"):
        digest.update((kubernetes.sources / name).read_bytes())
        digest.update(b"\0")
    settings = (f"{name}={value}" for name, value in _ENV.items())
    digest.update("\0".join((platform.machine(), *kubernetes.flags, *settings)).encode())
    return digest.hexdigest()[:16]


def ensure(deps: BuildDependencies, kubernetes: Kubernetes = CURRENT) -> Path:
    """Return the path of the binary, and build it if it is not cached: about 7 minutes on 2 cores.

    Raises BuildFailed.
    """
    folder = deps.cache / "kubeplane" / key(kubernetes)
    binary = folder / "kubeplane"
    if binary.exists():
        return binary
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(
        folder / "lock", waiting=lambda: deps.report("another process is building the control plane, waiting for it")
    ):
        if binary.exists():
            return binary
        go = go_toolchain.find(deps.env, deps.cache, deps.report)
        deps.report(f"building Kubernetes {kubernetes.version} with {go}, once: this takes several minutes")
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            temporary = Path(scratch) / "kubeplane"
            _build(go, kubernetes, temporary, deps)
            temporary.replace(binary)
    return binary


def _build(go: Path, kubernetes: Kubernetes, output: Path, deps: BuildDependencies) -> None:
    """Build, and retry transient failures. Downloads are kept between attempts. Raises BuildFailed."""
    backoff = _INITIAL_BACKOFF
    for attempt in range(1, _MAX_ATTEMPTS + 1):
        output_tail = _go_build(go, kubernetes, output, deps)
        if output_tail is None:
            return
        if attempt == _MAX_ATTEMPTS or not any(sign in output_tail for sign in _TRANSIENT):
            raise BuildFailed(
                f"The control plane could not be built, `go build` printed:\n{output_tail}\n"
                "Check the network and the disk (it needs 5 GB) and try again, or set SKYSAIL_KUBE_BIN to a folder "
                f"with etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl {kubernetes.version}."
            )
        deps.report(f"transient failure, retrying the build in {backoff:.0f} s")
        deps.sleep(backoff)
        backoff = min(backoff * 2, _MAX_BACKOFF)


def _go_build(go: Path, kubernetes: Kubernetes, output: Path, deps: BuildDependencies) -> str | None:
    """Run `go build` once. Returns None if it succeeded, else the end of its output."""
    errors: deque[str] = deque(maxlen=20)
    with subprocess.Popen(  # noqa: S603 (the Go that the toolchain chose)
        [go, "build", *kubernetes.flags, "-o", output, "."],
        cwd=kubernetes.sources,
        env={name: value for name, value in deps.env.items() if name not in _UNSET} | _ENV,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None, "stderr is a pipe"
        for line in _progress(process.stderr, deps.report):
            errors.append(line)
    return None if process.returncode == 0 else "\n".join(errors)


def _progress(lines: Iterable[str], report: Callable[[str], None]) -> Iterator[str]:
    """Yield the error lines. Reports downloads, and counts the compiled packages."""
    compiled = 0
    for line in lines:
        text = line.rstrip()
        if text.startswith("go: downloading "):
            report(text.removeprefix("go: "))
        elif " " not in text and "/" in text:
            compiled += 1
            if compiled % _REPORT_EVERY == 0:
                report(f"compiled {compiled} of about {_PACKAGES} packages")
        else:
            yield text
