"""Every branch of the decision table: who asks, policy, offers, GPU, pending, gang, scheduler, stage."""

import sys
from types import CodeType, FunctionType

import pytest
from msgspec.structs import replace

from skysail.base.names import Annotation, Reason
from skysail.claims.gangs import GangRef
from skysail.claims.requirements.types import OffloadRequest
from skysail.cloud.account import GpuRequest
from skysail.cloud.modal.gangs.arguments import LIMITS
from skysail.cloud.offers import Offer
from skysail.kinds.offload.plan import placement
from skysail.kinds.offload.plan.gangs import Machine, Sibling
from skysail.kinds.offload.plan.placement import (
    JobFacts,
    Leave,
    Place,
    PlacementConfig,
    PlacementFacts,
    ProviderOption,
    Refusal,
    Refuse,
    Rule,
    SchedulerVerdict,
    Wait,
    decide,
)

T4 = Offer(provider="modal", gpu_type="T4", gpu_memory=16, usd_per_hour=0.59)
A40 = Offer(provider="runpod", gpu_type="NVIDIA A40", gpu_memory=48, usd_per_hour=0.44)
NO_OFFER = Refusal(Reason.NO_MATCHING_OFFER, "No offer fits: ask for less.")
MODAL = ProviderOption(provider="modal", node="modal.com", offers=(T4,))
RUNPOD = ProviderOption(provider="runpod", node="runpod-virtual-node", offers=(A40,))
GPU = GpuRequest("", 1)
DENIED = Refusal("PolicyDenied", "No OffloadPolicy allows this.")
REFUSED = SchedulerVerdict(seconds=60.0)

OTHER_MACHINE = Sibling(name="a-1", is_unschedulable=True, machine=Machine(gpu_memory=24))

PLAIN = PlacementFacts(stage="overflow", request=OffloadRequest(), options=(MODAL, RUNPOD))
ASKED = replace(PLAIN, request=OffloadRequest(provider="modal", asked_by=Annotation.MODAL_OFFLOAD, gpus=GPU))
CHEAPEST = replace(PLAIN, request=OffloadRequest(provider="cheapest", asked_by=Annotation.OFFLOAD, gpus=GPU))
MANAGED = replace(
    PLAIN, request=OffloadRequest(is_managed=True, gpus=GPU), job=JobFacts(), verdict=REFUSED, requests_gpu=True
)
AUTOMATIC = replace(PLAIN, request=OffloadRequest(gpus=GPU), requests_gpu=True, verdict=REFUSED)
ALWAYS = replace(AUTOMATIC, verdict=None, config=PlacementConfig(auto="Always"))


def with_options(facts, *options, **changes):
    """Return the facts with all options changed, or with these options."""
    return replace(facts, options=options or tuple(replace(option, **changes) for option in facts.options))


def as_gang(facts, *siblings, **changes):
    """Return the facts of rank 0 of a gang of two."""
    ref = GangRef(api_version="batch/v1", kind="Job", name="a", uid="u", size=2, rank=0)
    return replace(facts, **{"gang": "Job a", "gang_ref": ref, "siblings": siblings, **changes})


def kind(decision):
    """Return a short form: node of a placement, reason of a wait or refusal, `leave`."""
    match decision:
        case Place():
            return f"place {decision.node} {decision.rule.value}"
        case Wait():
            return f"wait {decision.reason}"
        case Refuse():
            return f"refuse {decision.reason}"
        case Leave():
            return "leave"


