"""Facts of a placement, and the decisions that follow from them."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from skysail.base.names import Reason
from skysail.kinds.offload.plan.facts import AutoscalerAnswer, placement_facts, pod_facts
from skysail.kinds.offload.plan.gangs import MemberGroup, Owner
from skysail.kinds.offload.plan.placement import JobFacts, Leave, Place, PlacementConfig, Refuse, Rule, Wait, decide
from tests.unit.kinds.offload.samples import CLOUDS, NOW, cloud, gpu_pod, observation, pod, policy, unschedulable


def decision(seen, **fields):
    return decide(placement_facts(observation(seen, **fields)))


def node(seen, **fields):
    placed = decision(seen, **fields)
    assert isinstance(placed, Place), placed
    return placed.node


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"annotations": {"modal-operator.io/offload": "true"}}, "modal.com"),
        ({"annotations": {"modal-operator.io/use-modal": "true"}}, "modal.com"),
        ({"annotations": {"modal.com/enabled": "true"}}, "modal.com"),
        ({"annotations": {"modal-operator.io/workload-type": "job"}}, "modal.com"),
        ({"labels": {"modal-operator.io/workload-type": "function"}}, "modal.com"),
        ({"annotations": {"runpod.io/offload": "true"}}, "runpod-virtual-node"),
        ({"annotations": {"skysail.dev/offload": "runpod"}}, "runpod-virtual-node"),
        ({"annotations": {"skysail.dev/offload": "cheapest"}}, "runpod-virtual-node"),
    ],
)
def test_facts_annotation_of_pod_chooses_provider(metadata, expected):
    assert node(gpu_pod(**metadata)) == expected


@pytest.mark.parametrize("kind", ["Job", "CronJob", "TrainJob", "PyTorchJob", "Trial", "InferenceService"])
def test_facts_owner_asks_for_pod(kind):
    owner = Owner(kind=kind, name="a", annotations={"modal-operator.io/offload": "true", "other": "x"})
    placed = decision(gpu_pod(), owners=(Owner(kind="Job", name="near"), owner))
    assert isinstance(placed, Place)
    assert placed.annotations == {"modal-operator.io/offload": "true"}


def test_facts_annotation_of_pod_wins_over_owner():
    owner = Owner(kind="Job", name="a", annotations={"runpod.io/offload": "true"})
    assert node(gpu_pod(annotations={"modal-operator.io/offload": "true"}), owners=(owner,)) == "modal.com"


def test_facts_excluded_owner_kind_is_left_alone():
    owner = Owner(kind="Trial", name="a", annotations={"modal-operator.io/offload": "true"})
    assert decision(gpu_pod(), owners=(owner,), excluded_kinds=frozenset({"Trial"})) == Leave()


@pytest.mark.parametrize("stage", ["admission", "overflow"])
@pytest.mark.parametrize("value", ["", "moon"])
def test_facts_malformed_request_keeps_the_pod_off_the_cluster(value, stage):
    asked = {"annotations": {"skysail.dev/offload": value}}
    for seen, owners in ((pod(**asked), ()), (pod(), (Owner(kind="Job", name="a", **asked),))):
        refused = decision(seen, stage=stage, owners=owners)
        assert isinstance(refused, Refuse)
        assert (refused.reason, refused.is_kept_off) == (Reason.INVALID_ANNOTATIONS, True)
        assert "one of modal, runpod, cheapest" in refused.message


def test_facts_gpu_type_too_dear_for_cheapest_is_refused():
    seen = gpu_pod(annotations={"skysail.dev/offload": "cheapest", "modal-operator.io/gpu-type": "H100"})
    refused = decision(seen)
    assert isinstance(refused, Refuse)
    assert "0.5" in refused.message


def test_facts_price_cap_of_setting_does_not_hold_for_named_modal():
    seen = gpu_pod(annotations={"modal-operator.io/offload": "true", "modal-operator.io/gpu-type": "H100"})
    assert node(seen) == "modal.com"
    refused = decision(gpu_pod(annotations={"runpod.io/offload": "true", "modal-operator.io/gpu-type": "H100"}))
    assert isinstance(refused, Refuse)


def test_facts_price_cap_of_policy_holds_for_every_provider():
    seen = gpu_pod(annotations={"modal-operator.io/offload": "true"})
    refused = decision(seen, policies=(policy(maxPrice=0.5),))
    assert isinstance(refused, Refuse)
    assert refused.reason == Reason.NO_MATCHING_OFFER


def test_facts_gpu_hint_in_node_selector_chooses_type_and_fits_node():
    spec = {
        "containers": [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"},
    }
    placed = decision(pod(spec, annotations={"modal-operator.io/offload": "true"}))
    assert isinstance(placed, Place)
    assert placed.offer is not None
    assert placed.offer.gpu_type == "L4"


def test_facts_own_selector_is_never_overridden():
    seen = pod({"nodeSelector": {"disk": "ssd"}}, annotations={"modal-operator.io/offload": "true"})
    refused = decision(seen)
    assert isinstance(refused, Refuse)
    assert refused.reason == Reason.NODE_SELECTOR_CONFLICT


def test_facts_selector_of_runpod_kubelet_asks_for_runpod():
    assert node(pod({"nodeSelector": {"virtual-kubelet.io/provider": "runpod"}})) == "runpod-virtual-node"
    tolerating = pod(
        {
            "nodeSelector": {"type": "virtual-kubelet"},
            "tolerations": [{"key": "virtual-kubelet.io/provider", "value": "runpod", "effect": "NoSchedule"}],
        }
    )
    assert node(tolerating) == "runpod-virtual-node"


def test_facts_toleration_alone_asks_for_nothing():
    seen = pod({"tolerations": [{"key": "virtual-kubelet.io/provider", "value": "runpod"}]})
    assert decision(seen) == Leave()


def test_facts_no_policy_refuses_with_fix():
    refused = decision(gpu_pod(annotations={"modal-operator.io/offload": "true"}), policies=())
    assert isinstance(refused, Refuse)
    assert refused.reason == Reason.POLICY_DENIED
    assert "create an OffloadPolicy" in refused.message


def test_facts_policy_without_secrets_refuses_pod_with_secret():
    secret = {"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    seen = pod(
        {"containers": [{"name": "main", "image": "x", "env": [secret]}]},
        annotations={"modal-operator.io/offload": "true"},
    )
    assert isinstance(decision(seen, policies=(policy(allowSecrets=False),)), Refuse)
    assert isinstance(decision(seen), Place)


def test_facts_image_of_container_mode_is_checked_by_policy():
    annotations = {"modal-operator.io/use-modal": "true", "modal-operator.io/image": "evil:1"}
    seen = pod(annotations=annotations)
    assert isinstance(decision(seen, policies=(policy(images=["python:*"]),)), Refuse)
    assert isinstance(decision(seen, policies=(policy(images=["evil:*"]),)), Place)


def test_facts_unknown_policies_wait():
    seen = gpu_pod(annotations={"modal-operator.io/offload": "true"})
    for unknown in ({"policies": None}, {"namespace_labels": None}):
        waiting = decision(seen, **unknown)
        assert isinstance(waiting, Wait)
        assert waiting.reason == Reason.LIMITS_UNKNOWN


def test_facts_unknown_provider_is_refused_with_known_ones():
    refused = decision(gpu_pod(annotations={"skysail.dev/offload": "aws"}))
    assert isinstance(refused, Refuse)
    assert "modal" in refused.message


def test_facts_automatic_needs_policy_with_automatic():
    seen = replace(gpu_pod(), status=pod(status=unschedulable()).status)
    answer = AutoscalerAnswer()
    assert decision(seen, autoscaler=answer) == Leave()
    placed = decision(seen, autoscaler=answer, policies=(policy(automatic=True),))
    assert isinstance(placed, Place)
    assert placed.rule is Rule.AUTOMATIC


def test_facts_scale_up_is_waited_out():
    seen = replace(gpu_pod(), status=pod(status=unschedulable()).status)
    answer = AutoscalerAnswer(scale_up=NOW - timedelta(seconds=30))
    waiting = decision(seen, autoscaler=answer, policies=(policy(automatic=True),))
    assert isinstance(waiting, Wait)
    assert waiting.requeue_after == pytest.approx(870)
    assert isinstance(decision(seen, autoscaler=None, policies=(policy(automatic=True),)), Wait)


def test_facts_managed_job_goes_to_runpod():
    seen = replace(gpu_pod(), status=pod(status=unschedulable()).status)
    owner = Owner(kind="Job", name="a", labels={"runpod.io/managed": "true"})
    placed = decision(seen, owners=(owner,), job=JobFacts(), autoscaler=AutoscalerAnswer())
    assert isinstance(placed, Place)
    assert (placed.node, placed.rule) == ("runpod-virtual-node", Rule.MANAGED)
    assert placed.labels == {"runpod.io/managed": "true"}


def test_facts_no_account_is_refused():
    clouds = tuple(replace(each, has_account=False) for each in CLOUDS)
    refused = decision(gpu_pod(annotations={"modal-operator.io/offload": "true"}), clouds=clouds)
    assert isinstance(refused, Refuse)
    assert refused.reason == Reason.NO_ACCOUNT


def test_facts_unready_node_waits():
    seen = gpu_pod(annotations={"modal-operator.io/offload": "true"})
    assert isinstance(decision(seen, clouds=(cloud("modal.com", object=None),)), Wait)


def test_facts_undecodable_spec_counts_as_empty():
    facts = pod_facts(observation(pod({"nodeSelector": {"a": "b"}, "affinity": "nonsense"})))
    assert facts.request.gpus is None


def test_facts_pending_seconds_count_from_creation():
    config = PlacementConfig(max_pending=120.0)
    seen = replace(gpu_pod(), status=pod(status=unschedulable()).status)
    owner = Owner(kind="Job", name="a", annotations={"runpod.io/managed": "true"})
    waiting = decision(seen, owners=(owner,), job=JobFacts(), autoscaler=AutoscalerAnswer(), config=config)
    assert isinstance(waiting, Wait)
    assert waiting.requeue_after == pytest.approx(60)


def test_facts_gang_larger_than_the_policy_allows_is_refused_before_it_is_bound():
    owner = Owner(
        kind="Job", name="a", uid="u-a", annotations={"modal-operator.io/offload": "true"},
        groups=(MemberGroup(pods=4),), has_ranks=True,
    )  # fmt: skip
    index = {"batch.kubernetes.io/job-completion-index": "0"}
    seen = pod({"subdomain": "peers"}, annotations=index)
    assert node(seen, owners=(owner,), policies=(policy(maxInstances=4),)) == "modal.com"
    refused = decision(seen, owners=(owner,), policies=(policy(maxInstances=3),))
    assert isinstance(refused, Refuse)
    assert (refused.reason, "needs 4 instances" in refused.message) == (Reason.POLICY_DENIED, True)


@pytest.mark.parametrize(
    ("other", "is_placed"),
    [({"cpu": "1", "memory": "1Gi"}, True), ({"cpu": "2"}, False), ({"memory": "2Gi"}, False)],
)
def test_facts_gang_with_different_machines_is_not_offloaded_automatically(other, is_placed):
    job_set = Owner(
        kind="JobSet", name="a", uid="u-a", groups=(MemberGroup("head"), MemberGroup("worker")), has_ranks=True
    )

    def rank(group: str, **amounts: str):
        labels = {
            "jobset.sigs.k8s.io/replicatedjob-name": group,
            "jobset.sigs.k8s.io/job-index": "0",
            "batch.kubernetes.io/job-completion-index": "0",
        }
        limits = {"nvidia.com/gpu": "8", "cpu": "1", "memory": "1Gi", **amounts}
        container = {"name": "main", "image": "python:3.11", "resources": {"limits": limits}}
        return pod({"containers": [container]}, unschedulable(), name=f"a-{group}-0-0", uid=f"u-{group}", labels=labels)

    made = decision(
        rank("head"),
        owners=(Owner(kind="Job", name="a-head-0"), job_set),
        siblings=(rank("worker", **other),),
        clouds=(cloud("modal.com"),),
        policies=(policy(automatic=True),),
        autoscaler=AutoscalerAnswer(),
    )
    if is_placed:
        assert isinstance(made, Place)
    else:
        assert isinstance(made, Refuse)
        assert (made.reason, "Pod a-worker-0-0 of JobSet a asks for" in made.message) == (
            Reason.GANG_NOT_OFFLOADED,
            True,
        )


def test_facts_replicas_count_as_instances():
    asks = {
        "modal-operator.io/offload": "true",
        "modal-operator.io/replicas": "4",
        "modal-operator.io/enable-i6pn": "true",
    }
    refused = decision(pod(annotations=asks), policies=(policy(maxInstances=3),))
    assert isinstance(refused, Refuse)
    assert "needs 4 instances" in refused.message
