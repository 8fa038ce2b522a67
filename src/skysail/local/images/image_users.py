"""Users of an image: the ids of its USER, and home folders, from /etc/passwd and /etc/group in its root."""

from __future__ import annotations

from pathlib import Path

import msgspec

from skysail.cloud.errors import Rejected
from skysail.cloud.provider import SecurityContext
from skysail.local import root_paths

_MAX_BYTES = 1 << 20
_PASSWD_FIELDS = 7
_GROUP_FIELDS = 4


class _User(msgspec.Struct, frozen=True):
    name: str
    user: int
    group: int
    home: str


def resolve(rights: SecurityContext, image_user: str, root: Path) -> SecurityContext:
    """Return the rights with the ids of the image's USER, for those that the pod does not set.

    Raises Rejected if the image has no such user, or if the user is root although the pod forbids that.
    """
    users = _users(root)
    if rights.user is None:
        name, _, group = image_user.partition(":")
        user = _user(name or "0", users)
        own = _group(group, root) if group else user.group
        found = msgspec.structs.replace(rights, user=user.user, group=own if rights.group is None else rights.group)
    else:
        known = next((row.group for row in users if row.user == rights.user), 0)
        found = msgspec.structs.replace(rights, group=known if rights.group is None else rights.group)
    if found.run_as_non_root and not found.user:
        raise Rejected(
            "CreateContainerConfigError",
            "The pod has runAsNonRoot, and its image runs as root: set runAsUser, or USER in the image.",
        )
    return found


def home(user: int, root: Path) -> str:
    """Return the home folder of a user in the image, `/` if the image does not know the user."""
    return next((row.home for row in _users(root) if row.user == user and row.home.startswith("/")), "/")


def _user(name: str, users: list[_User]) -> _User:
    if name.isdigit():
        known = next((row for row in users if row.user == int(name)), None)
        return known or _User(name, int(name), 0, "/")
    found = next((row for row in users if row.name == name), None)
    if found is None:
        raise Rejected(
            "CreateContainerConfigError", f"The image has no user {name[:64]!r} in /etc/passwd: set runAsUser."
        )
    return found


def _group(name: str, root: Path) -> int:
    if name.isdigit():
        return int(name)
    for row in _rows(root, "/etc/group", _GROUP_FIELDS):
        if row[0] == name and row[2].isdigit():
            return int(row[2])
    raise Rejected("CreateContainerConfigError", f"The image has no group {name[:64]!r} in /etc/group: set runAsGroup.")


def _users(root: Path) -> list[_User]:
    rows = _rows(root, "/etc/passwd", _PASSWD_FIELDS)
    return [_User(row[0], int(row[2]), int(row[3]), row[5]) for row in rows if row[2].isdigit() and row[3].isdigit()]


def _rows(root: Path, path: str, fields: int) -> list[list[str]]:
    """Return the rows of a file in the image. A file that is missing or not a regular one has none."""
    try:
        place = root_paths.outside(root, path)
        if not place.is_file():
            return []
        with place.open("rb") as file:
            text = file.read(_MAX_BYTES).decode(errors="replace")
    except OSError:
        return []
    rows = (line.split(":") for line in text.splitlines())
    return [row for row in rows if len(row) == fields]
