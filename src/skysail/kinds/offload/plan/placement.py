"""Decision table of placement: whether a pod goes to the node of a cloud, and to which one. Pure.

A pod goes to a cloud for one of three reasons:

1. ASKED: the pod or one of its owners asks for a provider, or for the cheapest one.
2. MANAGED: its Job may run at RunPod, the scheduler refused the pod, and the Job has waited long enough or too many
   such Jobs wait.
3. AUTOMATIC: it requests GPUs, no node can take it, and a policy allows automatic offload.

Policy, offers, supported fields and the pod's own node selector and affinity must allow the provider in every case.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Literal

import msgspec

from skysail.base.names import Annotation, Label, Reason
from skysail.claims.gangs import GangRef
from skysail.claims.requirements.types import CHEAPEST, RUNPOD, OffloadRequest
from skysail.cloud.gang_limits import GangLimits
from skysail.cloud.offers import Offer, OfferQuery, rank
from skysail.kinds.offload.plan.gangs import Machine, Sibling

# Delay until facts are read again that were unknown.
_UNKNOWN_RETRY_SECONDS = 5.0
# Delay until a pod is read again for which the scheduler is preempting others.
_PREEMPTION_RETRY_SECONDS = 30.0

Stage = Literal["admission", "overflow"]
Automatic = Literal["WhenUnschedulable", "Always", "Off"]


class Rule(Enum):
    """Rules by which a pod may go to a cloud."""

    ASKED = "asked"
    MANAGED = "managed"
    AUTOMATIC = "automatic"


class PlacementConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of placement. Times are in seconds; `max_gpu_price` is in US dollars per hour and GPU.

    `autoscaler_wait`: time that a cluster autoscaler has to answer before an unschedulable GPU pod is offloaded.
    `scale_up_timeout`: time after which a scale-up counts as failed.
    `default_gpu_types`: GPU type by provider, for pods that ask for the provider and name no type.
    """

    auto: Automatic = "WhenUnschedulable"
    max_gpu_price: float = 0.5
    max_pending: float = 0.0
    pending_job_threshold: int = 1
    schedulers: tuple[str, ...] = ("default-scheduler",)
    autoscaler_wait: float = 20.0
    scale_up_timeout: float = 900.0
    default_gpu_types: Mapping[str, str] = msgspec.field(default_factory=dict)


class Refusal(msgspec.Struct, frozen=True):
    """Reason for programs, and a sentence with the fix."""

    reason: str
    message: str


class ProviderOption(msgspec.Struct, frozen=True, kw_only=True):
    """One provider of this operator, as far as this pod is concerned.

    `policy`: why the policies refuse the provider, or None. `unsupported`: fields that its node does not support.
    `offers`: offers that fit the pod, None while they are unknown. `no_offer`: why none fits.
    `outage`: why the cloud does not answer. `is_exhausted`: it had no capacity for another pod of the
    same controller lately.
    `fits_node`: whether the pod's own node selector and affinity allow the node.
    `has_private_network`: whether the pods of a gang reach each other there. `gang_limits`: limits on such a gang.
    """

    provider: str
    node: str
    has_account: bool = True
    is_node_ready: bool = True
    fits_node: bool = True
    policy: Refusal | None = None
    unsupported: tuple[str, ...] = ()
    offers: tuple[Offer, ...] | None = None
    no_offer: Refusal | None = None
    outage: str = ""
    is_exhausted: bool = False
    has_private_network: bool = True
    gang_limits: GangLimits | None = None


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The managed Job of a pod. `waiting_jobs`: number of managed Jobs that wait for a node, this one included.

    `runs_in_cluster`: whether a pod of the Job has an ordinary node; None if that is unknown.
    """

    waiting_jobs: int = 1
    runs_in_cluster: bool | None = False


class SchedulerVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler refused the pod. `seconds`: time since the refusal.

    `scale_up_seconds`: age of the newest event by which an autoscaler promised a node; None without such an event.
    `is_hopeless`: an autoscaler said that it cannot help. `is_known`: whether the events could be read.
    """

    seconds: float
    scale_up_seconds: float | None = None
    is_hopeless: bool = False
    is_known: bool = True


class PlacementFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that the decision depends on.

    `inherited`: annotations of owners that the pod lacks. `gang`: a phrase for the gang that the pod belongs to.
    `gang_ref`: the gang with the pod's rank, None if the rank is not known. `siblings`: the other pods of the gang,
    None if they are unknown. `machine`: what the pod asks for, and all ranks of its gang must ask for.
    `may_be_asked_later`: an owner may get an annotation that nothing watches.
    `is_owner_known`: whether the whole owner chain could be read. `is_excluded`: an adapter for its owner is off.
    `pinned_node`: the cloud node that the pod's own node selector names. `tolerates`: cloud nodes whose taint it
    tolerates. `pending_seconds`: age of the pod.
    """

    stage: Stage
    request: OffloadRequest
    config: PlacementConfig = PlacementConfig()
    options: tuple[ProviderOption, ...] = ()
    inherited: Mapping[str, str] = msgspec.field(default_factory=dict)
    is_owner_known: bool = True
    is_excluded: bool = False
    may_be_asked_later: bool = False
    is_settled: bool = False
    is_ask_invalid: bool = False
    requests_gpu: bool = False
    gang: str = ""
    gang_ref: GangRef | None = None
    machine: Machine | None = None
    siblings: tuple[Sibling, ...] | None = ()
    job: JobFacts | None = None
    verdict: SchedulerVerdict | None = None
    scheduler: str = "default-scheduler"
    gates: tuple[str, ...] = ()
    nominated_node: str = ""
    pinned_node: str = ""
    tolerates: frozenset[str] = frozenset()
    pending_seconds: float = 0.0


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Put the pod on this node, with these annotations and labels. `offer`: the best one, None while unknown."""

    node: str
    provider: str
    rule: Rule
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}
    offer: Offer | None = None


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Decide again later. Without a message nothing is reported, because the wait is short or usual."""

    reason: str
    message: str = ""
    requeue_after: float


class Leave(msgspec.Struct, frozen=True):
    """The pod is not for a cloud, or the scheduler binds it: do nothing and report nothing."""


class Refuse(msgspec.Struct, frozen=True, kw_only=True):
    """The pod may not go to a cloud, for this reason. `is_kept_off`: the pod must not run in the cluster either."""

    reason: str
    message: str
    is_kept_off: bool = False


Decision = Place | Wait | Leave | Refuse


def decide(facts: PlacementFacts) -> Decision:
    """Return where the pod goes."""
    if facts.is_settled:
        return Leave()
    if not facts.is_owner_known:
        return Wait(reason=Reason.OWNER_UNKNOWN, requeue_after=_UNKNOWN_RETRY_SECONDS)
    rule = rule_of(facts)
    if rule is None:
        return Leave()
    return _pending_reason(facts, rule) or _gang_wait(facts, rule) or _not_yet(facts, rule) or _choose(facts, rule)


def rule_of(facts: PlacementFacts) -> Rule | None:
    """Return the rule by which the pod may go to a cloud, or None."""
    if facts.is_excluded:
        return None
    if facts.request.provider or facts.is_ask_invalid:
        return Rule.ASKED
    if facts.request.is_managed and facts.job is not None:
        return Rule.MANAGED
    if facts.requests_gpu and facts.config.auto != "Off" and not facts.pinned_node:
        return Rule.AUTOMATIC
    return None


def _pending_reason(facts: PlacementFacts, rule: Rule) -> Decision | None:
    """Return the decision for a pod that another scheduler or a gang keeps from clouds, or None."""
    is_reported = rule is Rule.ASKED or facts.verdict is not None
    if facts.scheduler not in facts.config.schedulers:
        message = (
            f"Scheduler {facts.scheduler} decides about this pod: remove spec.schedulerName, or add the scheduler to "
            "the setting offload_schedulers."
        )
        return Refuse(reason=Reason.OTHER_SCHEDULER, message=message) if rule is Rule.ASKED else Leave()
    problem = _gang_problem(facts)
    if problem:
        return Refuse(reason=Reason.GANG_NOT_OFFLOADED, message=problem) if is_reported else Leave()
    return None


def _gang_problem(facts: PlacementFacts) -> str:
    """Return why the gang of the pod cannot go to a cloud as a whole, as a sentence, or an empty string."""
    if facts.gang and facts.gang_ref is None:
        return (
            f"The pod belongs to {facts.gang}, whose pods must run together and have no common ranks, so it is not "
            "offloaded alone: use one worker, or run the gang in the cluster."
        )
    clouds = {option.node for option in facts.options}
    ordinary = sorted(_sibling_nodes(facts) - clouds)
    if facts.options and ordinary:
        return (
            f"Another pod of {facts.gang} runs on node {ordinary[0]}, and its pods must run together: delete the gang "
            "and create it again to move all of it."
        )
    return ""


def _sibling_nodes(facts: PlacementFacts) -> set[str]:
    return {sibling.node for sibling in facts.siblings or () if sibling.node}


def _not_yet(facts: PlacementFacts, rule: Rule) -> Decision | None:
    """Return the decision for a pod that is not due, or None if it is."""
    if facts.stage == "overflow" and facts.gates:
        return Leave()
    if facts.stage == "overflow" and facts.nominated_node:
        return Wait(reason=Reason.PREEMPTION_PENDING, requeue_after=_PREEMPTION_RETRY_SECONDS)
    if rule is Rule.ASKED or (rule is Rule.AUTOMATIC and facts.config.auto == "Always"):
        return Leave() if _is_for_scheduler(facts) else None
    if facts.verdict is None:
        return Leave()
    job_wait = _job_wait(facts) if rule is Rule.MANAGED else None
    return job_wait or _autoscaler_wait(facts.verdict, facts.config, rule)


def _gang_wait(facts: PlacementFacts, rule: Rule) -> Decision | None:
    """Return the decision for a pod whose gang is not ready to go, or None.

    A gang that did not ask goes only when the scheduler has refused all of its pods: those that the scheduler can place
    would be left behind.
    """
    ref, siblings = facts.gang_ref, facts.siblings
    if ref is None or (facts.stage == "overflow" and facts.gates):
        return None
    if siblings is None:
        return Wait(reason=Reason.OWNER_UNKNOWN, requeue_after=_UNKNOWN_RETRY_SECONDS)
    if rule is Rule.ASKED or facts.config.auto == "Always" or facts.verdict is None or _sibling_nodes(facts):
        return None
    refused = 1 + sum(sibling.is_unschedulable for sibling in siblings)
    return None if refused >= ref.size else Wait(reason=Reason.WAITING_FOR_GANG, requeue_after=_UNKNOWN_RETRY_SECONDS)


def _is_for_scheduler(facts: PlacementFacts) -> bool:
    """Return whether admission prepared the pod for a cloud node, so that the scheduler is about to bind it."""
    return facts.stage == "overflow" and facts.verdict is None and facts.pinned_node in facts.tolerates


def _job_wait(facts: PlacementFacts) -> Decision | None:
    job, config = facts.job, facts.config
    assert job is not None, "a managed pod has a Job"
    if job.runs_in_cluster is None:
        return Wait(reason=Reason.OWNER_UNKNOWN, requeue_after=_UNKNOWN_RETRY_SECONDS)
    if job.runs_in_cluster:
        return Leave()
    left = config.max_pending - facts.pending_seconds
    if left > 0 and job.waiting_jobs <= config.pending_job_threshold:
        return Wait(reason=Reason.JOB_PENDING, requeue_after=left)
    return None


def _autoscaler_wait(verdict: SchedulerVerdict, config: PlacementConfig, rule: Rule) -> Wait | None:
    if not verdict.is_known:
        return Wait(reason=Reason.SCALE_UP_PENDING, requeue_after=_UNKNOWN_RETRY_SECONDS)
    if verdict.scale_up_seconds is not None and verdict.scale_up_seconds < config.scale_up_timeout:
        left = config.scale_up_timeout - verdict.scale_up_seconds
        message = (
            "A cluster autoscaler adds a node for this pod, so it is not offloaded. It is offloaded in "
            f"{config.scale_up_timeout:.0f} s after the scale-up if no node has taken it."
        )
        return Wait(reason=Reason.SCALE_UP_PENDING, message=message, requeue_after=left)
    left = config.autoscaler_wait - verdict.seconds
    if rule is Rule.AUTOMATIC and not verdict.is_hopeless and left > 0:
        return Wait(reason=Reason.SCALE_UP_PENDING, requeue_after=left)
    return None


def _choose(facts: PlacementFacts, rule: Rule) -> Decision:
    """Choose the provider of a pod that is due."""
    request = facts.request
    is_kept_off = rule is Rule.ASKED
    if request.errors:
        return Refuse(reason=Reason.INVALID_ANNOTATIONS, message=" ".join(request.errors), is_kept_off=is_kept_off)
    named = _named_provider(facts, rule)
    options = tuple(option for option in facts.options if named in {"", option.provider})
    if not options:
        message = f"{_asker(facts)} names provider {named}, which this operator does not have: " + _known(facts)
        return Refuse(reason=Reason.NO_ACCOUNT, message=message, is_kept_off=is_kept_off)
    refusals = {option.provider: _refusal(option, facts, is_named=bool(named)) for option in options}
    fitting = [option for option in options if refusals[option.provider] is None]
    if not fitting:
        return _refuse_all(options, refusals, rule, has_choice=not named)
    fitting = [option for option in fitting if not option.is_exhausted] or fitting
    waiting = _wait_for(fitting, facts, is_named=bool(named))
    if waiting is not None:
        return waiting
    return _place(_best(fitting, facts), facts, rule)


def _named_provider(facts: PlacementFacts, rule: Rule) -> str:
    """Return the only provider that the pod may go to, or an empty string if the ranking of offers decides."""
    if rule is Rule.MANAGED:
        return RUNPOD
    provider = facts.request.provider
    return "" if provider == CHEAPEST else provider


def _known(facts: PlacementFacts) -> str:
    names = ", ".join(sorted(option.provider for option in facts.options))
    return f"use one of {names}." if names else "add a node for a provider to the setting nodes."


def _asker(facts: PlacementFacts) -> str:
    return facts.request.asked_by or "The pod"


def _refusal(option: ProviderOption, facts: PlacementFacts, *, is_named: bool) -> Refusal | None:  # noqa: PLR0911 (a table)
    """Return why the pod cannot go to the provider, or None. Unknown offers of a named provider refuse nothing."""
    name = option.provider
    if facts.pinned_node and facts.pinned_node != option.node:
        return Refusal(
            Reason.NODE_SELECTOR_CONFLICT,
            f"The pod's node selector names node {facts.pinned_node}, not {option.node} of {name}: remove the selector "
            f"or ask for the provider of {facts.pinned_node}.",
        )
    if not option.has_account:
        return Refusal(
            Reason.NO_ACCOUNT,
            f"Skysail has no account at {name}: create the Secret with its credentials (docs/{name}.md), or remove the "
            "request.",
        )
    if not option.fits_node:
        return Refusal(
            Reason.NODE_SELECTOR_CONFLICT,
            f"The pod's nodeSelector or affinity excludes node {option.node}: remove it, or do not ask for a cloud.",
        )
    if option.unsupported:
        return Refusal(Reason.UNSUPPORTED, f"Node {option.node} does not support: {' '.join(option.unsupported)}")
    if option.policy is not None:
        return option.policy
    if refusal := _gang_refusal(option, facts):
        return refusal
    if option.offers is None:
        return None if is_named or not option.outage else Refusal(Reason.CLOUD_UNREACHABLE, option.outage)
    return option.no_offer


def _gang_refusal(option: ProviderOption, facts: PlacementFacts) -> Refusal | None:
    """Return why the gang, or the replicas behind the pod, cannot go to the provider, or None."""
    size = facts.gang_ref.size if facts.gang_ref is not None else facts.request.replicas
    if size == 1:
        return None
    members = f"pods of {facts.gang}" if facts.gang_ref is not None else "replicas of the pod"
    if not option.has_private_network:
        return Refusal(
            Reason.GANG_NOT_OFFLOADED,
            f"{option.provider} has no private network for the {size} {members}: ask for a cloud that has one, use one "
            "worker, or do not ask for a cloud.",
        )
    gpus = facts.request.gpus
    if option.gang_limits is not None and (
        problem := option.gang_limits.problem(
            option.provider, gpus.type if gpus else "", gpus.count if gpus else 0, size
        )
    ):
        return Refusal(Reason.GANG_NOT_OFFLOADED, problem)
    nodes = _sibling_nodes(facts)
    if nodes and option.node not in nodes:
        node = min(nodes)
        return Refusal(Reason.GANG_NOT_OFFLOADED, f"Other pods of {facts.gang} are on node {node}: ask for its cloud.")
    return _difference(facts)


def _difference(facts: PlacementFacts) -> Refusal | None:
    """Return the refusal of a gang whose pods need different machines, or None.

    A pod that is just being created may still be changed by other webhooks, so it is not compared.
    """
    if facts.verdict is None:
        return None
    others = [each.name for each in facts.siblings or () if each.machine not in {None, facts.machine}]
    if not others:
        return None
    return Refusal(
        Reason.GANG_NOT_OFFLOADED,
        f"Pod {min(others)} of {facts.gang} asks for another image, other GPUs, CPU or memory, or other settings of "
        "the cloud than this pod, but a cloud launches a gang of equal machines: use the same for all ranks.",
    )


def _refuse_all(
    options: tuple[ProviderOption, ...], refusals: Mapping[str, Refusal | None], rule: Rule, *, has_choice: bool
) -> Decision:
    found = {provider: refusal for provider, refusal in refusals.items() if refusal is not None}
    reasons = {refusal.reason for refusal in found.values()}
    if Reason.LIMITS_UNKNOWN in reasons:
        return Wait(reason=Reason.LIMITS_UNKNOWN, requeue_after=_UNKNOWN_RETRY_SECONDS)
    # Say nothing about policies to a pod that did not ask: most clusters do not want automatic offload.
    if rule is Rule.AUTOMATIC and not any(_is_about_offers(option, found[option.provider]) for option in options):
        return Leave()
    reason = reasons.pop() if len(reasons) == 1 else Reason.NO_PROVIDER
    lines = [f"{provider}: {refusal.message}" if has_choice else refusal.message for provider, refusal in found.items()]
    conflicts = reason == Reason.NODE_SELECTOR_CONFLICT
    return Refuse(reason=reason, message=" ".join(lines), is_kept_off=rule is Rule.ASKED and not conflicts)


def _is_about_offers(option: ProviderOption, refusal: Refusal) -> bool:
    reported = {Reason.CLOUD_UNREACHABLE, Reason.GANG_NOT_OFFLOADED}
    return refusal is option.no_offer or refusal.reason in reported


def _wait_for(fitting: list[ProviderOption], facts: PlacementFacts, *, is_named: bool) -> Wait | None:
    """Return the wait for facts about the remaining providers, or None."""
    if not is_named and any(option.offers is None for option in fitting):
        return Wait(reason=Reason.OFFERS_UNKNOWN, requeue_after=_UNKNOWN_RETRY_SECONDS)
    best = _best(fitting, facts)
    if facts.stage == "overflow" and not best.is_node_ready:
        message = f"Node {best.node} is not ready, so the pod waits for it."
        return Wait(reason=Reason.NODE_NOT_READY, message=message, requeue_after=_UNKNOWN_RETRY_SECONDS)
    return None


def _best(fitting: list[ProviderOption], facts: PlacementFacts) -> ProviderOption:
    """Return the provider with the best offer."""
    offer = _best_offer(fitting, facts)
    return next((option for option in fitting if offer and option.provider == offer.provider), fitting[0])


def _best_offer(options: list[ProviderOption], facts: PlacementFacts) -> Offer | None:
    """Return the best offer by the order of `rank`. Returns None if no offers are known."""
    gpus = facts.request.gpus
    offers = [offer for option in options for offer in option.offers or ()]
    ranked = rank(offers, OfferQuery(gpu_count=gpus.count if gpus else 0)).candidates
    return ranked[0] if ranked else None


def _place(option: ProviderOption, facts: PlacementFacts, rule: Rule) -> Place:
    annotations = dict(facts.inherited)
    if rule is Rule.AUTOMATIC:
        annotations[Annotation.AUTOMATIC.value] = "true"
    return Place(
        node=option.node,
        provider=option.provider,
        rule=rule,
        annotations=annotations,
        labels={Label.RUNPOD_MANAGED.value: "true"} if option.provider == RUNPOD else {},
        offer=_best_offer([option], facts),
    )
