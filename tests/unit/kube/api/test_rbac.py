from skysail.app import manifests
from skysail.app.kinds import ALL_KINDS, COMPATIBLE_KINDS
from skysail.kinds.serving.api.types import ML_MODEL
from skysail.kinds.training.api.modal_job import MODAL_JOB
from skysail.kinds.training.api.training_job import TRAINING_JOB
from skysail.kube.api import rbac
from skysail.kube.api.rbac import PolicyRule
from skysail.kube.api.resources import JOB, POD, SECRET


def test_rules_are_few_sorted_and_say_exactly_what_was_declared():
    policy_rules = [
        rbac.read_rule(POD),
        PolicyRule(POD, ("get",)),
        PolicyRule(JOB, ("get", "list", "watch")),
        PolicyRule(POD, ("update",), subresource="status"),
        PolicyRule(SECRET, ("get",), names=("one",)),
    ]
    assert rbac.rules(policy_rules) == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["update"]},
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["one"], "verbs": ["get"]},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list", "watch"]},
    ]
    assert rbac.rules(reversed(policy_rules)) == rbac.rules(policy_rules)


def test_built_in_roles_contain_kinds_and_nobody_writes_a_status():
    view, edit, admin = rbac.aggregated_roles("s", [TRAINING_JOB, ML_MODEL, MODAL_JOB], {"a": "b"})
    assert [role["metadata"]["name"] for role in (view, edit, admin)] == [
        "s-aggregate-to-view", "s-aggregate-to-edit", "s-aggregate-to-admin",
    ]  # fmt: skip
    assert edit["metadata"]["labels"] == {"a": "b", "rbac.authorization.k8s.io/aggregate-to-edit": "true"}
    assert _verbs(view, "trainingjobs") == {"get", "list", "watch"}
    assert _verbs(edit, "mlmodels") == {"get", "list", "watch", *_WRITES, "deletecollection"}
    assert edit["rules"] == admin["rules"]
    for role in (view, edit, admin):
        assert _verbs(role, "trainingjobs/status") == _verbs(role, "mlmodels/status") == {"get"}
        assert _verbs(role, "trainingjobs/finalizers") == set()
    assert (_verbs(view, "trainingjobs/scale"), _verbs(view, "modaljobs/scale")) == ({"get"}, set())
    assert _verbs(edit, "trainingjobs/scale") == {"get", "patch", "update"}


def test_tenants_have_every_namespaced_kind_and_no_other():
    tenants = [*manifests.tenant_roles(), *manifests.compatible_tenant_roles()]
    for kind in (*ALL_KINDS, *COMPATIBLE_KINDS):
        granted = [role for role in tenants if _verbs(role, kind.resource.plural)]
        assert len(granted) == (3 if kind.resource.namespaced else 0), kind.resource.kind
    assert not any("*" in rule["verbs"] + rule["resources"] for role in tenants for rule in role["rules"])


_WRITES = {"create", "delete", "patch", "update"}


def _verbs(role, plural):
    return {verb for rule in role["rules"] if plural in rule["resources"] for verb in rule["verbs"]}


def test_a_binding_gives_a_role_to_one_service_account():
    role = rbac.role("home", "r", [PolicyRule(SECRET, ("get",))], {"a": "b"})
    binding = rbac.binding(role, ("home", "me"))
    assert binding["kind"] == "RoleBinding"
    assert binding["metadata"] == {"name": "r", "namespace": "home", "labels": {"a": "b"}}
    assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}
    assert binding["subjects"] == [{"kind": "ServiceAccount", "namespace": "home", "name": "me"}]
    assert rbac.binding(rbac.cluster_role("c", [], {}), ("home", "me"))["kind"] == "ClusterRoleBinding"
