"""Checks of the values of a pod that reach a command line, a file or a path outside of its containers. Pure.

The API server accepts most characters, including NUL, and Secrets hold any byte. Every such value goes through one of
these functions; no other code validates it. Their errors never repeat a value, because it may be a secret.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

from skysail.node.config.errors import InvalidField
from skysail.node.pod_types import Container, Pod

# Limits of the kernel: one argument or variable with its NUL, all of them with the usual stack, a path, a file name.
_MAX_STRING = 128 * 1024 - 1
_MAX_TOTAL = 2 * 1024 * 1024
_MAX_PATH = 4095
_MAX_NAME = 255
_POINTER = 8
_AS_FILE = "put the text into a ConfigMap or Secret, and mount that as a file"
_REFERENCE = re.compile(r"\$(?:\$|\(([^()]*)\))")
_NOT_VISIBLE_ASCII = re.compile(r"[^!-~]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Budget:
    """Size of the arguments and variables of one container, which the kernel limits together."""

    def __init__(self) -> None:
        self._left = _MAX_TOTAL

    def spend(self, path: str, size: int) -> None:
        self._left -= size + 1 + _POINTER
        if self._left < 0:
            raise InvalidField(
                path,
                f"the arguments and variables of the container are larger than {_MAX_TOTAL} bytes, which the kernel "
                f"does not take: {_AS_FILE}.",
            )


def container_path(pod: Pod, container: Container) -> str:
    """Return the path of a container of the pod, such as `spec.containers[0]`."""
    spec = pod.spec
    for name, containers in (("initContainers", spec.init_containers), ("containers", spec.containers)):
        for index, candidate in enumerate(containers):
            if candidate.name == container.name:
                return f"spec.{name}[{index}]"
    return "spec.containers"


def argument(path: str, text: str, budget: Budget) -> str:
    """Return an argument of a command line, unchanged. Raises InvalidField."""
    budget.spend(path, _checked_size(path, text))
    return text


def variable(path: str, name: str, value: str, budget: Budget) -> str:
    """Return the value of an environment variable, unchanged. Raises InvalidField."""
    if not name or "=" in name:
        raise InvalidField(path, f"{name!r} cannot be the name of an environment variable: use letters, digits and _.")
    budget.spend(path, _checked_size(path, f"{name}={value}"))
    return value


def expand(path: str, text: str, known: Mapping[str, str]) -> str:
    """Return the text with each `$(NAME)` replaced. Raises InvalidField before the result outgrows the kernel's limit.

    `$$` is a dollar, and an unknown name stays unchanged.
    """
    parts: list[str] = []
    size = end = 0
    for match in _REFERENCE.finditer(text):
        name = match.group(1)
        parts += (text[end : match.start()], "$" if name is None else known.get(name, match.group(0)))
        size += len(parts[-1]) + len(parts[-2])
        end = match.end()
        if size > _MAX_STRING:
            raise InvalidField(path, _too_long(size))
    return "".join((*parts, text[end:]))


def absolute_path(path: str, text: str) -> str:
    """Return a path inside of a container, from its root and without `..`. Raises InvalidField.

    A program that makes mount points follows `..` out of the container's root, to the files of the machine.
    """
    _check_path(path, text)
    return posixpath.normpath("/" + text.lstrip("/"))


def relative_path(path: str, text: str) -> str:
    """Return a path inside of a volume, unchanged. Raises InvalidField if the path leads out of the volume."""
    _check_path(path, text)
    if text.startswith("/") or ".." in text.split("/"):
        raise InvalidField(path, "the path leads out of its volume: name a path inside it.")
    return text


def host_path(path: str, text: str) -> str:
    """Return a path of the machine, unchanged. Raises InvalidField."""
    _check_path(path, text)
    return text


def host_name(path: str, text: str) -> str:
    """Return a name or address for a line of /etc/hosts, unchanged. Raises InvalidField."""
    if _NOT_VISIBLE_ASCII.search(text) or len(text) > _MAX_NAME:
        raise InvalidField(path, f"a host name or address has at most {_MAX_NAME} characters, all of visible ASCII.")
    return text


def image(path: str, text: str) -> str:
    """Return the name of an image, unchanged. Raises InvalidField."""
    if _CONTROL.search(text):
        raise InvalidField(path, "the name of an image has no control characters.")
    return text


def _checked_size(path: str, text: str) -> int:
    if "\0" in text:
        raise InvalidField(path, f"a NUL byte cannot be in an argument or a variable: remove it, or {_AS_FILE}.")
    size = len(_encoded(path, text))
    if size > _MAX_STRING:
        raise InvalidField(path, _too_long(size))
    return size


def _too_long(size: int) -> str:
    return f"an argument or a variable of {size} bytes, and the kernel takes at most {_MAX_STRING}: {_AS_FILE}."


def _check_path(path: str, text: str) -> None:
    if "\0" in text:
        raise InvalidField(path, "a NUL byte cannot be in a path: remove it.")
    if len(_encoded(path, text)) > _MAX_PATH:
        raise InvalidField(path, f"a path has at most {_MAX_PATH} bytes: shorten it.")
    if any(len(part.encode()) > _MAX_NAME for part in text.split("/")):
        raise InvalidField(path, f"a part of a path has at most {_MAX_NAME} bytes: shorten it.")


def _encoded(path: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidField(path, "the text has characters that UTF-8 cannot encode: remove them.") from None
