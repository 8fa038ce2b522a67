"""Registry credentials of an image, from the pull secrets of its pod. Pure.

A cloud takes one user and password. So credentials are sent only if exactly one fits the image; the most specific
repository path wins. Messages never repeat a value of a Secret.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
from collections.abc import Iterator, Mapping

import msgspec

from skysail.base import untrusted_json
from skysail.cloud import image_names
from skysail.cloud.account import RegistryCredentials
from skysail.node.config.env import Data

_API_PATHS = frozenset({"v1", "v2"})


class Choice(msgspec.Struct, frozen=True):
    """Credentials for the image, or None. `problem` says why pull secrets are not used, or is empty."""

    credentials: RegistryCredentials | None = None
    problem: str = ""


class _Entry(msgspec.Struct, frozen=True):
    username: str = ""
    password: str = ""
    auth: str = ""


class _Config(msgspec.Struct, frozen=True):
    auths: dict[str, _Entry] = msgspec.field(default_factory=dict)


def choose(image: str, pull_secrets: Mapping[str, Data | None]) -> Choice:
    """Return the credentials of the image's registry. A pull secret that is None does not exist."""
    name = image_names.parse(image)
    host, repository = name.registry, name.repository
    found: dict[tuple[str, str], int] = {}
    problems = []
    for secret, data in pull_secrets.items():
        entries = None if data is None else _entries(data)
        if entries is None:
            problems.append(f"Pull secret {secret} {'does not exist' if data is None else 'is no docker config'}.")
            continue
        for registry, entry in entries.items():
            length, login = _match(registry, host, repository), _login(entry)
            if length is not None and login is not None:
                found[login] = max(length, found.get(login, 0))
    best = [login for login, length in found.items() if length == max(found.values())]
    if len(best) > 1:
        problems.append(f"Pull secrets have {len(best)} different logins for {host}: keep one of them.")
    if len(best) != 1:
        return Choice(problem=" ".join(problems))
    return Choice(RegistryCredentials(host, *best[0]), " ".join(problems))


def _entries(data: Data) -> dict[str, _Entry] | None:
    """Return the logins of a Secret by registry, or None if the Secret holds no docker config."""
    try:
        if (config := data.get(".dockerconfigjson")) is not None:
            return untrusted_json.decode(config, _Config).auths
        if (old := data.get(".dockercfg")) is not None:
            return untrusted_json.decode(old, dict[str, _Entry])
    except untrusted_json.InvalidJson:
        return None
    return None


def _match(registry: str, host: str, repository: str) -> int | None:
    """Return how many characters of the repository the entry names, or None if the entry is for another image."""
    address = registry.removeprefix("https://").removeprefix("http://").rstrip("/")
    name, _, path = address.partition("/")
    path = "" if path in _API_PATHS else path
    is_host = list(_labels_match(image_names.canonical_registry(name), host))
    if not is_host or not all(is_host) or not (f"{repository}/".startswith(f"{path}/") or not path):
        return None
    return len(path)


def _labels_match(pattern: str, host: str) -> Iterator[bool]:
    """Yield for each label of the host whether it matches. `*` stands for one label, as for a kubelet."""
    patterns, labels = pattern.split("."), host.split(".")
    if len(patterns) != len(labels):
        return
    yield from (fnmatch.fnmatchcase(label, pattern) for label, pattern in zip(labels, patterns, strict=True))


def _login(entry: _Entry) -> tuple[str, str] | None:
    if entry.username and entry.password:
        return entry.username, entry.password
    try:
        username, _, password = base64.b64decode(entry.auth, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return None
    return (username, password) if username and password else None
