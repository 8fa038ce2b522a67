"""Forecast of workloads for `skysail plan`: place, price, worst case and permission. Pure.

The decisions are those of the operator: placement, ranking of offers, policies and budgets are the same functions.
Reservations of earlier workloads of the file count for later ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec
from msgspec.structs import replace

from skysail.base.names import ACCOUNT_MOCK, ACCOUNT_SIMULATED, Annotation, Reason
from skysail.base.settings import NodeSettings
from skysail.claims.limits.spend_account import SpendAccountStatus
from skysail.claims.requirements.types import OffloadRequest
from skysail.cli.clouds import plan_report
from skysail.cli.clouds.cloud_objects import CloudNode
from skysail.cli.clouds.launch_permission import Launch, PermissionCheck
from skysail.cli.clouds.plan_facts import ClusterFacts, cloud_settings
from skysail.cli.clouds.plan_report import CLUSTER, OfferLine, PlanReport, WorkloadPlan
from skysail.cli.clouds.workload_kinds import Workload
from skysail.cloud.gang_limits import GangLimits
from skysail.cloud.lifetimes import DEFAULT_MAX_LIFETIME, MAX_LIFETIMES
from skysail.cloud.modal.gangs.arguments import LIMITS
from skysail.cloud.offers import Offer, OfferList
from skysail.cloud.simulated.account import features_of
from skysail.cloud.simulated.vendors import MODAL, VENDORS
from skysail.kinds.offload.config import OffloadConfig
from skysail.kinds.offload.objects import NodeObject, NodeStatus, Pod
from skysail.kinds.offload.plan import facts as placement_input
from skysail.kinds.offload.plan import gangs, node_fit, placement
from skysail.kinds.offload.plan.facts import AutoscalerAnswer, Cloud, Observation
from skysail.kinds.offload.plan.gangs import Sibling
from skysail.kinds.offload.plan.placement import (
    JobFacts,
    Leave,
    Place,
    PlacementFacts,
    Refuse,
    Rule,
    SchedulerVerdict,
    Wait,
)
from skysail.node import pod_types
from skysail.node.config import cloud_pod
from skysail.node.sync import cloud_requirements, unsupported_fields

# Accounts that run any gang.
_PRETENDED = {ACCOUNT_MOCK, ACCOUNT_SIMULATED}
# Features of a cloud that can do all. A field that such a cloud does not support is supported by none.
_FEATURES = replace(features_of(MODAL), multi_container=False)


def forecast(
    workloads: Iterable[Workload], skipped: Sequence[str], known: ClusterFacts, config: OffloadConfig, now: datetime
) -> PlanReport:
    """Forecast all workloads of a file, in their order."""
    created = {namespace for namespace in known.missing_namespaces if f"Namespace {namespace}" in skipped}
    known = replace(known, missing_namespaces=known.missing_namespaces - created)
    planner = _Planner(known, config, now)
    plans = tuple(planner.plan(workload) for workload in workloads)
    return PlanReport(
        verdict=plan_report.worst_verdict(plan.verdict for plan in plans),
        usd_per_hour=round(sum(plan.usd_per_hour or 0.0 for plan in plans), 6),
        worst_case_usd=round(sum(plan.worst_case_usd or 0.0 for plan in plans), 6),
        workloads=plans,
        skipped=tuple(skipped),
        unread=known.unread,
    )


class _Planner:
    """Holds the accounts, which each planned workload changes."""

    def __init__(self, known: ClusterFacts, config: OffloadConfig, now: datetime) -> None:
        self._known = known
        self._config = config
        self._now = now
        self._accounts: dict[str, SpendAccountStatus | None] = dict(known.accounts)
        self._nodes = cloud_settings(config.nodes, known.nodes)

    def plan(self, workload: Workload) -> WorkloadPlan:
        workload = replace(workload, pod=_as_asked(workload.pod, self._nodes))
        facts = placement_input.placement_facts(self._observation(workload))
        rule = placement.rule_of(facts)
        base = WorkloadPlan(
            kind=workload.kind,
            namespace=workload.namespace,
            name=workload.name,
            place=CLUSTER,
            rule=rule.value if rule else "",
            pods=workload.pods,
            parallel=workload.parallel,
            notes=(*self._namespace_notes(workload.namespace), *_warnings(facts.request), *workload.notes),
        )
        if workload.namespace in self._config.excluded_namespaces or rule is None:
            return base
        is_overflow = rule is Rule.MANAGED or (rule is Rule.AUTOMATIC and facts.config.auto != "Always")
        decision = placement.decide(_unschedulable(facts) if is_overflow else facts)
        match decision:
            case Leave():
                return base
            case Wait():
                message = decision.message or _unknown_message(decision.reason)
                return plan_report.undecided(base, decision.reason, message, is_overflow=is_overflow)
            case Refuse():
                return plan_report.refused(base, decision.reason, decision.message, is_overflow=is_overflow)
            case Place():
                launch = Launch(
                    workload=workload,
                    request=facts.request,
                    place=decision,
                    offers=_offers(facts, decision.provider),
                    max_lifetime=self._max_lifetime(decision),
                    gang=facts.gang_ref,
                )
                return self._placed(base, launch, is_overflow=is_overflow)

    def _namespace_notes(self, namespace: str) -> tuple[str, ...]:
        if namespace not in self._known.missing_namespaces:
            return ()
        return (f"Namespace {namespace} does not exist: create it with `kubectl create namespace {namespace}`.",)

    def _observation(self, workload: Workload) -> Observation:
        has_job = bool(workload.owners) and workload.owners[0].kind == "Job"
        return Observation(
            pod=workload.pod,
            stage="admission",
            now=self._now,
            config=self._config.placement,
            owners=workload.owners,
            excluded_kinds=self._config.excluded_kinds,
            clouds=tuple(self._cloud(name, settings, workload.pod) for name, settings in self._nodes.items()),
            policies=self._known.policies,
            namespace_labels=self._known.namespace_labels.get(workload.namespace),
            autoscaler=AutoscalerAnswer(),
            job=JobFacts() if has_job else None,
            gang=gangs.planned_ref(workload.pod, workload.owners or ()),
        )

    def _cloud(self, name: str, settings: NodeSettings, pod: Pod) -> Cloud:
        node = next((row for row in self._known.nodes or () if row.metadata.name == name), None)
        return Cloud(
            node=name,
            settings=settings,
            has_account=self._known.has_account(name),
            # Readiness is about this moment, and the workload is not applied yet.
            object=None if node is None else NodeObject(node.metadata, NodeStatus()),
            offers=self._offer_list(settings.provider),
            unsupported=_unsupported(pod, settings.provider),
            has_private_network=VENDORS[settings.provider].private_network if settings.provider in VENDORS else False,
            gang_limits=_gang_limits(settings.provider, node),
        )

    def _offer_list(self, provider: str) -> OfferList | None:
        return None if self._known.offers is None else self._known.offers.get(provider)

    def _placed(self, base: WorkloadPlan, launch: Launch, *, is_overflow: bool) -> WorkloadPlan:
        provider = launch.place.provider
        base = replace(
            base,
            place=CLUSTER if is_overflow else provider,
            overflow=provider if is_overflow else "",
            node=launch.place.node,
        )
        if not launch.offers:
            return plan_report.undecided(base, Reason.OFFERS_UNKNOWN, f"The offers of {provider} are not known.")
        base = replace(
            base,
            candidates=tuple(self._line(offer, launch.gpu_count) for offer in launch.offers),
            usd_per_hour=round(launch.usd_per_hour * launch.workload.parallel, 6),
        )
        namespace = base.namespace
        permission = PermissionCheck(known=self._known, account=self._accounts.get(namespace), now=self._now)
        planned, self._accounts[namespace] = permission.check(base, launch)
        return planned

    def _max_lifetime(self, place: Place) -> float:
        """Return the seconds that the cloud allows. A simulated cloud does not have the limit of the real one."""
        node = next((row for row in self._known.nodes or () if row.metadata.name == place.node), None)
        is_pretended = node is not None and node.account in _PRETENDED
        return DEFAULT_MAX_LIFETIME if is_pretended else MAX_LIFETIMES.get(place.provider, DEFAULT_MAX_LIFETIME)

    def _line(self, offer: Offer, count: int) -> OfferLine:
        listed = self._offer_list(offer.provider)
        return OfferLine(
            provider=offer.provider,
            gpu_type=offer.gpu_type,
            count=count,
            usd_per_hour=offer.total(count),
            stock=offer.stock,
            cloud_type=offer.cloud_type,
            region=offer.region,
            age_seconds=max(0, int(self._now.timestamp() - listed.at)) if listed else 0,
        )


def _gang_limits(provider: str, node: CloudNode | None) -> GangLimits | None:
    """Return the limits of a cloud on gangs. A simulated cloud has none."""
    return LIMITS if provider == MODAL.name and node is not None and node.account not in _PRETENDED else None


def _as_asked(pod: Pod, nodes: Mapping[str, NodeSettings]) -> Pod:
    """Return a pod that names a cloud node by hand as one that asks for its provider: the same limits apply to it."""
    by_selector = node_fit.pinned_node(pod, nodes)
    is_bound_there = bool(by_selector) and node_fit.tolerates(pod, nodes[by_selector])
    name = pod.node if pod.node in nodes else (by_selector if is_bound_there else "")
    if not name:
        return pod
    annotations = {**pod.annotations, Annotation.OFFLOAD.value: nodes[name].provider}
    spec = {key: value for key, value in pod.spec.items() if key != "nodeName"}
    return replace(pod, metadata=replace(pod.metadata, annotations=annotations), spec=spec)


def _unschedulable(facts: PlacementFacts) -> PlacementFacts:
    """Return the facts after the scheduler has refused the pod and its gang for long, and no autoscaler can help."""
    verdict = SchedulerVerdict(seconds=math.inf, is_hopeless=True)
    others = facts.gang_ref.size - 1 if facts.gang_ref else 0
    siblings = (Sibling(is_unschedulable=True),) * others
    return replace(facts, verdict=verdict, pending_seconds=math.inf, siblings=siblings)


def _offers(facts: PlacementFacts, provider: str) -> tuple[Offer, ...]:
    options = (option for option in facts.options if option.provider == provider)
    return next((option.offers for option in options if option.offers), ())


def _unsupported(pod: Pod, provider: str) -> tuple[str, ...]:
    """Return fields of the pod that no cloud supports. A pod that cannot be decoded has none."""
    try:
        found = msgspec.convert(msgspec.to_builtins(pod), pod_types.Pod)
    except msgspec.ValidationError:
        return ()
    rejected = unsupported_fields.find(cloud_pod.effective(found, provider), _FEATURES)
    return (rejected + cloud_requirements.unsupported(found, provider)).rejected


def _warnings(request: OffloadRequest) -> list[str]:
    if not request.provider and not request.is_managed:
        return []
    notes = [warned.message for warned in request.warnings]
    if request.not_honoured:
        notes.append(f"Annotations that are not honoured yet: {', '.join(request.not_honoured)}.")
    if request.unknown:
        notes.append(f"Unknown annotations: {', '.join(request.unknown)}. Check the spelling.")
    return notes


def _unknown_message(reason: str) -> str:
    if reason == Reason.LIMITS_UNKNOWN:
        return "The OffloadPolicies or the namespace cannot be read."
    return "The offers of a provider that the pod may use are not known."
