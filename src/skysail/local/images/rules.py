"""Rules that map image names to environments, in order: the user's rules first, then ours. Builds nothing."""

from __future__ import annotations

import fcntl
import fnmatch
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from skysail.local.errors import Misused

_TAG_VERSION = re.compile(r"v?(\d{1,4}(?:\.\d{1,4}){0,2})(?![\w.])")
_PATCH_DOTS = 2
# Earlier versions do not declare that they need NumPy 1.
_TORCH_FOR_NUMPY_2 = [2, 3]
_REGISTRY = re.compile(r"^(?:[^/]*[.:][^/]*|localhost)/")


class CopiedDir(msgspec.Struct, frozen=True):
    """A folder of this machine that is copied into every container."""

    source: str
    target: str


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A pattern of image names, and the environment of these images.

    If `packages` is None, containers use the machine's own programs without an environment.

    `entrypoint` and `default_args` are ENTRYPOINT and CMD of the image: a container's `command` replaces both, its
    `args` replace `default_args`. `versioned` is the package whose version the tag of these images names.
    """

    pattern: str
    packages: tuple[str, ...] | None = ()
    python: str = ""
    entrypoint: tuple[str, ...] = ()
    default_args: tuple[str, ...] = ()
    copied: tuple[CopiedDir, ...] = ()
    versioned: str = ""

    def matches(self, image: str) -> bool:
        return any(fnmatch.fnmatchcase(name, self.pattern) for name in names(image))

    def for_tag(self, image: str) -> Rule:
        """Return this rule with the version that the tag of the image names. The same rule if it names none."""
        version = tag_version(image) if self.versioned else ""
        if not version:
            return self
        pin = f"{self.versioned}=={version}" + ("" if version.count(".") >= _PATCH_DOTS else ".*")
        replaced = {self.versioned: pin}
        numbers = [int(number) for number in version.split(".")]
        if self.versioned == "torch" and len(numbers) > 1 and numbers < _TORCH_FOR_NUMPY_2:
            replaced["numpy"] = "numpy<2"
        packages = tuple(replaced.get(name, name) for name in self.packages or ())
        return msgspec.structs.replace(self, packages=packages)


# Working directory as in PyTorch's own image. Ours has the training script that the sample TrainingJob runs.
_WORKSPACE = CopiedDir(str(Path(__file__).with_name("workspace")), "/workspace")

_RUNTIMES = Path(__file__).parents[2] / "runtimes"


def _runtime(pattern: str, module: str, *packages: str, versioned: str = "") -> Rule:
    """Return the rule of an image of ours: its packages, and the module of this version of Skysail."""
    entrypoint = ("env", "PYTHONPATH=/opt/skysail", "python", "-m", f"skysail.runtimes.{module}")
    copied_dir = CopiedDir(str(_RUNTIMES), "/opt/skysail/skysail/runtimes")
    return Rule(pattern=pattern, packages=packages, entrypoint=entrypoint, copied=(copied_dir,), versioned=versioned)


_FETCH = ("aiohttp", "huggingface-hub", "msgspec", "obstore")
# The server uses internals of uvicorn's protocol, so the version is bounded.
_ENGINE = ("fastapi", "httptools", "msgspec", "numpy", "onnxruntime", "orjson", "uvicorn>=0.54,<0.55", "uvloop")
# At a cloud, a server downloads its model itself.
_SERVER = tuple(dict.fromkeys((*_ENGINE, *_FETCH)))

DEFAULT_RULES = (
    _runtime("*skysail-fetch:*", "fetch", *_FETCH),
    _runtime("*fastapi-onnx:*", "model_server", *_SERVER),
    _runtime("*fastapi-pytorch:*", "model_server", *_SERVER, "safetensors", "torch"),
    Rule(pattern="python:*", default_args=("python3",)),
    Rule(pattern="pytorch/pytorch:*", packages=("torch", "numpy"), copied=(_WORKSPACE,), versioned="torch"),
    Rule(pattern="*xgboost*", packages=("xgboost-cpu", "numpy", "scipy")),
    Rule(pattern="*jax*", packages=("jax[cpu]", "numpy")),
    # TensorFlow Serving is not a Python package, so a Python stand-in serves its API.
    _runtime("tensorflow/serving:*", "tensorflow_serving", "tensorflow-cpu", versioned="tensorflow-cpu"),
    Rule(pattern="tensorflow/tensorflow:*", packages=("tensorflow-cpu",), versioned="tensorflow-cpu"),
    *(
        Rule(pattern=f"{system}:*", packages=None, default_args=("sh",))
        for system in ("busybox", "alpine", "debian", "ubuntu", "bash")
    ),
)


def names(image: str) -> tuple[str, ...]:
    """Return the spellings of an image that a rule may match: as written, without registry, without tag.

    An image without a tag has the tag latest, so that `python` matches `python:*`.
    """
    bare = image.partition("@")[0]
    untagged = re.sub(r":[^/:]*$", "", bare)
    tagged = bare if bare != untagged else f"{bare}:latest"
    short = [_REGISTRY.sub("", name).removeprefix("library/") for name in (tagged, untagged)]
    return tuple(dict.fromkeys((image, tagged, untagged, *short)))


def _copied(stored: Any) -> Any:
    """Return the stored folders as a list. Earlier versions stored one folder or none."""
    return stored if isinstance(stored, list) else ([stored] if stored else [])


def tag_version(image: str) -> str:
    """Return the version at the beginning of the tag, such as 2.3.1 of `2.3.1-cuda12.1`. Empty if there is none."""
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    match = _TAG_VERSION.match(tag)
    return match[1] if match else ""


class Rules:
    """Rules of one cluster: the user's rules in a file, newest first, then the starting set."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def find(self, image: str) -> Rule | None:
        return next((rule for rule in self.all() if rule.matches(image)), None)

    def all(self) -> tuple[Rule, ...]:
        own = self.own()
        return (*own, *(rule for rule in DEFAULT_RULES if rule.pattern not in {added.pattern for added in own}))

    def own(self) -> tuple[Rule, ...]:
        try:
            rows = msgspec.json.decode(self._file.read_bytes(), type=list[dict[str, Any]])
        except FileNotFoundError:
            return ()
        return msgspec.convert([{**row, "copied": _copied(row.get("copied"))} for row in rows], tuple[Rule, ...])

    def add(self, rule: Rule) -> None:
        """Add a rule in front of the others, and replace an older rule of the same pattern."""
        self._change(lambda own: (rule, *(other for other in own if other.pattern != rule.pattern)))

    def remove(self, pattern: str) -> None:
        if pattern not in {rule.pattern for rule in self.own()}:
            raise Misused(f"Image {pattern!r} not found: `skysail image list` shows the images that were added.")
        self._change(lambda own: tuple(rule for rule in own if rule.pattern != pattern))

    def _change(self, change: Callable[[tuple[Rule, ...]], tuple[Rule, ...]]) -> None:
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(self._file.with_suffix(".lock")):
            draft = self._file.with_suffix(".draft")
            draft.write_bytes(msgspec.json.format(msgspec.json.encode(change(self.own()))))
            draft.replace(self._file)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of the rules across processes."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