TABLE = {
    # Rule 1
    "asks": (ASKED, "place modal.com asked"),
    "asks, admission": (replace(ASKED, stage="admission"), "place modal.com asked"),
    "asks, no GPU": (
        replace(
            ASKED,
            request=OffloadRequest(provider="modal"),
            options=(replace(MODAL, offers=(Offer(provider="modal", usd_per_hour=0.1),)),),
        ),
        "place modal.com asked",
    ),
    "asks for the cheapest": (CHEAPEST, "place runpod-virtual-node asked"),
    "asks for the cheapest, policy refuses the cheapest": (
        with_options(CHEAPEST, MODAL, replace(RUNPOD, policy=DENIED)),
        "place modal.com asked",
    ),
    "asks for the cheapest, cheapest had no capacity": (
        with_options(CHEAPEST, MODAL, replace(RUNPOD, is_exhausted=True)),
        "place modal.com asked",
    ),
    "asks for the cheapest, none had capacity": (
        with_options(CHEAPEST, replace(MODAL, is_exhausted=True), replace(RUNPOD, is_exhausted=True)),
        "place runpod-virtual-node asked",
    ),
    "asks, the provider had no capacity": (
        with_options(ASKED, replace(MODAL, is_exhausted=True), RUNPOD),
        "place modal.com asked",
    ),
    "asks for the cheapest, cheapest has no account": (
        with_options(CHEAPEST, MODAL, replace(RUNPOD, has_account=False)),
        "place modal.com asked",
    ),
    "asks for the cheapest, offers of one unknown": (
        with_options(CHEAPEST, MODAL, replace(RUNPOD, offers=None)),
        "wait OffersUnknown",
    ),
    "asks for the cheapest, one cloud down": (
        with_options(CHEAPEST, MODAL, replace(RUNPOD, offers=None, outage="No answer.")),
        "place modal.com asked",
    ),
    "asks for the cheapest, all clouds down": (
        with_options(CHEAPEST, offers=None, outage="No answer."),
        "refuse CloudUnreachable",
    ),
    "asks for the cheapest, different refusals": (
        with_options(CHEAPEST, replace(MODAL, policy=DENIED), replace(RUNPOD, has_account=False)),
        "refuse NoProvider",
    ),
    "asks, offers unknown": (with_options(ASKED, offers=None), "place modal.com asked"),
    "asks, cloud down": (with_options(ASKED, offers=None, outage="No answer."), "place modal.com asked"),
    "asks, no offer fits": (with_options(ASKED, offers=(), no_offer=NO_OFFER), "refuse NoMatchingOffer"),
    "asks, policy refuses": (with_options(ASKED, policy=DENIED), "refuse PolicyDenied"),
    "asks, policies unknown": (
        with_options(ASKED, policy=Refusal(Reason.LIMITS_UNKNOWN, "Policies are unknown.")),
        "wait LimitsUnknown",
    ),
    "asks, no account": (with_options(ASKED, has_account=False), "refuse NoAccount"),
    "asks for a provider without a node": (with_options(ASKED, RUNPOD), "refuse NoAccount"),
    "asks, no provider at all": (replace(ASKED, options=()), "refuse NoAccount"),
    "asks, unsupported fields": (with_options(ASKED, unsupported=("spec.hostPID: no.",)), "refuse Unsupported"),
    "asks, own selector excludes the node": (with_options(ASKED, fits_node=False), "refuse NodeSelectorConflict"),
    "asks, own selector names another cloud": (
        replace(ASKED, pinned_node="runpod-virtual-node"),
        "refuse NodeSelectorConflict",
    ),
    "asks, node not ready": (with_options(ASKED, is_node_ready=False), "wait NodeNotReady"),
    "asks, node not ready, admission": (
        replace(with_options(ASKED, is_node_ready=False), stage="admission"),
        "place modal.com asked",
    ),
    "asks, malformed": (
        replace(ASKED, request=replace(ASKED.request, errors=("gpu is wrong: fix it.",))),
        "refuse InvalidAnnotations",
    ),
    "asks for an unknown provider": (
        replace(PLAIN, request=OffloadRequest(errors=("aws is no provider. Use modal.",)), is_ask_invalid=True),
        "refuse InvalidAnnotations",
    ),
    "asks, gang without ranks": (replace(ASKED, gang="PyTorchJob a"), "refuse GangNotOffloaded"),
    "asks, gang": (as_gang(ASKED), "place modal.com asked"),
    "asks, gang, siblings unknown": (as_gang(ASKED, siblings=None), "wait OwnerUnknown"),
    "asks, gang, no private network": (
        with_options(as_gang(ASKED), has_private_network=False),
        "refuse GangNotOffloaded",
    ),
    "asks, gang, part of a GPU node": (
        with_options(as_gang(ASKED), gang_limits=LIMITS),
        "refuse GangNotOffloaded",
    ),
    "asks, gang, whole GPU nodes": (
        with_options(
            as_gang(replace(ASKED, request=replace(ASKED.request, gpus=GpuRequest("H100", 8)))), gang_limits=LIMITS
        ),
        "place modal.com asked",
    ),
    "asks, gang without GPUs, cloud runs gangs on whole GPU nodes": (
        with_options(
            as_gang(replace(ASKED, request=replace(ASKED.request, gpus=None))),
            replace(MODAL, offers=(Offer(provider="modal", usd_per_hour=0.1),), gang_limits=LIMITS),
        ),
        "refuse GangNotOffloaded",
    ),
    "asks, replicas without a private network": (
        with_options(replace(ASKED, request=replace(ASKED.request, replicas=2)), has_private_network=False),
        "refuse GangNotOffloaded",
    ),
    "asks, replicas on a part of a GPU node": (
        with_options(replace(ASKED, request=replace(ASKED.request, replicas=2)), gang_limits=LIMITS),
        "refuse GangNotOffloaded",
    ),
    "asks, replicas": (replace(ASKED, request=replace(ASKED.request, replicas=2)), "place modal.com asked"),
    "asks for the cheapest, gang": (
        with_options(as_gang(CHEAPEST), MODAL, replace(RUNPOD, has_private_network=False)),
        "place modal.com asked",
    ),
    "asks for the cheapest, gang, another rank is at another cloud": (
        as_gang(CHEAPEST, Sibling(node="modal.com")),
        "place modal.com asked",
    ),
    "asks, gang, another rank is at another cloud": (
        as_gang(ASKED, Sibling(node="runpod-virtual-node")),
        "refuse GangNotOffloaded",
    ),
    "asks, gang, another rank runs in the cluster": (
        as_gang(ASKED, Sibling(node="worker-1")),
        "refuse GangNotOffloaded",
    ),
    "asks, adapter off": (replace(ASKED, is_excluded=True), "leave"),
    "asks, owners unknown": (replace(ASKED, is_owner_known=False), "wait OwnerUnknown"),
    "asks, other scheduler": (replace(ASKED, scheduler="volcano"), "refuse OtherScheduler"),
    "asks, listed scheduler": (
        replace(ASKED, scheduler="mine", config=PlacementConfig(schedulers=("mine",))),
        "place modal.com asked",
    ),
    "asks, gated": (replace(ASKED, gates=("kueue.x-k8s.io/admission",)), "leave"),
    "asks, gated, admission": (
        replace(ASKED, gates=("kueue.x-k8s.io/admission",), stage="admission"),
        "place modal.com asked",
    ),
    "asks, preemption": (replace(ASKED, nominated_node="n1"), "wait PreemptionPending"),
    "asks, preemption, admission": (replace(ASKED, nominated_node="n1", stage="admission"), "place modal.com asked"),
    "asks, prepared by admission": (
        replace(ASKED, pinned_node="modal.com", tolerates=frozenset({"modal.com"})),
        "leave",
    ),
    "asks, prepared by admission, refused by the scheduler": (
        replace(ASKED, pinned_node="modal.com", tolerates=frozenset({"modal.com"}), verdict=REFUSED),
        "place modal.com asked",
    ),
    "asks, kept off by admission, allowed now": (replace(ASKED, pinned_node="modal.com"), "place modal.com asked"),
    "asks, has a node": (replace(ASKED, is_settled=True), "leave"),
    # Rule 2
    "managed": (MANAGED, "place runpod-virtual-node managed"),
    "managed, admission": (replace(MANAGED, stage="admission", verdict=None), "leave"),
    "managed, not refused by the scheduler": (replace(MANAGED, verdict=None), "leave"),
    "managed, pending too short": (
        replace(MANAGED, config=PlacementConfig(max_pending=30.0), pending_seconds=10.0),
        "wait JobPending",
    ),
    "managed, pending long enough": (
        replace(MANAGED, config=PlacementConfig(max_pending=30.0), pending_seconds=30.0),
        "place runpod-virtual-node managed",
    ),
    "managed, pending too short, as many jobs as allowed": (
        replace(
            MANAGED, config=PlacementConfig(max_pending=30.0, pending_job_threshold=2), job=JobFacts(waiting_jobs=2)
        ),
        "wait JobPending",
    ),
    "managed, pending too short, too many jobs": (
        replace(
            MANAGED, config=PlacementConfig(max_pending=30.0, pending_job_threshold=2), job=JobFacts(waiting_jobs=3)
        ),
        "place runpod-virtual-node managed",
    ),
    "managed, runs in the cluster": (replace(MANAGED, job=JobFacts(runs_in_cluster=True)), "leave"),
    "managed, pods unknown": (replace(MANAGED, job=JobFacts(runs_in_cluster=None)), "wait OwnerUnknown"),
    "managed, scale-up": (
        replace(MANAGED, verdict=SchedulerVerdict(seconds=60.0, scale_up_seconds=10.0)),
        "wait ScaleUpPending",
    ),
    "managed, policy refuses": (with_options(MANAGED, policy=DENIED), "refuse PolicyDenied"),
    "managed, no RunPod": (with_options(MANAGED, MODAL), "refuse NoAccount"),
    "managed, whole gang refused by the scheduler": (
        as_gang(MANAGED, Sibling(is_unschedulable=True)),
        "place runpod-virtual-node managed",
    ),
    "managed, gang": (replace(MANAGED, gang="JobSet a"), "refuse GangNotOffloaded"),
    "managed, gang, not refused by the scheduler": (replace(MANAGED, gang="JobSet a", verdict=None), "leave"),
    "managed, other scheduler": (replace(MANAGED, scheduler="volcano"), "leave"),
    "managed, malformed": (
        replace(MANAGED, request=replace(MANAGED.request, errors=("wrong: fix it.",))),
        "refuse InvalidAnnotations",
    ),
    "managed without a Job, no GPU": (replace(MANAGED, job=None, requests_gpu=False), "leave"),
    # Rule 3
    "automatic": (AUTOMATIC, "place runpod-virtual-node automatic"),
    "automatic, off": (replace(AUTOMATIC, config=PlacementConfig(auto="Off")), "leave"),
    "automatic, no GPU": (replace(AUTOMATIC, requests_gpu=False), "leave"),
    "automatic, not refused by the scheduler": (replace(AUTOMATIC, verdict=None), "leave"),
    "automatic, policy refuses": (with_options(AUTOMATIC, policy=DENIED), "leave"),
    "automatic, one policy refuses": (
        with_options(AUTOMATIC, MODAL, replace(RUNPOD, policy=DENIED)),
        "place modal.com automatic",
    ),
    "automatic, no offer fits": (with_options(AUTOMATIC, offers=(), no_offer=NO_OFFER), "refuse NoMatchingOffer"),
    "automatic, cloud down": (with_options(AUTOMATIC, offers=None, outage="No answer."), "refuse CloudUnreachable"),
    "automatic, policy refuses one, other has no offer": (
        with_options(AUTOMATIC, replace(MODAL, policy=DENIED), replace(RUNPOD, offers=(), no_offer=NO_OFFER)),
        "refuse NoProvider",
    ),
    "automatic, unsupported fields": (with_options(AUTOMATIC, unsupported=("spec.hostPID: no.",)), "leave"),
    "automatic, malformed": (
        replace(AUTOMATIC, request=replace(AUTOMATIC.request, errors=("wrong: fix it.",))),
        "refuse InvalidAnnotations",
    ),
    "automatic, own selector names a cloud": (replace(AUTOMATIC, pinned_node="modal.com"), "leave"),
    "automatic, autoscaler may still answer": (
        replace(AUTOMATIC, verdict=SchedulerVerdict(seconds=5.0)),
        "wait ScaleUpPending",
    ),
    "automatic, autoscaler cannot help": (
        replace(AUTOMATIC, verdict=SchedulerVerdict(seconds=5.0, is_hopeless=True)),
        "place runpod-virtual-node automatic",
    ),
    "automatic, scale-up": (
        replace(AUTOMATIC, verdict=SchedulerVerdict(seconds=60.0, scale_up_seconds=10.0)),
        "wait ScaleUpPending",
    ),
    "automatic, scale-up failed": (
        replace(AUTOMATIC, verdict=SchedulerVerdict(seconds=1000.0, scale_up_seconds=900.0)),
        "place runpod-virtual-node automatic",
    ),
    "automatic, events unknown": (
        replace(AUTOMATIC, verdict=SchedulerVerdict(seconds=60.0, is_known=False)),
        "wait ScaleUpPending",
    ),
    "automatic, whole gang refused by the scheduler": (
        with_options(as_gang(AUTOMATIC, Sibling(is_unschedulable=True)), MODAL),
        "place modal.com automatic",
    ),
    "automatic, gang, another rank not refused by the scheduler": (
        as_gang(AUTOMATIC, Sibling()),
        "wait WaitingForGang",
    ),
    "automatic, gang, another rank missing": (as_gang(AUTOMATIC), "wait WaitingForGang"),
    "automatic, gang, another rank is at a cloud": (
        as_gang(AUTOMATIC, Sibling(node="modal.com")),
        "place modal.com automatic",
    ),
    "automatic, gang, no private network": (
        with_options(as_gang(AUTOMATIC, Sibling(is_unschedulable=True)), has_private_network=False),
        "refuse GangNotOffloaded",
    ),
    "automatic, gang, policy refuses": (
        with_options(as_gang(AUTOMATIC, Sibling(is_unschedulable=True)), policy=DENIED, has_private_network=False),
        "leave",
    ),
    "automatic, gang, another rank asks for another machine": (
        with_options(as_gang(AUTOMATIC, OTHER_MACHINE, machine=Machine(gpu_memory=16)), MODAL),
        "refuse GangNotOffloaded",
    ),
    "automatic, gang, another rank asks for the same machine": (
        with_options(as_gang(AUTOMATIC, OTHER_MACHINE, machine=Machine(gpu_memory=24)), MODAL),
        "place modal.com automatic",
    ),
    "asks, gang, another rank asks for another machine, admission": (
        with_options(as_gang(ASKED, OTHER_MACHINE, stage="admission", machine=Machine(gpu_memory=16)), MODAL),
        "place modal.com asked",
    ),
    "always, gang": (with_options(as_gang(ALWAYS), MODAL), "place modal.com automatic"),
    "automatic, gang": (replace(AUTOMATIC, gang="Indexed Job a"), "refuse GangNotOffloaded"),
    "automatic, gang, not refused by the scheduler": (replace(AUTOMATIC, gang="Indexed Job a", verdict=None), "leave"),
    "automatic, gated": (replace(AUTOMATIC, gates=("a",)), "leave"),
    "automatic, preemption": (replace(AUTOMATIC, nominated_node="n1"), "wait PreemptionPending"),
    "automatic, adapter off": (replace(AUTOMATIC, is_excluded=True), "leave"),
    "always": (ALWAYS, "place runpod-virtual-node automatic"),
    "always, admission": (replace(ALWAYS, stage="admission"), "place runpod-virtual-node automatic"),
    # No rule
    "plain": (PLAIN, "leave"),
    "plain, refused by the scheduler": (replace(PLAIN, verdict=REFUSED), "leave"),
}


