"""Patches of pods at their creation."""

import pytest
from msgspec.structs import replace

from skysail.kinds.offload.admission import pod_patch
from skysail.kinds.offload.plan.facts import placement_facts
from skysail.kinds.offload.plan.gangs import Owner
from skysail.kinds.offload.plan.placement import PlacementConfig
from tests.unit.kinds.offload.samples import CLOUDS, NODES, gpu_pod, observation, pod, policy

ASK = {"modal-operator.io/offload": "true"}
TOLERATION = {"key": "modal-operator.io/virtual", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
AWAY = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}


def admit(seen, **fields):
    facts = placement_facts(observation(seen, stage="admission", **fields))
    return pod_patch.admit(seen, facts, NODES)


def values(response):
    return {row["path"]: row["value"] for row in response.patch}


def test_admit_allowed_pod_gets_selector_and_toleration():
    patch = values(admit(gpu_pod(annotations=ASK)))
    assert patch == {"/spec/nodeSelector": {"kubernetes.io/hostname": "modal.com"}, "/spec/tolerations": [TOLERATION]}


@pytest.mark.parametrize(
    ("annotations", "warning"),
    [
        ({"modal-operator.io/offload": "yes"}, "'yes' is neither true nor false and counts as false."),
        ({"runpod.io/offlaod": "true"}, "metadata.annotations[runpod.io/offlaod]: unknown, has no effect."),
        ({**ASK, "modal-operator.io/gpu-typo": "T4"}, "metadata.annotations[modal-operator.io/gpu-typo]: unknown"),
    ],
)
def test_admit_annotation_without_effect_is_a_warning_wherever_the_pod_goes(annotations, warning):
    (found,) = admit(pod({"restartPolicy": "Never"}, annotations=annotations)).warnings
    assert warning in found


def test_admit_second_call_changes_nothing():
    patch = values(admit(gpu_pod(annotations=ASK)))
    spec = {**gpu_pod().spec, "nodeSelector": patch["/spec/nodeSelector"], "tolerations": patch["/spec/tolerations"]}
    assert admit(pod(spec, annotations=ASK)).patch == ()


def test_admit_keeps_own_selector_and_tolerations_and_drops_their_end():
    spec = {"nodeSelector": {"type": "virtual-kubelet"}, "tolerations": [AWAY]}
    patch = values(admit(pod(spec, annotations=ASK)))
    assert patch["/spec/nodeSelector"] == {"type": "virtual-kubelet", "kubernetes.io/hostname": "modal.com"}
    lasting = {name: value for name, value in AWAY.items() if name != "tolerationSeconds"}
    assert patch["/spec/tolerations"] == [lasting, TOLERATION]


def test_admit_copies_annotations_of_owner_and_labels_runpod_pods():
    owner = Owner(
        kind="Job", name="a", annotations={"runpod.io/offload": "true", "runpod.io/required-gpu-memory": "24"}
    )
    patch = values(admit(gpu_pod(annotations={"own": "1"}), owners=(owner,)))
    assert patch["/metadata/annotations"] == {
        "own": "1",
        "runpod.io/offload": "true",
        "runpod.io/required-gpu-memory": "24",
    }
    assert patch["/metadata/labels"] == {"runpod.io/managed": "true"}


def test_admit_selector_of_runpod_kubelet_is_mapped():
    spec = {
        "nodeSelector": {"virtual-kubelet.io/provider": "runpod"},
        "tolerations": [{"key": "virtual-kubelet.io/provider", "value": "runpod", "effect": "NoSchedule"}],
    }
    patch = values(admit(pod(spec)))
    assert patch["/spec/nodeSelector"] == {"kubernetes.io/hostname": "runpod-virtual-node"}
    assert patch["/spec/tolerations"][1]["key"] == "runpod.io/virtual"


