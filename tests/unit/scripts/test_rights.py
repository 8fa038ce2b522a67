from __future__ import annotations

import json

import pytest

from scripts import rights
from scripts.granted_rights import Right, granted
from tests.support import rights as rights_of_tests
from tests.support.rights import OPERATOR, Use, uses

NO_RIGHT = 'nodes "a" is forbidden: User "x" cannot delete resource "nodes" in API group "" at the cluster scope'


def line(
    verb: str,
    resource: str,
    *,
    user: str = OPERATOR,
    code: int = 200,
    message: str = "",
    body: object = None,
    **ref: str,
) -> str:
    status = {"code": code, "message": message}
    row = {"verb": verb, "user": {"username": user}, "objectRef": {"resource": resource, **ref}}
    return json.dumps({**row, "responseStatus": status, **({"requestObject": body} if body is not None else {})})


def test_uses_are_those_of_our_accounts_alone(tmp_path):
    log = tmp_path / "audit.jsonl"
    rows = [
        line("list", "pods"),
        line("patch", "pods", subresource="status", namespace="t1", name="a"),
        line("get", "secrets", user="admin"),
        line("create", "events", code=403, message="namespace t1 is being terminated", apiGroup="events.k8s.io"),
        line("delete", "nodes", code=403, message=NO_RIGHT),
        line("list", "nodes", user=f"{OPERATOR}-drain"),
    ]
    log.write_text("\n".join(rows) + '\n{"verb": "half')
    assert uses(log) == {
        Use("", "pods", "list"),
        Use("", "pods/status", "patch"),
        Use("events.k8s.io", "events", "create"),
        Use("", "nodes", "delete", is_forbidden=True),
        Use("", "nodes", "list", account="skysail-drain"),
    }


def test_uses_owner_in_a_body_needs_the_right_on_its_finalizers(tmp_path):
    log = tmp_path / "audit.jsonl"
    owner = {"apiVersion": "ml.example.com/v1alpha1", "kind": "TrainingJob", "name": "a", "uid": "1"}
    child = {"metadata": {"ownerReferences": [{**owner, "blockOwnerDeletion": True}]}}
    free = {"metadata": {"ownerReferences": [{**owner, "kind": "ModalJob", "blockOwnerDeletion": False}]}}
    bodies = [child, free, [{"op": "add", "path": "/metadata/ownerReferences", "value": []}], {"metadata": {}}]
    log.write_text("".join(line("create", "jobs", apiGroup="batch", body=body) + "\n" for body in bodies))
    assert uses(log) == {
        Use("batch", "jobs", "create"),
        Use("ml.example.com", "trainingjobs/finalizers", "update"),
    }


def test_uses_apply_of_a_new_object_needs_the_right_to_create_it(tmp_path):
    log = tmp_path / "audit.jsonl"
    log.write_text(line("patch", "configmaps", name="skysail-offers", code=201) + "\n")
    assert uses(log) == {Use("", "configmaps", "patch", name="skysail-offers"), Use("", "configmaps", "create")}


@pytest.mark.parametrize(
    ("method", "path", "status", "want"),
    [
        ("GET", "/api/v1/pods", 200, {Use("", "pods", "list")}),
        ("GET", "/api/v1/namespaces/a", 200, {Use("", "namespaces", "get")}),
        ("GET", "/api/v1/namespaces/a/pods/b", 200, {Use("", "pods", "get")}),
        ("WATCH", "/apis/batch/v1/jobs", 0, {Use("batch", "jobs", "watch")}),
        ("POST", "/apis/batch/v1/namespaces/a/jobs", 201, {Use("batch", "jobs", "create")}),
        (
            "PATCH",
            "/apis/apps/v1/namespaces/a/deployments/b",
            201,
            {Use("apps", "deployments", "patch"), Use("apps", "deployments", "create")},
        ),
        ("PUT", "/apis/x.dev/v1/things/b/status", 200, {Use("x.dev", "things/status", "update")}),
    ],
)
def test_observe_request_in_the_simulation_is_a_use(monkeypatch, tmp_path, method, path, status, want):
    monkeypatch.setattr(rights_of_tests, "_observed", set())
    monkeypatch.setattr(rights_of_tests, "FOLDER", tmp_path)
    rights_of_tests.observe(method, path, status)
    rights_of_tests.record_observed()
    rights_of_tests.record_observed()
    assert len(list(tmp_path.iterdir())) == 1
    assert rights.used(tmp_path) == want