@pytest.mark.parametrize("case", TABLE)
def test_decide_table_row_gives_expected_decision(case):
    facts, expected = TABLE[case]
    assert kind(decide(facts)) == expected


@pytest.mark.parametrize("case", TABLE)
def test_decide_same_facts_give_same_decision(case):
    facts, _ = TABLE[case]
    assert decide(facts) == decide(facts)


@pytest.mark.parametrize("case", TABLE)
def test_decide_refusal_and_wait_messages_are_sentences(case):
    decision = decide(TABLE[case][0])
    message = getattr(decision, "message", "")
    assert not message or message.endswith(".")
    assert not isinstance(decision, Refuse) or message
    assert not isinstance(decision, Wait) or decision.requeue_after > 0


def test_decide_place_at_runpod_sets_managed_label_and_automatic_annotation():
    decision = decide(replace(AUTOMATIC, inherited={"runpod.io/required-gpu-memory": "24"}))
    assert isinstance(decision, Place)
    assert decision.labels == {"runpod.io/managed": "true"}
    assert decision.annotations == {"runpod.io/required-gpu-memory": "24", "skysail.dev/automatic": "true"}
    assert decision.offer == A40


def test_decide_place_at_modal_sets_no_label():
    decision = decide(ASKED)
    assert isinstance(decision, Place)
    assert (decision.labels, decision.annotations) == ({}, {})


