"""Gangs at a cloud: one claim for all ranks, written when all of them have come to the node."""

import msgspec
import pytest

from skysail.base.names import Condition as Conditions
from skysail.base.names import EventReason, Reason
from skysail.claims.gangs import GangMember, GangRef, shared_requirements
from skysail.claims.plan.planner import plan
from skysail.claims.requirements.cloud_requirements import CloudRequirements, OfferLimits
from skysail.claims.run_state import state_of
from skysail.claims.snapshot import Observed, OwnerState
from skysail.claims.tracking.owners import OwnerLookup
from skysail.claims.types import Exit, MemberPod, OwnerRef, RankStatus
from skysail.cloud.account import GpuRequest, Member, RankState
from skysail.cloud.errors import Rejected
from skysail.cloud.provider import Container, Ended, Features, Pending, Pod, ResourceLimits, RunId, Running
from skysail.kube.api.fields import Condition
from skysail.kube.api.objects import Key, Meta, Object
from skysail.kube.client.client import Client
from skysail.kube.client.transport import Reply
from tests.unit.claims.samples import ago, claim, exited, instance, snapshot, spec
from tests.unit.claims.test_provider import Quay, run_virtual
from tests.unit.claims.test_reconciler import _NoPods

GANG = "9c0e5a52-0000-4a5e-9a0a-2f5f0a5a7d11"
RUNS = tuple(RunId(f"uid-{rank}", "main", 0) for rank in range(2))
MEMBERS = tuple(MemberPod(name=f"p-{rank}", uid=f"uid-{rank}", container="main") for rank in range(2))
OWNER = OwnerRef(kind="Job", name="j", uid=GANG, namespace="n", api_version="batch/v1")
SPEC = spec(owner=OWNER, members=2, member_pods=MEMBERS)
CODES = (RankStatus(finish_time=ago(5), exit=Exit(code=0)), RankStatus(finish_time=ago(4), exit=Exit(code=37)))


def ref(rank: int, size: int = 2) -> GangRef:
    return GangRef(api_version="batch/v1", kind="Job", name="j", uid=GANG, size=size, rank=rank)


class Gang(Quay):
    """A node to which ranks come one after the other."""

    def __init__(self, world=None) -> None:
        super().__init__(world)
        self.cloud.features = Features(gang=True)
        self.images = {}
        self.gpus = {}
        self.provider.requirements = lambda uid: CloudRequirements(gpus=self.gpus.get(uid), max_usd_per_hour=None)

        async def gang(uid: str) -> GangRef:
            return ref(int(uid[-1]))

        self.provider.gang = gang

    async def come(self, rank: int, number: int = 0, uid: str = "") -> RunId:
        run = RunId(uid or f"uid-{rank}", "main", number)
        await self.provider.create_sandbox(Pod(uid=run.pod, namespace="n", name=f"p-{rank}", hostname=f"h-{rank}"))
        await self.provider.start(run, Container(name="main", image=self.images.get(rank, "busybox")))
        return run


def test_the_claim_is_written_when_all_ranks_have_come():
    async def test() -> None:
        gang = Gang()
        second = await gang.come(1)
        assert gang.stored == {}
        state = await gang.provider.state(second)
        assert isinstance(state, Pending)
        assert (state.reason, "1 of 2" in state.message, "ranks: 0" in state.message) == ("WaitingForGang", True, True)
        assert set((await gang.provider.list()).runs) == {second}
        await gang.come(0)
        assert list(gang.stored) == [f"{GANG}-0"]
        made = gang.claims.get(Key("", f"{GANG}-0"))
        assert (made.spec.members, made.spec.instances, made.spec.member_pods) == (2, 2, MEMBERS)
        assert (made.spec.owner.kind, made.spec.owner.api_version) == ("Job", "batch/v1")
        launch_spec = gang.launch_specs.get(f"{GANG}-0")
        assert [member.pod.uid for member in launch_spec.members] == ["uid-0", "uid-1"]
        assert isinstance(await gang.provider.state(second), Pending)

    run_virtual(test)


def test_prices_and_caps_are_those_of_all_ranks():
    async def test() -> None:
        gang = Gang()
        gang.provider.requirements = lambda _: CloudRequirements(gpus=GpuRequest("H100", 2), max_usd_per_hour=50.0)
        await gang.come(0)
        await gang.come(1)
        made = gang.claims.get(Key("", f"{GANG}-0"))
        single = Quay()
        single.provider.requirements = gang.provider.requirements
        alone = await single.start()
        pairs = zip(made.spec.candidates, alone.spec.candidates, strict=True)
        assert all(two.usd_per_hour == pytest.approx(2 * one.usd_per_hour) for two, one in pairs)
        assert made.spec.max_usd_per_hour == 100.0

    run_virtual(test)


