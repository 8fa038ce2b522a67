"""Rights that Skysail used: by the audit logs of test clusters, and by requests of operators in the simulation.

Only the simulation has all faults, after which an operator reads what it has written. `make rights` compares the uses
with the rights that are granted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

from scripts import granted_rights
from scripts.granted_rights import Right

_ACCOUNTS = "system:serviceaccount:skysail-system:"
OPERATOR = f"{_ACCOUNTS}skysail"
FOLDER = Path(__file__).resolve().parents[2] / "build" / "rights"
_CREATED = 201
_FORBIDDEN = 403
# Parts of the path of one namespace: `namespaces` and its name.
_NAMESPACED = 2
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "WATCH": "watch"}
# What the RBAC authorizer says. Quotas, admission and namespaces that are being deleted answer with the same code.
_NO_RIGHT = "cannot "


class Use(msgspec.Struct, frozen=True, order=True):
    """One kind of request of one account. Names and namespaces are kept only where a right is granted by them."""

    group: str
    resource: str
    verb: str
    namespace: str = ""
    name: str = ""
    account: str = "skysail"
    is_forbidden: bool = False

    def proves(self, right: Right) -> bool:
        """Return whether this request needed the right."""
        return not self.is_forbidden and self.is_about(right)

    def is_about(self, right: Right) -> bool:
        """Return whether the right covers this request."""
        return (
            (right.account, right.group, right.resource, right.verb)
            == (self.account, self.group, self.resource, self.verb)
            and right.namespace in {"", self.namespace}
            and right.name in {"", self.name}
        )


_observed: set[Use] = set()


class _User(msgspec.Struct):
    username: str = ""


class _Ref(msgspec.Struct, rename="camel"):
    resource: str = ""
    subresource: str = ""
    api_group: str = ""
    namespace: str = ""
    name: str = ""


class _Status(msgspec.Struct):
    code: int = 0
    message: str = ""


class _Owner(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    block_owner_deletion: bool = False


class _Metadata(msgspec.Struct, rename="camel"):
    owner_references: list[_Owner] = []


class _Body(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class _Row(msgspec.Struct, rename="camel"):
    verb: str
    user: _User
    object_ref: _Ref | None = None
    response_status: _Status | None = None
    request_object: msgspec.Raw = msgspec.Raw(b"{}")


def uses(audit_log: Path) -> set[Use]:
    """Return what the accounts of Skysail asked for."""
    found: set[Use] = set()
    with audit_log.open("rb") as log:
        for line in log:
            if _ACCOUNTS.encode() not in line or not line.endswith(b"\n"):
                continue
            row = msgspec.json.decode(line, type=_Row)
            if row.user.username.startswith(_ACCOUNTS) and row.object_ref is not None:
                found.update(_uses(row, row.object_ref))
    return found


def record(audit_log: Path) -> None:
    """Write what was used in a test cluster."""
    _write(uses(audit_log))


def observe(method: str, path: str, status: int) -> None:
    """Remember a request of an operator in the simulation, until `record_observed`."""
    parts = path.strip("/").split("/")
    group, parts = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    if len(parts) > _NAMESPACED and parts[0] == "namespaces":
        parts = parts[2:]
    verb = ("get" if len(parts) > 1 else "list") if method == "GET" else _VERBS[method]
    plural = "/".join((parts[0], *parts[2:]))
    _observed.update(_with_create(Use(group, plural, verb), status))


def record_observed() -> None:
    """Write what was observed in this process, if anything."""
    if _observed:
        _write(_observed)
        _observed.clear()


def _with_create(use: Use, status: int) -> Iterator[Use]:
    """Yield the use. To apply an object that does not exist also needs the right to create it."""
    yield use
    if use.verb == "patch" and status == _CREATED:
        yield msgspec.structs.replace(use, verb="create", name="")


def _uses(row: _Row, ref: _Ref) -> Iterator[Use]:
    account = row.user.username.removeprefix(_ACCOUNTS)
    status = row.response_status or _Status()
    use = Use(
        ref.api_group,
        f"{ref.resource}/{ref.subresource}" if ref.subresource else ref.resource,
        row.verb,
        ref.namespace if ref.namespace in _known("namespace") else "",
        ref.name if ref.name in _known("name") else "",
        account,
        status.code == _FORBIDDEN and _NO_RIGHT in status.message,
    )
    yield from _with_create(use, status.code)
    for owner in _owners(row.request_object):
        group = owner.api_version.rpartition("/")[0]
        plural = granted_rights.plurals().get((group, owner.kind))
        if owner.block_owner_deletion and plural is not None:
            # OwnerReferencesPermissionEnforcement asks for this right, and writes nothing into the audit log.
            yield Use(group, f"{plural}/finalizers", "update", account=account)


def _owners(body: msgspec.Raw) -> list[_Owner]:
    try:
        return msgspec.json.decode(body, type=_Body).metadata.owner_references
    except msgspec.ValidationError:
        # A JSON patch is a list of operations, and names no owner.
        return []


def _write(found: set[Use]) -> None:
    """Write to a file of its own, for any number of test processes at once."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = FOLDER / f"{os.getpid()}-{time.time_ns()}.json"
    file.write_bytes(msgspec.json.encode(sorted(found)))


@cache
def _known(field: str) -> frozenset[str]:
    return frozenset(getattr(right, field) for right in granted_rights.granted())
