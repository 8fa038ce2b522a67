"""Which pods are told to stay at a cloud, and how."""

import pytest

from skysail.base.settings import NodeSettings
from skysail.kinds.offload import resource_limits_webhook, toleration_webhook

NODES = {
    "cloud": NodeSettings(provider="a", port=1, taint="a=b:NoSchedule"),
    "other": NodeSettings(provider="b", port=2, taint="c=d:NoSchedule", labels={"is/virtual": "true"}),
}
AWAY = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
MINE = {"key": "a", "operator": "Exists"}


def test_the_end_of_a_toleration_is_dropped_and_all_else_is_kept():
    (patch,) = toleration_webhook.admit({"spec": {"tolerations": [MINE, AWAY]}}, None).patch
    lasting = {name: value for name, value in AWAY.items() if name != "tolerationSeconds"}
    assert patch == {"op": "replace", "path": "/spec/tolerations", "value": [MINE, lasting]}
    assert toleration_webhook.admit({"spec": {"tolerations": patch["value"]}}, None).patch == ()


@pytest.mark.parametrize(
    "pod", [{}, {"spec": None}, {"spec": {"tolerations": None}}, {"spec": {"tolerations": [MINE]}}]
)
def test_what_has_no_end_is_left_alone(pod):
    assert toleration_webhook.admit(pod, None).patch == ()


def test_only_pods_that_can_go_nowhere_else_are_asked_about():
    ((_, condition),) = toleration_webhook.hook(NODES).match_conditions
    for words in (
        "object.spec.nodeName in ['cloud', 'other']",
        "object.spec.nodeSelector['kubernetes.io/hostname'] == 'cloud'",
        "object.spec.nodeSelector['is/virtual'] == 'true'",
    ):
        assert words in condition
    assert "tolerations" not in condition


def test_without_nodes_nobody_is_asked():
    assert {hook.name for hook in resource_limits_webhook.hooks({})} == {"pods", "templates", "cronjobs"}
    assert {hook.name for hook in resource_limits_webhook.hooks(NODES)} == {"pods", "templates", "cronjobs", "stay"}