@pytest.mark.parametrize(
    ("asked", "policy", "notes"),
    [
        ((3600.0, 3600.0), None, []),
        ((3600.0, 7200.0), None, [(1, "asks for 7200: rank 0 of its gang asks for no more.")]),
        ((7200.0, 3600.0), 5000.0, [(0, "asks for 7200: rank 1 of its gang asks for no more.")]),
        ((3600.0, None), None, []),
        ((None, 3600.0), 60.0, [(1, "an OffloadPolicy (spec.maxDurationSeconds) allows no more.")]),
        ((3600.0, 7200.0), 60.0, [(rank, "an OffloadPolicy (spec.maxDurationSeconds)") for rank in range(2)]),
        ((90000.0, 99000.0), None, [(rank, "cloud allows no more.") for rank in range(2)]),
    ],
)
def test_rank_that_asks_for_more_time_than_it_gets_learns_who_limits_it(asked, policy, notes):
    async def test() -> None:
        gang, events = Gang(), []
        gang.provider.requirements = lambda uid: CloudRequirements(seconds=asked[int(uid[-1])])
        gang.provider.specs.limits = lambda _: OfferLimits(max_lifetime=policy)
        gang.provider.record = lambda run, reason, text: events.append((run, reason, text))
        await gang.come(0)
        await gang.come(1)
        assert [(run, reason) for run, reason, _ in events] == [
            (RUNS[rank], EventReason.LIFETIME_LIMITED) for rank, _ in notes
        ]
        assert all(note in text for (_, note), (_, _, text) in zip(notes, events, strict=True))

    run_virtual(test)


def test_after_a_restart_the_ranks_find_their_claim_and_provide_the_launch_spec_again():
    async def test() -> None:
        first = Gang()
        await first.come(0)
        await first.come(1)
        again = Gang(first.world)
        again.claims.put(first.claims.get(Key("", f"{GANG}-0")))
        state = await again.provider.state(RUNS[0])
        assert isinstance(state, Pending)
        assert state.needs_restart_spec
        await again.come(0)
        assert again.launch_specs.get(f"{GANG}-0") is None
        await again.come(1)
        assert again.launch_specs.get(f"{GANG}-0") is not None
        assert again.server.writes == []

    run_virtual(test)


def test_a_new_set_of_pods_is_the_next_launch():
    async def test() -> None:
        gang = Gang()
        await gang.come(0)
        await gang.come(1)
        gang.show(gang.claims.get(Key("", f"{GANG}-0")), state="Terminated", end_time=ago(1), instance_id="i-1")
        await gang.come(1, uid="new-1")
        assert len(gang.stored) == 1
        await gang.come(0, uid="new-0")
        assert set(gang.stored) == {f"{GANG}-0", f"{GANG}-1"}

    run_virtual(test)


def test_a_rank_that_leaves_before_the_launch_is_waited_for_again():
    async def test() -> None:
        gang = Gang()
        first = await gang.come(0)
        await gang.provider.remove_sandbox(first.pod)
        assert await gang.provider.state(first) is None
        await gang.come(1)
        assert gang.stored == {}

    run_virtual(test)


def rank_member(rank: int, **requirements) -> GangMember:
    pod = Pod(uid=f"uid-{rank}", namespace="n", name=f"p-{rank}", hostname=f"h-{rank}")
    member = Member(pod, Container(name="main", image="busybox"))
    return GangMember(run=RUNS[rank], member=member, requirements=CloudRequirements(**requirements))


@pytest.mark.parametrize(
    "difference",
    [
        {"size": ResourceLimits(cpu=4.0)},
        {"regions": ("EU-RO-1",)},
        {"cloud_types": ("COMMUNITY",)},
        {"cuda_versions": ("12.4",)},
        {"options": (("modal-volumes", "data:/data"),)},
    ],
)
def test_ranks_on_different_machines_or_at_different_places_are_rejected(difference):
    with pytest.raises(Rejected, match="Rank 1 asks for another machine size, region") as rejected:
        shared_requirements((rank_member(0), rank_member(1, **difference)))
    assert rejected.value.reason == Reason.GANG_MEMBERS_DIFFER


def test_lowest_caps_of_all_ranks_hold_for_the_gang():
    first = rank_member(0, max_usd_per_hour=3.0)
    second = rank_member(1, max_usd_per_hour=2.0, max_cost_usd=9.0, max_cost_uid="tj")
    shared = shared_requirements((first, second))
    assert (shared.max_usd_per_hour, shared.max_cost_usd, shared.max_cost_uid) == (2.0, 9.0, "tj")


