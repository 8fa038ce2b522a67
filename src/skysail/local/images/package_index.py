"""Package indexes of uv on this machine, from the environment and from uv's configuration files."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard
from urllib.parse import urlsplit

_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")
_KEYS = ("index-url", "extra-index-url", "find-links")
_PORTS = {"http": 80, "https": 443}
# An index may have a name, and one variable may list several indexes.
_NAME = re.compile(r"^[\w.-]+=(?=https?://)")


def servers(env: Mapping[str, str]) -> frozenset[tuple[str, int]]:
    """Return host and port of every index that the user configured. Empty if the public index is used."""
    lines = [word for name in _VARIABLES for word in re.split(r"[\s,]+", env.get(name, ""))]
    for file in _files(env):
        lines += _addresses(_read(file))
    return frozenset(server for address in lines if (server := _server(address)) is not None)


def _files(env: Mapping[str, str]) -> tuple[Path, ...]:
    if env.get("UV_NO_CONFIG"):
        return ()
    if chosen := env.get("UV_CONFIG_FILE"):
        return (Path(chosen),)
    user = env.get("XDG_CONFIG_HOME") or f"{env.get('HOME', '')}/.config"
    return Path(user) / "uv" / "uv.toml", Path("/etc/uv/uv.toml")


def _read(file: Path) -> dict[str, Any]:
    """Return the content of a configuration file. Empty if it is missing or invalid, which uv reports itself."""
    try:
        return tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}


def _addresses(settings: dict[str, Any]) -> Iterator[str]:
    """Yield the addresses of the indexes. Values of the wrong type are skipped, because uv reports them itself."""
    for table in filter(_is_table, (settings, settings.get("pip"))):
        found = [row for key in _KEYS for row in _rows(table.get(key))]
        found += [index.get("url") for index in filter(_is_table, _rows(table.get("index")))]
        yield from (address for address in found if isinstance(address, str))


def _rows(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_table(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _server(address: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(_NAME.sub("", address))
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    return (parts.hostname, port) if parts.hostname and port else None
