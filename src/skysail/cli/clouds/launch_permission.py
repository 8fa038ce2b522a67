"""Permission for a launch, for `skysail plan`: policies and budgets, as the operator checks them before it. Pure."""

from __future__ import annotations

import math
from datetime import datetime

import msgspec
from msgspec.structs import replace

from skysail.base.names import Annotation, Reason
from skysail.claims.gangs import GangRef
from skysail.claims.limits import budget, policy_check
from skysail.claims.limits.budget import NotReserved, Reserved, ReserveRequest
from skysail.claims.limits.policy_check import PolicyDecision, PolicyQuery
from skysail.claims.limits.spend_account import SpendAccountStatus
from skysail.claims.requirements import account_objects
from skysail.claims.requirements.types import OffloadRequest
from skysail.cli.clouds import plan_report
from skysail.cli.clouds.plan_facts import ClusterFacts
from skysail.cli.clouds.plan_report import WorkloadPlan
from skysail.cli.clouds.workload_kinds import Workload
from skysail.cloud.offers import Offer
from skysail.kinds.offload.objects import Pod, refers_to_secrets
from skysail.kinds.offload.plan.cost_cap import pods_share_cap
from skysail.kinds.offload.plan.placement import Place, Rule

_MAX_CHECKED_PODS = 1000
_HOUR = 3600.0


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that would be launched at a provider, with the offers that fit it, best first.

    `max_lifetime`: seconds that the cloud allows. `gang`: the gang of the pod, which is launched as a whole.
    """

    workload: Workload
    request: OffloadRequest
    place: Place
    offers: tuple[Offer, ...]
    max_lifetime: float
    gang: GangRef | None = None

    @property
    def members(self) -> int:
        """Return the number of pods that are launched together."""
        return self.gang.size if self.gang else 1

    @property
    def instances(self) -> int:
        return self.gang.size if self.gang else self.request.replicas

    @property
    def shares_cap(self) -> bool:
        return pods_share_cap(self.workload.owners)

    @property
    def gpu_count(self) -> int:
        return self.request.gpus.count if self.request.gpus else 0

    @property
    def usd_per_hour(self) -> float:
        """Return the price of one pod."""
        replicas = 1 if self.gang else self.request.replicas
        return self.offers[0].total(self.gpu_count) * replicas * self.workload.containers


class PermissionCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Check of launches in one namespace. `account` is None if it cannot be read."""

    known: ClusterFacts
    account: SpendAccountStatus | None
    now: datetime

    def check(self, base: WorkloadPlan, launch: Launch) -> tuple[WorkloadPlan, SpendAccountStatus | None]:
        """Return the plan with its verdict, and the account with the reservations of the pods that can start."""
        account = self.account
        decision = self._policy(launch, account, number=0)
        lifetime, price = _lifetime(launch, decision), launch.usd_per_hour
        base = replace(
            base,
            lifetime_seconds=lifetime,
            worst_case_usd=_within_cap(price * lifetime / _HOUR * launch.workload.pods, launch),
            notes=(*base.notes, *_cost_notes(launch, lifetime)),
        )
        if not decision.allowed:
            return plan_report.refused(base, decision.reason, decision.message), account
        if account is None:
            message = f"SpendAccount {base.namespace} cannot be read."
            return plan_report.undecided(base, Reason.LIMITS_UNKNOWN, message), None
        return self._reserve(base, launch, account)

    def _reserve(
        self, base: WorkloadPlan, launch: Launch, account: SpendAccountStatus
    ) -> tuple[WorkloadPlan, SpendAccountStatus]:
        """Reserve the worst case of each pod that runs at the same time. Of very many pods only the first are tried.

        A gang has one reservation. Each of its roles is a workload of its own, which has its share of the cost.
        """
        members = launch.members
        wanted = min(math.ceil(launch.workload.parallel / members), _MAX_CHECKED_PODS)
        lifetime, usd, limited_by = base.lifetime_seconds or 0.0, 0.0, ""
        for number in range(wanted):
            decision = self._policy(launch, account, number=number)
            if not decision.allowed:
                return _partly(base, number * members, decision.reason, decision.message), account
            made = budget.reserve(account, _request(base, launch, number, decision), decision.budgets, self.now)
            if isinstance(made, NotReserved):
                return _partly(base, number * members, Reason.BUDGET_EXHAUSTED, made.message), account
            account, lifetime, limited_by = made.status, min(lifetime, made.lifetime), limited_by or made.limited_by
            usd += _worst_case(made, launch.usd_per_hour * members)
        note = budget.lifetime_limited(lifetime, limited_by)
        permitted = replace(
            base,
            lifetime_seconds=lifetime,
            worst_case_usd=_within_cap(usd / max(wanted * members, 1) * launch.workload.pods, launch),
            notes=(*base.notes, note) if limited_by else base.notes,
        )
        return permitted, account

    def _policy(self, launch: Launch, account: SpendAccountStatus | None, *, number: int) -> PolicyDecision:
        others = budget.instances(account, without=_claim(launch, number)) if account else 0
        pod, offer = launch.workload.pod, launch.offers[0]
        namespace = pod.metadata.namespace
        return policy_check.check(
            self.known.policies or (),
            PolicyQuery(
                namespace=namespace,
                namespace_labels=self.known.namespace_labels.get(namespace) or {},
                provider=launch.place.provider,
                gpu_type=offer.gpu_type,
                gpu_aliases=offer.aliases,
                image=_image(pod, launch.request),
                region=offer.region,
                usd_per_gpu_hour=offer.usd_per_hour,
                uses_secrets=refers_to_secrets(pod),
                instances=others,
                size=launch.instances,
                is_automatic=launch.place.rule is Rule.AUTOMATIC,
                account_objects=account_objects.named(launch.place.provider, launch.request.options),
                is_final=True,
            ),
        )