@pytest.mark.parametrize("difference", ["image", "gpus"])
def test_ranks_that_differ_are_rejected_for_all(difference):
    async def test() -> None:
        gang = Gang()
        first = await gang.come(0)
        if difference == "image":
            gang.images[1] = "other"
        else:
            gang.gpus["uid-1"] = GpuRequest("H100", 1)
        with pytest.raises(Rejected, match="Rank 1") as rejected:
            await gang.come(1)
        assert rejected.value.reason == Reason.GANG_MEMBERS_DIFFER
        state = await gang.provider.state(first)
        assert isinstance(state, Pending)
        assert state.reason == Reason.GANG_MEMBERS_DIFFER
        assert gang.stored == {}

    run_virtual(test)


def test_a_cloud_without_private_network_rejects_a_rank():
    async def test() -> None:
        gang = Gang()
        gang.cloud.features = Features()
        with pytest.raises(Rejected, match="private network") as rejected:
            await gang.come(0)
        assert rejected.value.reason == Reason.GANG_NOT_OFFLOADED

    run_virtual(test)


def test_stopping_one_rank_deletes_the_claim_of_all():
    async def test() -> None:
        gang = Gang()
        run = await gang.come(0)
        await gang.come(1)
        await gang.provider.stop(run, 1.0)
        assert gang.claims.get(Key("", f"{GANG}-0")).metadata.is_deleting

    run_virtual(test)


@pytest.mark.parametrize("rank", range(2))
def test_a_visitor_goes_to_the_rank_of_its_pod(rank):
    async def test() -> None:
        gang = Gang()
        visits = []

        async def exec_(instance, command, *, stdin, tty, rank=0):
            visits.append(("exec", instance, rank))

        async def attach(instance, *, stdin, rank=0):
            visits.append(("attach", instance, rank))

        async def dial(instance, port, *, rank=0):
            visits.append(("dial", instance, rank))

        gang.cloud.exec, gang.cloud.attach, gang.cloud.dial = exec_, attach, dial
        gang.claims.put(claim("Running", of=SPEC, instance_id="i-1"))
        await gang.provider.exec(RUNS[rank], ("ls",), stdin=False, tty=False)
        await gang.provider.attach(RUNS[rank], stdin=True)
        await gang.provider.connect(RUNS[rank].pod, 80)
        assert visits == [("exec", "i-1", rank), ("attach", "i-1", rank), ("dial", "i-1", rank)]

    run_virtual(test)


def test_ranks_are_mirrored_and_kept():
    ranks = (RankState(state="running"), RankState(state="ended", exit=exited(37)))
    running = claim("Running", of=SPEC, instance_id="i-1", ready_time=ago(30))
    made = plan(snapshot(running, observation=Observed((instance("i-1", ranks=ranks),))))
    assert [rank.exit and rank.exit.code for rank in made.status.ranks] == [None, 37]
    forgotten = msgspec.structs.replace(running, status=made.status)
    later = plan(snapshot(forgotten, observation=Observed((instance("i-1"),))))
    assert later.status is None or later.status.ranks == made.status.ranks


@pytest.mark.parametrize(
    ("ends_together", "state", "expected"),
    [
        (False, "Running", [(0, ""), (37, "")]),
        (True, "Running", [None, None]),
        (False, "Terminated", [(0, ""), (37, "")]),
        (True, "Terminated", [(143, "GangFailed"), (37, "")]),
    ],
)
def test_a_rank_ends_alone_or_with_its_gang(ends_together, state, expected):
    exit_ = Exit(code=37, message="Rank 1 ended with exit code 37.")
    of = msgspec.structs.replace(SPEC, ends_together=ends_together)
    told = claim(
        state,
        of=of,
        instance_id="i-1",
        ready_time=ago(30),
        exit=exit_,
        ranks=CODES,
        finish_time=ago(4),
        end_time=ago(1),
    )
    states = [state_of(told, rank) for rank in range(2)]
    assert [(s.code, s.reason) if isinstance(s, Ended) else None for s in states] == expected
    if state == "Terminated" and ends_together:
        assert "Rank 1" in states[0].message


def test_a_rank_without_an_exit_ends_with_the_instance():
    told = claim("Terminated", of=SPEC, instance_id="i-1", ranks=(RankStatus(), CODES[1]), end_time=ago(1))
    state = state_of(told, 0)
    assert isinstance(state, Ended)
    assert state.code == 137
    assert isinstance(state_of(claim("Running", of=SPEC, instance_id="i-1", ready_time=ago(3)), 1), Running)