def test_right_for_a_named_object_is_used_only_by_that_object():
    named = Right("", "secrets", "get", "skysail-system", "skysail-webhook")
    assert Use("", "secrets", "get", "skysail-system", "skysail-webhook").proves(named)
    assert not Use("", "secrets", "get").proves(named)


def test_right_of_another_account_or_a_forbidden_request_is_not_used():
    right = Right("", "nodes", "list")
    assert Use("", "nodes", "list").proves(right)
    assert not Use("", "nodes", "list", account="skysail-drain").proves(right)
    assert not Use("", "nodes", "list", is_forbidden=True).proves(right)


def test_missing_names_forbidden_requests_that_no_right_covers():
    taken, lacking = Use("", "nodes", "list", is_forbidden=True), Use("", "nodes", "delete", is_forbidden=True)
    assert rights.missing([Right("", "nodes", "list")], [taken, lacking]) == [lacking]


def test_missing_leaves_out_names_with_slashes():
    attack, lacking = (Use("", f"secrets/{part}", "get", is_forbidden=True) for part in ("canary", "status"))
    assert rights.missing([], [attack, lacking]) == [lacking]


def test_describe_right_is_one_line_with_its_scope():
    assert rights.describe(Right("apps", "deployments", "delete")) == "skysail delete deployments.apps"
    named = Right("", "secrets", "get", "skysail-system", "skysail-webhook")
    assert rights.describe(named) == "skysail get secrets skysail-system skysail-webhook"


@pytest.mark.parametrize(
    ("known", "uses", "code"),
    [
        ("", [Use("", "pods", "list"), Use("", "pods", "get")], 0),
        ("", [Use("", "pods", "list")], 1),
        ("# rare\nskysail get pods: after a lost reply\n", [Use("", "pods", "list")], 0),
        ("skysail get pods: after a lost reply\n", [Use("", "pods", "list"), Use("", "pods", "get")], 0),
        ("skysail get pods\n", [Use("", "pods", "list")], 1),
        ("skysail get pods: rare\n", [Use("", "pods", "list"), Use("", "nodes", "list", is_forbidden=True)], 1),
        ("", [], 2),
    ],
)
def test_main_fails_for_a_right_that_nobody_uses_and_for_a_missing_one(monkeypatch, tmp_path, known, uses, code):
    monkeypatch.setattr(rights, "granted", lambda: [Right("", "pods", "get"), Right("", "pods", "list")])
    monkeypatch.setattr(rights, "used", lambda _: set(uses))
    monkeypatch.setattr(rights, "KNOWN", tmp_path / "known.txt")
    (tmp_path / "known.txt").write_text(known)
    assert rights.main() == code


def test_known_unused_rights_are_still_granted_and_have_a_reason():
    lines, known = {rights.describe(right) for right in granted()}, rights.read_known(rights.KNOWN)
    assert known.keys() - lines == set()
    assert all(known.values())


def test_table_tells_used_and_unused_verbs_apart():
    lines = rights.table([Right("", "pods", "delete"), Right("", "pods", "list")], [Use("", "pods", "list")])
    assert lines[1].split() == ["skysail", "pods", "all", "list", "delete"]


def test_granted_rights_have_no_wildcard():
    assert not any("*" in part for right in granted() for part in (right.group, right.resource, right.verb))