@pytest.mark.parametrize(
    ("facts", "is_kept_off"),
    [
        (with_options(ASKED, policy=DENIED), True),
        (with_options(ASKED, has_account=False), True),
        (with_options(CHEAPEST, offers=(), no_offer=NO_OFFER), True),
        (with_options(ASKED, fits_node=False), False),
        (replace(ASKED, gang="JobSet a"), False),
        (replace(ASKED, scheduler="volcano"), False),
        (with_options(MANAGED, policy=DENIED), False),
        (with_options(AUTOMATIC, offers=(), no_offer=NO_OFFER), False),
    ],
)
def test_decide_refused_pod_is_kept_off_cluster_only_if_it_asks(facts, is_kept_off):
    decision = decide(facts)
    assert isinstance(decision, Refuse)
    assert decision.is_kept_off is is_kept_off


def test_table_covers_every_rule_and_decision():
    found = [decide(facts) for facts, _ in TABLE.values()]
    assert {type(decision) for decision in found} == {Place, Wait, Leave, Refuse}
    assert {decision.rule for decision in found if isinstance(decision, Place)} == set(Rule)
    assert placement.rule_of(PLAIN) is None


def test_table_executes_every_line_of_the_decision():
    executed = set()

    def trace(frame, event, _):
        if frame.f_code.co_filename != placement.__file__:
            return None
        if event == "line":
            executed.add(frame.f_lineno)
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        for facts, _ in TABLE.values():
            decide(facts)
    finally:
        sys.settrace(previous)
    functions = [found for found in vars(placement).values() if isinstance(found, FunctionType)]
    lines = {line for found in functions if found.__module__ == placement.__name__ for line in lines_of(found.__code__)}
    assert lines
    assert sorted(lines - executed) == []


def lines_of(code):
    """Return the lines of a function's body, also of the functions and comprehensions inside it."""
    own = {line for _, _, line in code.co_lines() if line not in {None, code.co_firstlineno}}
    return own.union(*(lines_of(constant) for constant in code.co_consts if isinstance(constant, CodeType)))
