"""Gathers the facts for a placement, for the webhook and for the controller of pods without a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Protocol

from msgspec.structs import replace

from skysail.base.names import Annotation
from skysail.claims.gangs import GangRef
from skysail.claims.limits.offload_policy import OffloadPolicy
from skysail.claims.requirements.annotation_reader import AnnotationReader
from skysail.claims.requirements.cost_cap import CostCap
from skysail.cloud.errors import OutcomeUnknown
from skysail.cloud.offers import OfferList
from skysail.cloud.provider import Features
from skysail.kinds.offload.caches import Caches
from skysail.kinds.offload.config import OffloadConfig
from skysail.kinds.offload.objects import Pod
from skysail.kinds.offload.owners import OwnerLookup
from skysail.kinds.offload.pending_facts import PendingFacts
from skysail.kinds.offload.plan import facts, gangs
from skysail.kinds.offload.plan.cost_cap import cost_cap
from skysail.kinds.offload.plan.facts import Cloud, Observation
from skysail.kinds.offload.plan.gangs import Owner
from skysail.kinds.offload.plan.placement import JobFacts, PlacementFacts, Rule, Stage, rule_of
from skysail.kube.api.objects import IndexKey, Key, Object
from skysail.kube.api.resources import NAMESPACE
from skysail.kube.client.client import Client
from skysail.kube.client.errors import KubeError


class Clouds(Protocol):
    """The clouds of this process."""

    @property
    def accounts(self) -> frozenset[str]:
        """Return the providers at which there is an account."""
        ...

    async def offers(self, provider: str) -> OfferList | None:
        """Return the offers of a provider, or None if they are unknown."""
        ...

    def outages(self) -> Mapping[str, str]:
        """Return the outage of each provider as a sentence, empty if the provider answers."""
        ...

    def exhausted(self, pod: Pod) -> frozenset[str]:
        """Return the providers that had no capacity for another pod of the same Job lately."""
        ...

    def features(self, provider: str) -> Features:
        """Return the features of the provider."""
        ...

    def unsupported(self, pod: Pod, provider: str) -> tuple[str, ...]:
        """Return fields of the pod that the provider's node does not support, each as a sentence."""
        ...