@pytest.mark.parametrize(
    ("cached", "ranks", "expected"),
    [
        ({"uid-0", "uid-1"}, (), OwnerState.PRESENT),
        ({"uid-0"}, (), OwnerState.ABSENT),
        ({"uid-0"}, CODES, OwnerState.ABSENT),
        ({"uid-0"}, (RankStatus(), CODES[1]), OwnerState.PRESENT),
    ],
)
def test_a_gang_needs_the_pods_of_ranks_that_have_not_exited(cached, ranks, expected):
    pods = {uid: Object(Meta(name=uid, namespace="n", uid=uid)) for uid in cached}
    owners = OwnerLookup(Client(_NoPods()), pods.get)

    async def test() -> None:
        told = claim("Running", of=SPEC, instance_id="i-1", ranks=ranks)
        assert await owners.find(told) == expected
        assert owners.is_kept(told) == (cached == {"uid-0", "uid-1"})

    run_virtual(test)


@pytest.mark.parametrize(
    ("is_deleting", "cached", "expected"),
    [(True, {}, OwnerState.ABSENT), (True, {"uid-1"}, OwnerState.PRESENT), (False, {}, OwnerState.PRESENT)],
)
def test_a_deleted_claim_is_released_with_its_pods_and_any_other_with_its_gang(is_deleting, cached, expected):
    pods = {uid: Object(Meta(name=uid, namespace="n", uid=uid)) for uid in cached}
    told = claim("Terminated", of=SPEC, end_time=ago(1))
    if is_deleting:
        told = msgspec.structs.replace(told, metadata=msgspec.structs.replace(told.metadata, deletion_timestamp=ago(1)))

    async def test() -> None:
        assert await OwnerLookup(Client(_OnlyTheJob()), pods.get).find(told) == expected

    run_virtual(test)


class _OnlyTheJob:
    async def send(self, request):
        if "/jobs/" not in request.path:
            return Reply(status=404, body=b'{"kind": "Status", "reason": "NotFound", "code": 404}')
        return Reply(status=200, body=f'{{"metadata": {{"name": "j", "namespace": "n", "uid": "{GANG}"}}}}'.encode())


@pytest.mark.parametrize(("seen", "expected"), [(set(), 0), ({0, 1}, 2)])
def test_a_launch_number_that_the_cloud_still_lists_is_not_used_again(seen, expected):
    async def test() -> None:
        gang = Gang()
        gang.provider.has_seen = {f"{GANG}-{number}" for number in seen}.__contains__
        await gang.come(0)
        await gang.come(1)
        assert list(gang.stored) == [f"{GANG}-{expected}"]

    run_virtual(test)


def test_nothing_is_launched_before_the_first_listing():
    async def test() -> None:
        gang = Gang()
        gang.provider.has_seen = lambda _: None
        await gang.come(0)
        with pytest.raises(Rejected, match="not listed"):
            await gang.come(1)
        assert gang.stored == {}

    run_virtual(test)


@pytest.mark.parametrize(
    ("reason", "exit_", "deadline", "expected"),
    [
        ("DeadlineExceeded", Exit(code=143, reason="Error"), ago(5), "DeadlineExceeded"),
        ("DeadlineExceeded", Exit(code=137, reason="Error"), ago(5), "DeadlineExceeded"),
        ("DeadlineExceeded", Exit(code=1, reason="Error"), ago(5), "DeadlineExceeded"),
        ("DeadlineExceeded", Exit(code=1, reason="Error"), ago(1), "Error"),
        ("DeadlineExceeded", Exit(code=137, reason="OOMKilled"), ago(5), "OOMKilled"),
        ("DeadlineExceeded", Exit(code=0, reason="Completed"), ago(5), "Completed"),
        ("BudgetExhausted", Exit(code=143, reason="Error"), None, "BudgetExhausted"),
        ("Deleted", Exit(code=143, reason="Error"), None, "Error"),
    ],
)
@pytest.mark.parametrize("of", [spec(), SPEC], ids=["pod", "gang"])
def test_a_program_that_a_limit_ended_names_the_limit(of, reason, exit_, deadline, expected):
    told = claim(
        "Terminated",
        of=of,
        instance_id="i-1",
        ready_time=ago(30),
        deadline_time=deadline,
        finish_time=ago(4),
        exit=exit_,
        ranks=(RankStatus(finish_time=ago(4), exit=exit_),) * len(of.member_pods),
        conditions=(Condition(Conditions.TERMINATED, "True", ago(1), reason, "The limit was reached."),),
    )
    state = state_of(told)
    assert isinstance(state, Ended)
    assert (state.code, state.reason) == (exit_.code, expected)
    assert (state.message == "The limit was reached.") == (expected == reason)
