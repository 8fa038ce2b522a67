from skysail.kube.api import rbac
from skysail.kube.api.rbac import Right
from skysail.kube.api.resources import JOB, POD, SECRET


def test_rules_are_few_sorted_and_say_exactly_what_was_declared():
    rights = [
        rbac.reading(POD),
        Right(POD, ("get",)),
        Right(JOB, ("get", "list", "watch")),
        Right(POD, ("update",), subresource="status"),
        Right(SECRET, ("get",), names=("one",)),
    ]
    assert rbac.rules(rights) == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["update"]},
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["one"], "verbs": ["get"]},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list", "watch"]},
    ]
    assert rbac.rules(reversed(rights)) == rbac.rules(rights)


def test_a_binding_gives_a_role_to_one_service_account():
    role = rbac.role("home", "r", [Right(SECRET, ("get",))], {"a": "b"})
    binding = rbac.binding(role, ("home", "me"))
    assert binding["kind"] == "RoleBinding"
    assert binding["metadata"] == {"name": "r", "namespace": "home", "labels": {"a": "b"}}
    assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}
    assert binding["subjects"] == [{"kind": "ServiceAccount", "namespace": "home", "name": "me"}]
    assert rbac.binding(rbac.cluster_role("c", [], {}), ("home", "me"))["kind"] == "ClusterRoleBinding"
