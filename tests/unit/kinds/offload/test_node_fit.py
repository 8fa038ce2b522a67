"""Node selectors, affinity and tolerations of pods against cloud nodes."""

import pytest

from skysail.base.settings import Settings
from skysail.kinds.offload.plan import node_fit
from tests.unit.kinds.offload.samples import NODES, pod

LABELS = {"type": "virtual-kubelet", "zone": "a"}


def affinity(*terms):
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}}


def term(key, operator, *values, field="matchExpressions"):
    return {field: [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, True),
        ({"nodeSelector": {"zone": "a"}}, True),
        ({"nodeSelector": {"zone": "b"}}, False),
        ({"nodeSelector": {"kubernetes.io/hostname": "modal.com"}}, True),
        ({"nodeSelector": {"kubernetes.io/hostname": "other"}}, False),
        ({"nodeSelector": {"nvidia.com/gpu.product": "T4"}}, True),
        ({"nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4", "zone": "b"}}, False),
        ({"nodeSelector": {"virtual-kubelet.io/provider": "runpod"}}, True),
        (affinity(term("zone", "In", "a", "b")), True),
        (affinity(term("zone", "In", "b")), False),
        (affinity(term("zone", "In", "b"), term("zone", "In", "a")), True),
        (affinity(term("zone", "NotIn", "a")), False),
        (affinity(term("absent", "NotIn", "a")), True),
        (affinity(term("zone", "Exists")), True),
        (affinity(term("absent", "Exists")), False),
        (affinity(term("absent", "DoesNotExist")), True),
        (affinity(term("type", "DoesNotExist")), False),
        (affinity(term("zone", "Gt", "1")), False),
        (affinity(term("nvidia.com/gpu.memory", "Gt", "1")), True),
        (affinity(term("nvidia.com/gpu.product", "In", "T4")), True),
        (affinity(term("nvidia.com/gpu.product", "Exists")), True),
        (affinity({}), False),
        (affinity(term("metadata.name", "In", "modal.com", field="matchFields")), True),
        (affinity(term("metadata.name", "In", "other", field="matchFields")), False),
        ({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}}, False),
        ({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}}, True),
    ],
)
def test_fits_selector_and_affinity_of_pod(spec, expected):
    assert node_fit.fits(pod(spec), "modal.com", LABELS) is expected


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "modal-operator.io/virtual", "operator": "Exists"}, True),
        ({"key": "modal-operator.io/virtual", "value": "true", "effect": "NoSchedule"}, True),
        ({"key": "modal-operator.io/virtual", "value": "true", "effect": "NoExecute"}, False),
        ({"key": "modal-operator.io/virtual", "value": "false"}, False),
        ({"key": "virtual-kubelet.io/provider", "operator": "Exists"}, False),
    ],
)
def test_tolerates_taint_of_node(toleration, expected):
    assert node_fit.tolerates(pod({"tolerations": [toleration]}), NODES["modal.com"]) is expected


def test_no_node_of_ours_uses_the_key_of_the_runpod_kubelet():
    nodes = Settings().nodes
    assert {name: settings.taint for name, settings in nodes.items()} == {
        "modal.com": "modal-operator.io/virtual=true:NoSchedule",
        "runpod-virtual-node": "runpod.io/virtual=true:NoSchedule",
    }
    for settings in nodes.values():
        assert node_fit.taint_of(settings)["key"] != node_fit.LEGACY_PROVIDER
        assert node_fit.LEGACY_PROVIDER not in settings.labels
