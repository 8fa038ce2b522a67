"""Rights that Skysail used, by the audit log of a test cluster. `make rights` compares them with those granted."""

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
_FORBIDDEN = 403
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
    """Write what was used to a file of its own, for any number of test processes at once."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = FOLDER / f"{os.getpid()}-{time.time_ns()}.json"
    file.write_bytes(msgspec.json.encode(sorted(uses(audit_log))))


def _uses(row: _Row, ref: _Ref) -> Iterator[Use]:
    account = row.user.username.removeprefix(_ACCOUNTS)
    status = row.response_status or _Status()
    yield Use(
        ref.api_group,
        f"{ref.resource}/{ref.subresource}" if ref.subresource else ref.resource,
        row.verb,
        ref.namespace if ref.namespace in _known("namespace") else "",
        ref.name if ref.name in _known("name") else "",
        account,
        status.code == _FORBIDDEN and _NO_RIGHT in status.message,
    )
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


@cache
def _known(field: str) -> frozenset[str]:
    return frozenset(getattr(right, field) for right in granted_rights.granted())