def _partly(base: WorkloadPlan, number: int, reason: str, message: str) -> WorkloadPlan:
    started = f"{number} of {base.parallel} pods can start now. " if number else ""
    return plan_report.refused(base, reason, f"{started}{message}")


def _lifetime(launch: Launch, decision: PolicyDecision) -> float:
    """Return the lifetime that a claim would request, in seconds."""
    own = launch.workload.pod.spec.get("activeDeadlineSeconds")
    limits = (launch.request.max_lifetime, float(own) if own else None, decision.max_lifetime, launch.max_lifetime)
    return min(limit for limit in limits if limit is not None)


def _request(base: WorkloadPlan, launch: Launch, number: int, decision: PolicyDecision) -> ReserveRequest:
    object_ = f"{base.kind}/{base.name}"
    claim = _claim(launch, number)
    return ReserveRequest(
        claim=claim,
        usd_per_hour=launch.usd_per_hour * launch.members,
        lifetime=base.lifetime_seconds or 0.0,
        object=object_ if launch.shares_cap else claim,
        max_cost_usd=launch.request.max_cost_usd,
        instances=launch.instances,
        finish=decision.finish,
    )


def _claim(launch: Launch, number: int) -> str:
    """Return a name for the claim of a launch. The roles of a gang have the same one."""
    workload, gang = launch.workload, launch.gang
    launched = f"{gang.kind}/{gang.name}" if gang else workload.pod.metadata.name
    return f"{workload.kind}/{workload.name}/{launched}/{number}"


def _worst_case(made: Reserved, usd_per_hour: float) -> float:
    return min(made.reservation.usd, round(usd_per_hour * made.lifetime / _HOUR, 6))


def _within_cap(usd: float, launch: Launch) -> float:
    """Return the cost of all pods, at most their caps."""
    cap = launch.request.max_cost_usd
    if cap is not None and not launch.shares_cap:
        cap *= launch.workload.pods
    return round(usd if cap is None else min(usd, cap), 6)


def _image(pod: Pod, request: OffloadRequest) -> str:
    override = request.overrides.image if request.overrides else None
    return override or str(next((container.get("image") for container in pod.containers), "") or "")


def _cost_notes(launch: Launch, lifetime: float) -> list[str]:
    workload, usd = launch.workload, launch.usd_per_hour * lifetime / _HOUR
    notes = []
    cap = launch.request.max_cost_usd
    if cap is not None and launch.shares_cap:
        notes.append(f"All launches together cost at most {cap:g} USD ({Annotation.MAX_COST}).")
    elif cap is not None:
        own = f"The launches of each pod cost at most {cap:g} USD ({Annotation.MAX_COST})."
        notes.append(f"{own} A pod that replaces another one has the whole cap again.")
    elif workload.is_endless:
        notes.append(f"Each pod is replaced when it ends, and costs up to {usd:.2f} USD more each time.")
    elif workload.retries:
        notes.append(f"Each of up to {workload.retries} retries costs up to {usd:.2f} USD more.")
    if workload.kind == "CronJob":
        notes.append("The costs are those of one run.")
    return notes