class PlacementObserver:
    """Reads the facts for one pod. Never writes."""

    def __init__(
        self,
        client: Client,
        caches: Caches,
        config: OffloadConfig,
        clouds: Clouds,
        *,
        now: Callable[[], datetime],
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._caches = caches
        self._config = config
        self._clouds = clouds
        self._now = now
        self._pending = PendingFacts(client, config.nodes, clock)
        self.owners = OwnerLookup(client, clock)

    async def observe(self, pod: Pod, stage: Stage) -> PlacementFacts:
        """Return the facts for the placement of the pod. Facts that cannot matter for the pod are not read."""
        seen = replace(self._unread(pod, stage), owners=await self.owners.find(pod))
        about_pod = facts.pod_facts(seen)
        rule = rule_of(about_pod)
        if rule is None or about_pod.is_settled or not about_pod.is_owner_known:
            return about_pod
        seen = replace(
            seen,
            clouds=tuple([await self._cloud(pod, cloud) for cloud in seen.clouds]),
            policies=self._policies(),
            namespace_labels=await self._namespace_labels(pod.metadata.namespace),
            autoscaler=await self._autoscaler(pod, rule),
            job=await self._job_with_pods(pod, seen.job, rule),
            siblings=await self._siblings(pod, about_pod.gang_ref),
        )
        return facts.placement_facts(seen)

    def without_reads(self, pod: Pod, stage: Stage) -> PlacementFacts:
        """Return the facts that the pod itself tells. Its owners are unknown, so the pod is not placed by them."""
        return facts.pod_facts(self._unread(pod, stage))

    async def gang(self, pod: Pod) -> GangRef | None:
        """Return the gang of a pod that is at a cloud. Raises `OutcomeUnknown` if its owners cannot be read."""
        owners = await self._known_owners(pod)
        is_excluded = any(owner.kind in self._config.excluded_kinds for owner in owners)
        return None if is_excluded else gangs.gang_ref(pod, owners)

    async def cost_cap(self, pod: Pod) -> CostCap:
        """Return the cap of the owners of a pod. Raises `OutcomeUnknown` if they cannot be read.

        They are read once more for each launch: the pod may have come to its node without placement, or before an
        owner got its cap.
        """
        return cost_cap(await self._known_owners(pod))

    async def _known_owners(self, pod: Pod) -> tuple[Owner, ...]:
        if pod.metadata.controller is None:
            return ()
        owners = await self.owners.find(pod)
        if owners is None:
            raise OutcomeUnknown("The owners of the pod could not be read; retried.")
        return owners

    async def _siblings(self, pod: Pod, ref: GangRef | None) -> tuple[Pod, ...] | None:
        return () if ref is None else await self._pending.siblings(pod, gangs.sibling_selector(ref))

    def _unread(self, pod: Pod, stage: Stage) -> Observation:
        return Observation(
            pod=pod,
            stage=stage,
            now=self._now(),
            config=self._config.placement,
            owners=None,
            excluded_kinds=self._config.excluded_kinds,
            clouds=tuple(Cloud(node=name, settings=row) for name, row in self._config.nodes.items()),
            job=self._job(pod),
        )

    async def _cloud(self, pod: Pod, cloud: Cloud) -> Cloud:
        provider = cloud.settings.provider
        if provider not in self._clouds.accounts:
            return replace(cloud, has_account=False)
        return replace(
            cloud,
            object=self._caches.nodes.get(Key("", cloud.node)),
            offers=await self._clouds.offers(provider),
            outage=self._clouds.outages().get(provider, ""),
            is_exhausted=provider in self._clouds.exhausted(pod),
            unsupported=self._clouds.unsupported(pod, provider),
            has_private_network=self._clouds.features(provider).gang,
            gang_limits=self._clouds.features(provider).gang_limits,
        )

    def _policies(self) -> tuple[OffloadPolicy, ...] | None:
        """Return all policies. An undecodable one may forbid anything, so then none of them is known."""
        cache = self._caches.policies
        return tuple(cache.all()) if cache.synced.is_set() and not cache.undecodable else None

    async def _namespace_labels(self, name: str) -> Mapping[str, str] | None:
        """Return the labels of the namespace, read live if the cache does not have it yet."""
        found = self._caches.namespaces.get(Key("", name))
        if found is None:
            try:
                found = await self._client.get(NAMESPACE, "", name, Object)
            except KubeError:
                return None
        return found.metadata.labels or {}

    async def _autoscaler(self, pod: Pod, rule: Rule) -> facts.AutoscalerAnswer | None:
        """Return the answer of autoscalers. A pod that asks for a cloud does not wait for them."""
        if rule is Rule.ASKED or pod.unschedulable_since is None:
            return facts.AutoscalerAnswer()
        return await self._pending.autoscaler(pod)

    def _job(self, pod: Pod) -> JobFacts | None:
        owner = pod.metadata.controller
        return JobFacts() if owner is not None and owner.kind == "Job" else None

    async def _job_with_pods(self, pod: Pod, job: JobFacts | None, rule: Rule) -> JobFacts | None:
        owner = pod.metadata.controller
        if job is None or owner is None or rule is not Rule.MANAGED or pod.unschedulable_since is None:
            return job
        runs = await self._pending.runs_in_cluster(pod.metadata.namespace, owner.uid)
        return JobFacts(waiting_jobs=self._waiting_jobs(), runs_in_cluster=runs)

    def _waiting_jobs(self) -> int:
        """Return the number of managed Jobs with a pod that the scheduler refused."""
        waiting = {
            IndexKey(pod.metadata.namespace, owner.uid)
            for pod in self._caches.pods.all()
            if (owner := pod.metadata.controller) is not None and pod.unschedulable_since is not None
        }
        jobs = [job for identity in waiting for job in self._caches.jobs.by("uid", identity)]
        return sum(
            AnnotationReader(job.annotations, job.labels).is_true(Annotation.RUNPOD_MANAGED, or_label=True)
            for job in jobs
        )
