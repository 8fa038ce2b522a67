"""Files of a training program, as they go into a ConfigMap."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from skysail.base.errors import UserError

# A ConfigMap holds 1 MiB; the rest is for names and metadata.
_MAX_BYTES = 900 * 1024
_SCRIPTS = ("train.py", "main.py", "__main__.py")
_LEFT_OUT = {"__pycache__", "node_modules", "venv", "env", "build", "dist", "wandb", "mlruns", "lightning_logs"}
_KEY = "file--"
_SUFFIXES_LEFT_OUT = (".pyc", ".pyo", ".so")


class CannotPack(UserError):
    """The program cannot be sent with the job. The message says what to do."""


class Code(msgspec.Struct, frozen=True):
    """Relative paths with their contents, and the script that is run."""

    files: dict[str, bytes]
    script: str

    @property
    def text(self) -> str:
        return self.files[self.script].decode(errors="replace")


def read(source: Path) -> Code:
    """Read a script with the modules beside it, or a whole folder. Raises CannotPack."""
    if source.is_dir():
        script = _script_of(source)
        paths = [path for path in sorted(source.rglob("*")) if path.is_file() and not _is_left_out(path, source)]
        return _read(source, paths, script)
    if not source.is_file():
        raise CannotPack(f"{source} not found: name a Python script, or a folder with one.")
    if source.suffix != ".py":
        raise CannotPack(f"{source} is not a Python script: name a file that ends with .py.")
    folder = source.parent
    return _read(folder, [source, *_modules_beside(source)], source.name)


def config_map_data(code: Code) -> tuple[dict[str, str], dict[str, str], list[dict[str, str]]]:
    """Return the texts, the other files as base64, and the items that give each key its path again."""
    texts: dict[str, str] = {}
    others: dict[str, str] = {}
    items: list[dict[str, str]] = []
    for number, (path, content) in enumerate(sorted(code.files.items())):
        key = path if _is_key(path) else f"{_KEY}{number}"
        items.append({"key": key, "path": path})
        try:
            texts[key] = content.decode()
        except UnicodeDecodeError:
            others[key] = base64.b64encode(content).decode()
    return texts, others, items


def _script_of(folder: Path) -> str:
    for name in _SCRIPTS:
        if (folder / name).is_file():
            return name
    scripts = sorted(path.name for path in folder.glob("*.py"))
    if len(scripts) == 1:
        return scripts[0]
    names = f" It has {', '.join(scripts[:10])}." if scripts else ""
    raise CannotPack(f"{folder} has none of {', '.join(_SCRIPTS)}: name the script itself.{names}")


def _modules_beside(script: Path) -> Iterator[Path]:
    """Yield what the script can import from its own folder: modules, and packages with an `__init__.py`."""
    for path in sorted(script.parent.iterdir()):
        if path != script and path.suffix == ".py" and path.is_file():
            yield path
        elif path.is_dir() and (path / "__init__.py").is_file() and not _is_left_out(path, script.parent):
            yield from (
                found for found in sorted(path.rglob("*")) if found.is_file() and not _is_left_out(found, script.parent)
            )


def _is_left_out(path: Path, folder: Path) -> bool:
    parts = path.relative_to(folder).parts
    return any(part in _LEFT_OUT or part.startswith(".") for part in parts) or path.suffix in _SUFFIXES_LEFT_OUT


def _read(folder: Path, paths: list[Path], script: str) -> Code:
    files: dict[str, bytes] = {}
    size = 0
    for path in paths:
        try:
            size += path.stat().st_size
            if size > _MAX_BYTES:
                raise CannotPack(
                    f"The code in {folder} is larger than {_MAX_BYTES // 1024} KiB at {path.name}: name the script "
                    "instead of the folder, or put data on a PVC and code into an image (--image)."
                )
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
        except OSError as error:
            raise CannotPack(f"{path} cannot be read: {error.strerror}.") from error
    return Code(files, script)


def _is_key(path: str) -> bool:
    """Return whether a ConfigMap accepts the path as a key, and no other file can get the same one."""
    return bool(re.fullmatch(r"[A-Za-z0-9_.-]{1,253}", path)) and not path.startswith((_KEY, ".."))


def as_manifest(name: str, namespace: str, code: Code) -> dict[str, Any]:
    texts, others, _ = config_map_data(code)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        **({"data": texts} if texts else {}),
        **({"binaryData": others} if others else {}),
    }
