from __future__ import annotations

import json

from scripts import rights
from scripts.rights import Right
from tests.support.rights import ACCOUNT, Use, uses


def line(verb: str, resource: str, *, user: str = ACCOUNT, code: int = 200, message: str = "", **ref: str) -> str:
    status = {"code": code, "message": message}
    return json.dumps(
        {"verb": verb, "user": {"username": user}, "objectRef": {"resource": resource, **ref}, "responseStatus": status}
    )


def test_uses_are_those_of_the_operator_alone(tmp_path):
    log = tmp_path / "audit.jsonl"
    rows = [
        line("list", "pods"),
        line("patch", "pods", subresource="status", namespace="t1", name="a"),
        line("get", "secrets", user="admin"),
        line("create", "events", code=403, message="namespace t1 is being terminated", apiGroup="events.k8s.io"),
        line("delete", "nodes", code=403),
    ]
    log.write_text("\n".join(rows) + '\n{"verb": "half')
    assert uses(log) == {
        Use("", "pods", "list", "", "", False),
        Use("", "pods/status", "patch", "", "", False),
        Use("events.k8s.io", "events", "create", "", "", False),
        Use("", "nodes", "delete", "", "", True),
    }


def test_right_for_a_named_object_is_used_only_by_that_object():
    named = Right("", "secrets", "get", "skysail-system", "skysail-webhook")
    assert named.is_used_by(Use("", "secrets", "get", "skysail-system", "skysail-webhook", False))
    assert not named.is_used_by(Use("", "secrets", "get", "", "", False))


def test_table_tells_used_and_unused_verbs_apart():
    granted = [Right("", "pods", "delete"), Right("", "pods", "list")]
    lines = rights.table(granted, [Use("", "pods", "list", "", "", False)])
    assert lines[1].split() == ["pods", "all", "list", "delete"]


def test_granted_rights_have_no_wildcard():
    assert not any("*" in part for right in rights.granted() for part in (right.group, right.resource, right.verb))
