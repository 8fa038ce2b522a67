"""Gangs at a cloud: the ranks that have come to a node, until all of them are there and one claim is written.

Kept in memory only: after a restart the node starts each rank again, and a rank whose claim exists finds it there.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from skysail.base.names import Reason
from skysail.claims.requirements.cloud_requirements import CloudRequirements
from skysail.claims.types import MemberPod
from skysail.cloud.account import Member
from skysail.cloud.errors import Rejected
from skysail.cloud.provider import Pending, RunId

_MAX_NAMED = 8


class GangRef(msgspec.Struct, frozen=True, kw_only=True):
    """The gang of a pod, and the pod's rank in it. The owner is the object whose pods can only work together.

    `ends_together`: the owner restarts ranks one by one, so that a rank must not succeed before the others.
    """

    api_version: str
    kind: str
    name: str
    uid: str
    size: int
    rank: int
    ends_together: bool = False


class GangMember(msgspec.Struct, frozen=True, kw_only=True):
    """One rank that has come to the node."""

    run: RunId
    member: Member
    requirements: CloudRequirements

    @property
    def pod(self) -> MemberPod:
        return MemberPod(
            name=self.member.pod.name,
            uid=self.run.pod,
            container=self.run.container,
            run=self.run.number,
        )


class Gang:
    """The ranks of one gang. `problem` is why its claim could not be written."""

    def __init__(self, ref: GangRef) -> None:
        self.ref = ref
        self.ranks: dict[int, GangMember] = {}
        self.problem: Rejected | None = None

    @property
    def members(self) -> tuple[GangMember, ...]:
        """Return all ranks in their order. Returns nothing while one is missing."""
        if not all(rank in self.ranks for rank in range(self.ref.size)):
            return ()
        return tuple(self.ranks[rank] for rank in range(self.ref.size))

    @property
    def state(self) -> Pending:
        if self.problem is not None:
            return Pending(self.problem.reason, str(self.problem))
        missing = [str(rank) for rank in range(self.ref.size) if rank not in self.ranks]
        more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
        message = (
            f"{len(self.ranks)} of {self.ref.size} pods of {self.ref.kind} {self.ref.name} are on this node. The gang "
            f"starts when all are there; missing ranks: {', '.join(missing[:_MAX_NAMED])}{more}."
        )
        return Pending(Reason.WAITING_FOR_GANG, message)


class Gangs:
    """Gangs by namespace and UID of their owner: a UID counts only in the namespace of its pods."""

    def __init__(self) -> None:
        self._gangs: dict[tuple[str, str], Gang] = {}
        self._by_pod: dict[str, Gang] = {}

    def join(self, ref: GangRef, member: GangMember) -> Gang:
        key = member.member.pod.namespace, ref.uid
        gang = self._gangs.setdefault(key, Gang(ref))
        previous = gang.ranks.get(ref.rank)
        if previous is not None:
            self._by_pod.pop(previous.run.pod, None)
        gang.ref = ref
        gang.ranks = {rank: known for rank, known in gang.ranks.items() if rank < ref.size}
        gang.ranks[ref.rank] = member
        gang.problem = None
        self._by_pod[member.run.pod] = gang
        return gang

    def forget(self, run: RunId) -> None:
        """Forget a run that needs no launch spec any more."""
        if self.of(run) is not None:
            self.leave(run.pod)

    def leave(self, pod: str) -> None:
        gang = self._by_pod.pop(pod, None)
        if gang is None:
            return
        gang.ranks = {rank: known for rank, known in gang.ranks.items() if known.run.pod != pod}
        gang.problem = None
        if not gang.ranks:
            self._gangs = {key: known for key, known in self._gangs.items() if known is not gang}

    def of(self, run: RunId) -> Gang | None:
        """Return the gang in which this run waits."""
        gang = self._by_pod.get(run.pod)
        return gang if gang and any(member.run == run for member in gang.ranks.values()) else None

    def waiting(self) -> Iterator[tuple[RunId, Gang]]:
        for gang in self._gangs.values():
            for member in gang.ranks.values():
                yield member.run, gang


def shared_requirements(members: tuple[GangMember, ...]) -> CloudRequirements:
    """Return the requirements of all ranks together. Raises Rejected if one launch cannot satisfy all of them."""
    first = members[0].requirements
    for rank, member in enumerate(members):
        other = member.requirements
        if (other.gpus, other.gpu_memory, other.image) != (first.gpus, first.gpu_memory, first.image):
            raise Rejected(
                Reason.GANG_MEMBERS_DIFFER,
                f"Rank {rank} asks for another image or other GPUs than rank 0, but a cloud launches a gang of equal "
                "machines: use one image and one GPU type and count for all ranks.",
            )
        if _place(other) != _place(first):
            raise Rejected(
                Reason.GANG_MEMBERS_DIFFER,
                f"Rank {rank} asks for another machine size, region, tier, CUDA version or setting of the cloud than "
                "rank 0, but a cloud launches a gang of equal machines: use the same annotations, CPU and memory for "
                "all ranks.",
            )
    every = [member.requirements for member in members]
    seconds = [each.seconds for each in every if each.seconds is not None]
    caps = [each.max_cost_usd for each in every if each.max_cost_usd is not None]
    prices = [each.max_usd_per_hour for each in every if each.max_usd_per_hour is not None]
    return msgspec.structs.replace(
        first,
        seconds=min(seconds, default=None),
        grace=max(each.grace for each in every),
        work="",
        replicas=1,
        max_usd_per_hour=min(prices, default=None),
        max_cost_usd=min(caps, default=None),
        max_cost_uid=next((each.max_cost_uid for each in every if each.max_cost_uid), ""),
        uses_secrets=any(each.uses_secrets for each in every),
        is_automatic=any(each.is_automatic for each in every),
        may_leave=False,
    )


def _place(requirements: CloudRequirements) -> tuple[object, ...]:
    """Return the requirements that choose the machine of a rank, apart from its GPUs and its price."""
    place = requirements.regions, requirements.cloud_types, requirements.cuda_versions
    return (*place, requirements.size, requirements.options, requirements.is_cheapest)
