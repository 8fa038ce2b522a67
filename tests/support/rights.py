"""Rights that the operator used, by the audit log of a test cluster. `make rights` compares them with those granted."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

ACCOUNT = "system:serviceaccount:skysail-system:skysail"
FOLDER = Path(__file__).resolve().parents[2] / "build" / "rights"
_FORBIDDEN = 403
# Answers that say nothing about rights: the namespace is being deleted.
_TERMINATING = "being terminated"


class Use(msgspec.Struct, frozen=True, order=True):
    """One kind of request. `name` tells objects apart, because some rights are for named objects only."""

    group: str
    resource: str
    verb: str
    namespace: str
    name: str
    is_forbidden: bool


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


class _Row(msgspec.Struct, rename="camel"):
    verb: str
    user: _User
    object_ref: _Ref | None = None
    response_status: _Status | None = None


def uses(audit_log: Path) -> set[Use]:
    """Return what the operator asked for. Namespaces and names of tests are left out: nothing is granted by them."""
    found: set[Use] = set()
    with audit_log.open("rb") as log:
        for line in log:
            if ACCOUNT.encode() not in line or not line.endswith(b"\n"):
                continue
            row = msgspec.json.decode(line, type=_Row)
            if row.user.username == ACCOUNT and row.object_ref is not None:
                found.add(_use(row.verb, row.object_ref, row.response_status or _Status()))
    return found


def record(audit_log: Path) -> None:
    """Write what was used to a file of its own, for any number of test processes at once."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = FOLDER / f"{os.getpid()}-{time.time_ns()}.json"
    file.write_bytes(msgspec.json.encode(sorted(uses(audit_log))))


def _use(verb: str, ref: _Ref, status: _Status) -> Use:
    plural = f"{ref.resource}/{ref.subresource}" if ref.subresource else ref.resource
    is_forbidden = status.code == _FORBIDDEN and _TERMINATING not in status.message
    namespace = ref.namespace if ref.namespace in {"skysail-system", "kube-node-lease"} else ""
    name = ref.name if ref.name.startswith("skysail") else ""
    return Use(ref.api_group, plural, verb, namespace, name, is_forbidden)
