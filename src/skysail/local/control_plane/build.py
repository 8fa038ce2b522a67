"""Builds the control plane's binary, once per version of its sources, into the user's cache.

Two callers at the same time build once. A build that was interrupted leaves nothing that looks finished.
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

_MAJOR, _MINOR, _ = VERSION.removeprefix("v").split(".")
_STAMP = "k8s.io/component-base/version"
# Without the stamp the server calls itself v0.0.0-master, and whatever checks a cluster's version refuses it.
_FLAGS = (
    "-v",
    "-trimpath",
    "-buildvcs=false",
    "-ldflags",
    f"-s -w -X {_STAMP}.gitVersion={VERSION} -X {_STAMP}.gitMajor={_MAJOR} -X {_STAMP}.gitMinor={_MINOR}",
)
# As upstream builds its releases; a user's own flags or workspace must not change what the key stands for. GOFLAGS is
# not empty, because Go takes an empty one for none at all and reads the user's file instead.
_ENV = {"CGO_ENABLED": "0", "GOFLAGS": "-trimpath", "GOWORK": "off"}
_FORGOTTEN = ("GOOS", "GOARCH", "GOEXPERIMENT")

_PACKAGES = 2700
_TELL_EVERY = 100
_MAX_ATTEMPTS = 8
_INITIAL_BACKOFF = 5.0
_MAX_BACKOFF = 60.0
# What passes by itself: the module proxy's limit, and the weather on the line. 403 and 404 do not.
_PASSING = (
    "429 Too Many Requests",
    "502 Bad Gateway",
    "503 Service Unavailable",
    "504 Gateway",
    "i/o timeout",
    "TLS handshake timeout",
    "connection reset by peer",
    "unexpected EOF",
)


class BuildDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """What a build needs from outside."""

    env: Mapping[str, str]
    cache: Path
    say: Callable[[str], None]
    pause: Callable[[float], None]


def cache_folder(env: Mapping[str, str]) -> Path:
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "skysail"


def key(sources: Path = SOURCES) -> str:
    """Changes with everything that goes into the binary, and with nothing else."""
    digest = hashlib.sha256()
    for name in ("main.go", "go.mod", "go.sum"):
        digest.update((sources / name).read_bytes())
        digest.update(b"\0")
    settings = (f"{name}={value}" for name, value in _ENV.items())
    digest.update("\0".join((platform.machine(), *_FLAGS, *settings)).encode())
    return digest.hexdigest()[:16]


def ensure(deps: BuildDependencies) -> Path:
    """The finished binary. At once where it is in the cache; about 7 minutes on 2 cores where it is not."""
    folder = deps.cache / "kubeplane" / key()
    binary = folder / "kubeplane"
    if binary.exists():
        return binary
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(
        folder / "lock", waiting=lambda: deps.say("another process builds the control plane: waiting for it")
    ):
        if binary.exists():
            return binary
        go = go_toolchain.find(deps.env, deps.cache, deps.say)
        deps.say(f"building Kubernetes {VERSION} with {go}, once; this takes some minutes")
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            half = Path(scratch) / "kubeplane"
            _build(go, half, deps)
            half.replace(binary)
    return binary


def _build(go: Path, output: Path, deps: BuildDependencies) -> None:
    """Try until it is built, or until it fails for a reason that does not pass. Downloads are kept between tries."""
    pause = _INITIAL_BACKOFF
    for attempt in range(1, _MAX_ATTEMPTS + 1):
        last_words = _try(go, output, deps)
        if last_words is None:
            return
        if attempt == _MAX_ATTEMPTS or not any(sign in last_words for sign in _PASSING):
            raise BuildFailed(
                f"The control plane could not be built; `go build` said:\n{last_words}\n"
                "Check the network and the disk (it needs 5 GB) and try again, or set SKYSAIL_KUBE_BIN to a folder "
                f"with etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl {VERSION}."
            )
        deps.say(f"the module proxy asks for patience: trying again in {pause:.0f} s")
        deps.pause(pause)
        pause = min(pause * 2, _MAX_BACKOFF)


def _try(go: Path, output: Path, deps: BuildDependencies) -> str | None:
    """One `go build`: None if it worked, else the end of what it said."""
    words: deque[str] = deque(maxlen=20)
    with subprocess.Popen(  # noqa: S603 (the Go that the toolchain chose)
        [go, "build", *_FLAGS, "-o", output, "."],
        cwd=SOURCES,
        env={name: value for name, value in deps.env.items() if name not in _FORGOTTEN} | _ENV,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None, "stderr is a pipe"
        for line in _progress(process.stderr, deps.say):
            words.append(line)
    return None if process.returncode == 0 else "\n".join(words)


def _progress(lines: Iterable[str], say: Callable[[str], None]) -> Iterator[str]:
    """Pass on what is neither a download nor the name of a package that has been compiled; count those."""
    compiled = 0
    for line in lines:
        text = line.rstrip()
        if text.startswith("go: downloading "):
            say(text.removeprefix("go: "))
        elif " " not in text and "/" in text:
            compiled += 1
            if compiled % _TELL_EVERY == 0:
                say(f"compiled {compiled} of about {_PACKAGES} packages")
        else:
            yield text
