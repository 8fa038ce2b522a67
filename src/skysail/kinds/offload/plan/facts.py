"""Facts of a placement, from a pod, its owners, the policies of its namespace and the offers of clouds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec
from msgspec.structs import replace

from skysail.base.names import Annotation, Reason
from skysail.base.settings import NodeSettings
from skysail.claims.gangs import GangRef
from skysail.claims.limits import policy_check
from skysail.claims.limits.offload_policy import OffloadPolicy
from skysail.claims.limits.policy_check import PolicyDecision, PolicyQuery
from skysail.claims.requirements import account_objects, candidates
from skysail.claims.requirements import annotations as requirements
from skysail.claims.requirements.gpu_types import GPU_RESOURCE
from skysail.claims.requirements.machine_size import machine_size
from skysail.claims.requirements.types import CHEAPEST, PROVIDERS, RUNPOD, OffloadRequest, OwnerLink, PodSpecView
from skysail.cloud import machine_prices
from skysail.cloud.errors import Rejected
from skysail.cloud.gang_limits import GangLimits
from skysail.cloud.machine_prices import MachineRequest
from skysail.cloud.offers import OfferList, OfferQuery, rank
from skysail.kinds.offload.objects import NodeObject, Pod, parse_time, refers_to_secrets, requests_resource
from skysail.kinds.offload.plan import gangs, node_fit
from skysail.kinds.offload.plan.gangs import Machine, Owner, Sibling
from skysail.kinds.offload.plan.placement import (
    JobFacts,
    PlacementConfig,
    PlacementFacts,
    ProviderOption,
    Refusal,
    Rule,
    SchedulerVerdict,
    Stage,
    rule_of,
)

# Owners that ask for a cloud and are read live, so that no change of them enqueues their pods.
_UNWATCHED_KINDS = {
    "CronJob", "TrainingJob", "ModalJob", "JobSet", "TrainJob", "Trial", "InferenceService",
    "PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob", "MPIJob",
}  # fmt: skip


class Cloud(msgspec.Struct, frozen=True, kw_only=True):
    """A cloud node and its provider. `object` is None if the node is unknown, `offers` while they are unknown.

    `is_exhausted`: the provider had no capacity for another pod of the same controller lately.
    `unsupported`: fields of the pod that the node does not support.
    `has_private_network`: the pods of a gang reach each other there. `gang_limits`: limits on such a gang.
    """

    node: str
    settings: NodeSettings
    has_account: bool = True
    object: NodeObject | None = None
    offers: OfferList | None = None
    outage: str = ""
    is_exhausted: bool = False
    unsupported: tuple[str, ...] = ()
    has_private_network: bool = True
    gang_limits: GangLimits | None = None


class AutoscalerAnswer(msgspec.Struct, frozen=True):
    """Events of a cluster autoscaler about a pod: when it promised a node, and whether it said that it cannot help."""

    scale_up: datetime | None = None
    is_hopeless: bool = False


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """Input of a decision, as it was read. None means that a fact is unknown.

    `owners`: owner chain of the pod, nearest first. `policies` and `namespace_labels`: those of its namespace.
    `autoscaler`, `job` and `siblings` (other pods of its gang) are read only for pods that they matter for.
    `gang`: the gang of a pod that does not exist yet.
    """

    pod: Pod
    stage: Stage
    now: datetime
    config: PlacementConfig
    owners: tuple[Owner, ...] | None = ()
    excluded_kinds: frozenset[str] = frozenset()
    clouds: tuple[Cloud, ...] = ()
    policies: Sequence[OffloadPolicy] | None = ()
    namespace_labels: Mapping[str, str] | None = msgspec.field(default_factory=dict)
    autoscaler: AutoscalerAnswer | None = None
    job: JobFacts | None = None
    gang: GangRef | None = None
    siblings: tuple[Pod, ...] | None = ()


def placement_facts(seen: Observation) -> PlacementFacts:
    """Return the facts that the decision table needs."""
    facts = pod_facts(seen)
    rule = rule_of(facts)
    if rule is None or facts.is_settled or not facts.is_owner_known:
        return facts
    return replace(facts, options=tuple(_option(cloud, seen, facts.request, rule) for cloud in seen.clouds))


def pod_facts(seen: Observation) -> PlacementFacts:
    """Return the facts about the pod alone, without the providers. They say which further facts are needed."""
    pod, owners = seen.pod, seen.owners or ()
    merged = _merged_annotations(pod, owners)
    request = _request(pod, owners, seen.clouds)
    return PlacementFacts(
        stage=seen.stage,
        request=request,
        config=seen.config,
        inherited={name: merged[name] for name in merged if name not in pod.annotations and name not in pod.labels},
        is_owner_known=seen.owners is not None,
        is_excluded=any(owner.kind in seen.excluded_kinds for owner in owners),
        may_be_asked_later=any(owner.kind in _UNWATCHED_KINDS for owner in owners),
        is_settled=bool(pod.node) or pod.is_finished or pod.metadata.is_deleting,
        is_ask_invalid=Annotation.OFFLOAD in merged and not request.provider,
        requests_gpu=requests_resource(pod.containers, GPU_RESOURCE),
        gang=gangs.gang(pod, owners),
        gang_ref=seen.gang or gangs.gang_ref(pod, owners),
        machine=_gang_machine(pod, request),
        siblings=_siblings(seen),
        job=seen.job,
        verdict=_verdict(seen),
        scheduler=pod.scheduler,
        gates=pod.gates,
        nominated_node=pod.status.nominated_node_name,
        pinned_node=node_fit.pinned_node(pod, [cloud.node for cloud in seen.clouds]),
        tolerates=frozenset(cloud.node for cloud in seen.clouds if node_fit.tolerates(pod, cloud.settings)),
        pending_seconds=_seconds_since(pod.metadata.creation_timestamp, seen.now),
    )


def _siblings(seen: Observation) -> tuple[Sibling, ...] | None:
    if seen.siblings is None:
        return None
    ref, owners = gangs.gang_ref(seen.pod, seen.owners or ()), seen.owners or ()
    # Owners below that of the gang may be those of this pod alone.
    first = next((number for number, owner in enumerate(owners) if ref and owner.uid == ref.uid), len(owners))
    return tuple(
        Sibling(
            name=other.metadata.name,
            node=other.node or other.node_selector.get(node_fit.HOSTNAME, ""),
            is_unschedulable=other.unschedulable_since is not None,
            machine=_gang_machine(other, _request(other, owners[first:], seen.clouds)),
        )
        for other in seen.siblings
    )


def _gang_machine(pod: Pod, request: OffloadRequest) -> Machine:
    """Return what all ranks of a gang must have in common, as the claim of the gang compares it."""
    return Machine(
        image=_image(pod, request),
        gpus=request.gpus,
        gpu_memory=request.gpu_memory,
        size=machine_size(_view(pod), request.overrides),
        regions=request.regions,
        cloud_types=request.cloud_types,
        cuda_versions=request.cuda_versions,
        options=request.options,
        is_cheapest=request.provider == CHEAPEST,
    )


def _request(pod: Pod, owners: Sequence[Owner], clouds: Sequence[Cloud]) -> OffloadRequest:
    names = {cloud.settings.provider for cloud in clouds}
    merged = _merged_annotations(pod, owners)
    request = requirements.parse(merged, pod.labels, _view(pod), providers=names or PROVIDERS)
    return _with_legacy_provider(request, pod, names)


def _merged_annotations(pod: Pod, owners: Sequence[Owner]) -> dict[str, str]:
    """Return the annotations of the pod, and those that it inherits from its owners."""
    own = OwnerLink(kind="Pod", name=pod.metadata.name, annotations=pod.annotations, labels=pod.labels)
    chain = [
        OwnerLink(kind=owner.kind, name=owner.name, annotations=owner.annotations, labels=owner.labels)
        for owner in owners
    ]
    return {**requirements.inherit([own, *chain]), **pod.annotations}


def _view(pod: Pod) -> PodSpecView:
    """Return the part of the spec that chooses GPUs. A spec that the API server would reject counts as empty."""
    try:
        return msgspec.convert(pod.spec, PodSpecView)
    except msgspec.ValidationError:
        return PodSpecView()


def _with_legacy_provider(request: OffloadRequest, pod: Pod, providers: set[str]) -> OffloadRequest:
    provider = node_fit.legacy_provider(pod)
    if request.provider or provider not in providers:
        return request
    return replace(request, provider=provider, asked_by=f"spec.nodeSelector[{node_fit.LEGACY_PROVIDER}]")


def _verdict(seen: Observation) -> SchedulerVerdict | None:
    since = seen.pod.unschedulable_since
    if since is None:
        return None
    seconds = max(0.0, (seen.now - since).total_seconds())
    answer = seen.autoscaler
    if answer is None:
        return SchedulerVerdict(seconds=seconds, is_known=False)
    scale_up = None if answer.scale_up is None else max(0.0, (seen.now - answer.scale_up).total_seconds())
    return SchedulerVerdict(seconds=seconds, scale_up_seconds=scale_up, is_hopeless=answer.is_hopeless)


def _seconds_since(timestamp: str | None, now: datetime) -> float:
    return max(0.0, (now - parse_time(timestamp)).total_seconds()) if timestamp else 0.0


def _option(cloud: Cloud, seen: Observation, request: OffloadRequest, rule: Rule) -> ProviderOption:
    decision = _policy(cloud, seen, request, rule)
    option = ProviderOption(
        provider=cloud.settings.provider,
        node=cloud.node,
        has_account=cloud.has_account,
        is_node_ready=cloud.object is not None and cloud.object.is_ready,
        fits_node=node_fit.fits(seen.pod, cloud.node, _labels(cloud)),
        policy=None if decision.allowed else Refusal(decision.reason, decision.message),
        unsupported=cloud.unsupported,
        outage=cloud.outage,
        is_exhausted=cloud.is_exhausted,
        has_private_network=cloud.has_private_network,
        gang_limits=cloud.gang_limits,
    )
    if cloud.offers is None or not decision.allowed:
        return option
    query = _query(cloud, seen.config, request, decision)
    try:
        priced = machine_prices.price_offers(cloud.offers, _machine(seen.pod, request))
    except Rejected as error:
        return replace(option, offers=(), no_offer=Refusal(error.reason, str(error)))
    selection = candidates.select(cloud.settings.provider, priced, query)
    if not selection.candidates:
        return replace(option, offers=(), no_offer=Refusal(selection.reason, selection.message))
    return replace(option, offers=rank(priced, query).candidates)


def _machine(pod: Pod, request: OffloadRequest) -> MachineRequest:
    """Return the machine that a claim for the pod would ask for, so that both have the same price."""
    return MachineRequest(
        gpu_count=request.gpus.count if request.gpus else 0,
        size=machine_size(_view(pod), request.overrides),
        options=request.options,
    )


def _labels(cloud: Cloud) -> dict[str, str]:
    known = cloud.object.labels if cloud.object is not None else {}
    return {"type": "virtual-kubelet", **cloud.settings.labels, **known}


def _policy(cloud: Cloud, seen: Observation, request: OffloadRequest, rule: Rule) -> PolicyDecision:
    if seen.policies is None or seen.namespace_labels is None:
        message = "The OffloadPolicies of the namespace cannot be read; retried."
        return PolicyDecision(allowed=False, reason=Reason.LIMITS_UNKNOWN, message=message)
    return policy_check.check(
        seen.policies,
        PolicyQuery(
            namespace=seen.pod.metadata.namespace,
            namespace_labels=seen.namespace_labels,
            provider=cloud.settings.provider,
            image=_image(seen.pod, request),
            uses_secrets=refers_to_secrets(seen.pod),
            is_automatic=rule is Rule.AUTOMATIC,
            size=_size(seen, request),
            account_objects=account_objects.named(cloud.settings.provider, request.options),
        ),
    )


def _size(seen: Observation, request: OffloadRequest) -> int:
    """Return the number of instances of the launch: the ranks of the gang, or the replicas behind the pod."""
    ref = seen.gang or gangs.gang_ref(seen.pod, seen.owners or ())
    return ref.size if ref is not None else request.replicas


def _image(pod: Pod, request: OffloadRequest) -> str:
    override = request.overrides.image if request.overrides else None
    return override or str(next((container.get("image") for container in pod.containers), "") or "")


def _default_gpu_type(cloud: Cloud, config: PlacementConfig, request: OffloadRequest) -> str:
    return "" if request.provider == CHEAPEST else config.default_gpu_types.get(cloud.settings.provider, "")


def _query(cloud: Cloud, config: PlacementConfig, request: OffloadRequest, decision: PolicyDecision) -> OfferQuery:
    gpus = request.gpus
    caps = [decision.max_usd_per_gpu_hour]
    if gpus and (cloud.settings.provider == RUNPOD or request.provider == CHEAPEST):
        caps.append(config.max_gpu_price)
    return OfferQuery(
        gpu_count=gpus.count if gpus else 0,
        gpu_type=(gpus.type or _default_gpu_type(cloud, config, request)) if gpus else "",
        gpu_types=decision.gpu_types,
        gpu_memory=request.gpu_memory,
        regions=request.regions,
        allowed_regions=decision.regions,
        cloud_types=request.cloud_types,
        cuda_versions=request.cuda_versions if gpus else (),
        max_usd_per_hour=request.max_usd_per_hour,
        max_usd_per_gpu_hour=min((cap for cap in caps if cap is not None), default=None),
    )