def test_admit_toleration_of_runpod_kubelet_alone_only_adds_toleration():
    seen = pod({"tolerations": [{"key": "virtual-kubelet.io/provider", "value": "runpod"}]})
    patch = values(admit(seen))
    assert list(patch) == ["/spec/tolerations"]
    assert patch["/spec/tolerations"][1]["key"] == "runpod.io/virtual"


@pytest.mark.parametrize(
    ("seen", "fields", "selector"),
    [
        (gpu_pod(annotations=ASK), {"policies": ()}, {"kubernetes.io/hostname": "modal.com"}),
        (gpu_pod(annotations=ASK), {"policies": None}, {"kubernetes.io/hostname": "modal.com"}),
        (gpu_pod(annotations=ASK), {"owners": None}, {"kubernetes.io/hostname": "modal.com"}),
        (gpu_pod(annotations={"skysail.dev/offload": "cheapest"}), {"policies": ()}, {"type": "virtual-kubelet"}),
        (gpu_pod(annotations={"skysail.dev/offload": "aws"}), {}, {"type": "virtual-kubelet"}),
        (
            gpu_pod(annotations=ASK),
            {"clouds": tuple(replace(each, has_account=False) for each in CLOUDS)},
            {"kubernetes.io/hostname": "modal.com"},
        ),
    ],
)
def test_admit_refused_pod_that_asks_is_kept_off_ordinary_nodes(seen, fields, selector):
    response = admit(seen, **fields)
    assert response.denied is None
    assert values(response) == {"/spec/nodeSelector": selector}


@pytest.mark.parametrize(
    ("seen", "fields"),
    [
        (gpu_pod(), {}),
        (gpu_pod(annotations={"runpod.io/managed": "true"}), {}),
        (gpu_pod(annotations=ASK, labels={"scheduling.x-k8s.io/pod-group": "g"}), {}),
        (pod({"nodeSelector": {"disk": "ssd"}}, annotations=ASK), {}),
        (pod({"schedulerName": "volcano"}, annotations=ASK), {}),
        (pod(), {"owners": None}),
    ],
)
def test_admit_other_pod_is_left_as_it_is(seen, fields):
    response = admit(seen, **fields)
    assert response.denied is None
    assert response.patch == ()


def test_admit_refusal_is_a_warning_with_fix():
    (warning,) = admit(gpu_pod(annotations=ASK), policies=()).warnings
    assert "PolicyDenied" in warning
    assert "create an OffloadPolicy" in warning


def test_admit_automatic_always_places_at_creation():
    config = PlacementConfig(auto="Always")
    patch = values(admit(gpu_pod(), config=config, policies=(policy(automatic=True),)))
    assert patch["/metadata/annotations"] == {"skysail.dev/automatic": "true"}
    assert patch["/spec/nodeSelector"] == {"kubernetes.io/hostname": "runpod-virtual-node"}


@pytest.mark.parametrize("manifest", [{}, {"metadata": 1}, {"metadata": {}, "spec": []}])
def test_read_pod_undecodable_manifest_is_none(manifest):
    assert pod_patch.read_pod(manifest) is None


@pytest.mark.parametrize(
    ("spec", "metadata", "warned"),
    [
        ({}, {}, True),
        ({"restartPolicy": "Always"}, {}, True),
        ({"restartPolicy": "Never"}, {}, False),
        ({"containers": [{"name": "main", "image": "i", "ports": [{"containerPort": 80}]}]}, {}, False),
        ({}, {"annotations": {**ASK, "modal-operator.io/tunnel": "true"}}, False),
        ({}, {"annotations": {**ASK, "modal-operator.io/workload-type": "function"}}, False),
        (
            {},
            {"ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "u", "controller": True}]},
            False,
        ),
    ],
)
def test_admit_warns_that_a_single_run_is_paid_for_after_each_exit(spec, metadata, warned):
    response = admit(pod(spec, **{"annotations": ASK, **metadata}))
    assert response.patch
    assert [("restartPolicy" in text) for text in response.warnings] == [True] * warned
