"""Whose tolerations get no end."""

import pytest

from skysail.kube.api.tolerations import tolerate_forever

UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
NOT_READY = {**UNREACHABLE, "key": "node.kubernetes.io/not-ready"}
OTHER = {"key": "maintenance", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
ANY = {"operator": "Exists"}


@pytest.mark.parametrize("toleration", [UNREACHABLE, NOT_READY, {"key": UNREACHABLE["key"]}, ANY])
def test_a_node_that_is_not_heard_of_is_tolerated_without_end(toleration):
    assert tolerate_forever([OTHER, {**toleration, "tolerationSeconds": 300}]) == [OTHER, toleration]


@pytest.mark.parametrize(
    "tolerations", [[], [OTHER], [UNREACHABLE, NOT_READY], [{**UNREACHABLE, "effect": "NoSchedule"}]]
)
def test_what_has_no_end_is_left_alone(tolerations):
    assert tolerate_forever(tolerations) is None
