"""Money of a claim in its plan: denied, reserved, raised, released, settled."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skysail.base.names import Annotation, Condition, EventReason, Reason
from skysail.claims.limits.offload_policy import Budget
from skysail.claims.limits.spend_account import SPEND_ACCOUNT, DayTotal, ObjectTotal, Reservation, SpendAccountStatus
from skysail.claims.limits.spending_facts import SpendingFacts
from skysail.claims.plan.planner import plan, refused
from skysail.claims.pod_events import events_of
from skysail.claims.requirements.cloud_requirements import CloudRequirements
from skysail.claims.requirements.cost_cap import with_cap
from skysail.claims.snapshot import CallResult, Observed, OwnerState
from skysail.claims.types import Candidate, EarlierInstance, Gpu
from skysail.cloud.errors import NoCapacity
from skysail.core import conditions
from skysail.core.actions import Create, Delete, Event, LaunchInstance, PatchStatus, TerminateInstance
from skysail.kinds.offload.plan.cost_cap import cost_cap
from skysail.kinds.offload.plan.gangs import Owner
from tests.unit.claims.samples import (
    CLOUD,
    NAME,
    NOW,
    UID,
    account,
    ago,
    claim,
    instance,
    launch_spec,
    policy,
    snapshot,
    spec,
)

# Two hours of a T4 and of an L4.
OFFERS = (
    Candidate(gpu_type="T4", region="eu", usd_per_hour=1.0),
    Candidate(gpu_type="L4", region="eu", usd_per_hour=2.0),
)
RUNNING = {"reserved_usd": 4.0, "reserve_time": ago(20), "nonce": "n", "deadline_time": ago(10 - 3600)}


def wanted(**fields: Any):
    known = {"candidates": OFFERS, "gpu": Gpu("any", 1), "image": "python:3.11"}
    return claim("Claimed", of=spec(**{**known, **fields.pop("spec", {})}), **fields)


def facts(*reservations: Reservation, policies=None, **fields: Any) -> SpendingFacts:
    known = {"policies": policies if policies is not None else (policy(),), "account": account(*reservations)}
    return SpendingFacts(**{**known, **fields})


def held(usd: float, name: str = NAME, at: str = ago(20), **fields: Any) -> Reservation:
    return Reservation(claim=name, usd=usd, at=at, **fields)


def waits(made) -> tuple[str, str]:
    assert not any(isinstance(action, LaunchInstance) for action in made.actions)
    row = conditions.find_condition(made.status.conditions, Condition.LAUNCHED)
    return row.reason, row.message


def written(action: PatchStatus) -> SpendAccountStatus:
    """The account after this write."""
    assert action.resource == SPEND_ACCOUNT.resource
    fields = {**msgspec.to_builtins(action.object.status), **action.fields}
    return msgspec.convert(fields, SpendAccountStatus)


def test_launch_without_policy_waits_and_says_how_to_allow_it():
    reason, message = waits(plan(snapshot(wanted(), spending=facts(policies=()))))
    assert reason == Reason.POLICY_DENIED
    assert "create an OffloadPolicy whose namespaceSelector matches it" in message


@pytest.mark.parametrize("unknown", [{"unknown_policies": "Not listed."}, {"unknown_account": "Not read."}])
def test_launch_with_unknown_limits_waits(unknown):
    reason, message = waits(plan(snapshot(wanted(), spending=facts(**unknown))))
    assert (reason, message) == (Reason.LIMITS_UNKNOWN, f"{next(iter(unknown.values()))} The launch waits.")


@pytest.mark.parametrize(
    ("limit", "fields"),
    [
        ({"gpu_types": ("H100",)}, {}),
        ({"regions": ("us",)}, {}),
        ({"max_price": 0.9}, {}),
        ({"images": ("registry.example.com/*",)}, {}),
        ({"allow_secrets": False}, {"uses_secrets": True}),
        ({}, {"is_automatic": True}),
        ({"providers": ("other",)}, {}),
    ],
)
def test_launch_against_a_policy_that_changed_since_admission_waits(limit, fields):
    made = plan(snapshot(wanted(spec=fields), spending=facts(policies=(policy(**limit),))))
    assert waits(made)[0] == Reason.POLICY_DENIED


def test_launch_gpu_type_is_checked_by_its_aliases():
    limited = policy(gpu_types=("Tesla-T4",))
    known = facts(policies=(limited,), gpu_aliases={"T4": ("tesla-t4",)})
    assert isinstance(plan(snapshot(wanted(), spending=known)).actions[-1], LaunchInstance)


def test_launch_price_of_several_gpus_is_checked_for_one():
    eight = wanted(spec={"gpu": Gpu("any", 8), "candidates": (Candidate(gpu_type="T4", usd_per_hour=8.0),)})
    assert isinstance(
        plan(snapshot(eight, spending=facts(policies=(policy(max_price=1.0),)))).actions[-1], LaunchInstance
    )


def test_launch_beyond_the_instance_limit_waits():
    others = [held(1.0, f"other-{number}") for number in range(2)]
    made = plan(snapshot(wanted(), spending=facts(*others, policies=(policy(max_instances=2),))))
    assert waits(made)[0] == Reason.INSTANCE_LIMIT_REACHED


def test_launch_of_a_gang_counts_all_of_its_instances():
    gang = wanted(spec={"members": 3, "instances": 3})
    allowed = policy(max_instances=4)
    reserve, _ = plan(snapshot(gang, spending=facts(held(1.0, "other"), policies=(allowed,)))).actions
    assert [row.instances for row in written(reserve).reservations] == [1, 3]
    full = facts(held(1.0, "other", instances=2), policies=(allowed,))
    assert waits(plan(snapshot(gang, spending=full)))[0] == Reason.INSTANCE_LIMIT_REACHED
    too_small = facts(policies=(policy(max_instances=2),))
    assert waits(plan(snapshot(gang, spending=too_small)))[0] == Reason.POLICY_DENIED


def test_gang_that_runs_without_reservation_gets_one_for_all_of_its_instances():
    of = running()
    of = msgspec.structs.replace(of, spec=msgspec.structs.replace(of.spec, members=3, instances=3))
    again, _ = observed(of, spending=facts())
    (adopt,) = again.actions
    assert [row.instances for row in written(adopt).reservations] == [3]


def test_launch_without_account_creates_it_first():
    made = plan(snapshot(wanted(), spending=facts(account=None)))
    (action,) = made.actions
    assert isinstance(action, Create)
    assert (action.owner, action.manifest["metadata"]["name"], action.manifest["spec"]) == (
        None,
        "n",
        {"namespace": "n"},
    )
    assert made.requeue_after == 0.0


def test_launch_reserves_before_it_calls():
    reserve, launch = plan(snapshot(wanted(), spending=facts())).actions
    assert written(reserve).reservations == (held(1.0, at="2026-11-15T12:00:00Z"),)
    assert isinstance(launch, LaunchInstance)
    assert (launch.status.reserved_usd, launch.status.reserve_time) == (1.0, "2026-11-15T12:00:00Z")
    assert launch.launch_spec.max_lifetime == 3600.0


def test_launch_with_its_reservation_writes_no_second_one():
    made = plan(snapshot(wanted(), spending=facts(held(1.0))))
    (launch,) = made.actions
    assert (launch.status.reserved_usd, launch.status.reserve_time) == (1.0, ago(20))


def test_launch_of_a_dearer_candidate_raises_the_reservation_first():
    reserve, launch = plan(snapshot(wanted(candidate=1), spending=facts(held(1.0)))).actions
    assert written(reserve).reservations == (held(2.0),)
    assert launch.status.reserved_usd == 2.0


def test_launch_with_little_money_left_shortens_the_deadline():
    limited = policy(budget=Budget(0.5, "Day"))
    made = plan(snapshot(wanted(), spending=facts(policies=(limited,))))
    _, launch = made.actions
    assert (launch.launch_spec.max_lifetime, launch.status.deadline_time) == (1800.0, "2026-11-15T12:30:00Z")
    (event,) = made.events
    assert (event.reason, event.warning) == (EventReason.LIFETIME_LIMITED, True)
    assert launch.status.lifetime_limit == "the daily budget of 0.5 USD in OffloadPolicy default"
    call = CallResult(nonce=launch.status.launching.nonce, error=NoCapacity("None."), failed=NOW)
    again = plan(snapshot(msgspec.structs.replace(wanted(), status=launch.status), call=call))
    assert (again.status.state, again.status.lifetime_limit) == ("Claimed", "")


def test_launch_with_a_limit_says_the_same_to_claim_and_pod():
    before = wanted()
    made = plan(snapshot(before, spending=facts(policies=(policy(budget=Budget(0.5, "Day")),))))
    of_pod = events_of(before, msgspec.structs.replace(before, status=made.actions[-1].status))
    assert made.events[0] in of_pod
    assert made.events[0].message == (
        "The instance ends after 1800 seconds, because the daily budget of 0.5 USD in OffloadPolicy default leaves no"
        " more: raise it."
    )


def test_launch_with_a_policy_deadline_reserves_less():
    made = plan(snapshot(wanted(), spending=facts(policies=(policy(max_duration_seconds=360),))))
    reserve, launch = made.actions
    assert (written(reserve).reservations[0].usd, launch.launch_spec.max_lifetime) == (0.1, 360)
    assert launch.status.lifetime_limit == "spec.maxDurationSeconds of an OffloadPolicy"


def test_launch_without_money_left_waits():
    made = plan(snapshot(wanted(), spending=facts(held(9.0, "other"), policies=(policy(budget=Budget(9.0)),))))
    reason, message = waits(made)
    assert reason == Reason.BUDGET_EXHAUSTED
    assert "wait until 2026-12-01T00:00:00Z, or raise spec.budget.amount" in message


@pytest.mark.parametrize(
    ("job", "capped_uid", "object_"), [("job-1", "", "job-1"), ("", "", UID), ("attempt-2", "tj", "tj")]
)
def test_launch_with_a_cap_counts_all_launches_of_the_object(job, capped_uid, object_):
    capped = wanted(spec={"max_cost_usd": 1.5, "max_cost_uid": capped_uid, "job_uid": job})
    reserve, launch = plan(snapshot(capped, spending=facts(held(1.0, "other", object=object_)))).actions
    assert written(reserve).reservations[-1] == held(0.5, at="2026-11-15T12:00:00Z", object=object_)
    assert launch.launch_spec.max_lifetime == 1800.0


@pytest.mark.parametrize(("uid", "left"), [("attempt-2", 0.75), ("tj", 0.75), ("else", 1.5)])
def test_launch_with_a_cap_counts_launches_from_before_the_cap_was_shared(uid, left):
    capped = wanted(spec={"max_cost_usd": 1.5, "max_cost_uid": "tj", "job_uid": "attempt-2"}, candidate=1)
    status = SpendAccountStatus(
        reservations=(held(0.5, "other", object=uid),), objects=(ObjectTotal(uid=uid, usd=0.25, day="2026-11-14"),)
    )
    known = msgspec.structs.replace(account(), status=status)
    reserve, _ = plan(snapshot(capped, spending=facts(account=known))).actions
    assert written(reserve).reservations[-1] == held(left, at="2026-11-15T12:00:00Z", object="tj")


def both_pods(*kinds: str):
    """Return the claims of an old pod and of its replacement, whose owners of these kinds have a cap of 1 USD."""
    owners = [Owner(kind=kind, name="x", uid=kind, annotations={Annotation.MAX_COST: "1"}) for kind in kinds]
    needs = with_cap(CloudRequirements(), cost_cap(owners))
    capped = {"candidates": OFFERS, "max_cost_usd": needs.max_cost_usd, "max_cost_uid": needs.max_cost_uid}
    return claim("Claimed", of=spec("old", **capped)), claim("Claimed", of=spec("new", **capped))


@pytest.mark.parametrize(
    "kinds", [("ReplicaSet", "Deployment"), ("StatefulSet",), ("ReplicaSet", "Deployment", "MLModel")]
)
def test_rollout_of_a_server_with_a_cap_launches_the_new_pod_beside_the_old_one(kinds):
    old, new = both_pods(*kinds)
    first, _ = plan(snapshot(old, spending=facts())).actions
    assert [row.usd for row in written(first).reservations] == [1.0]
    second, launch = plan(snapshot(new, spending=facts(*written(first).reservations))).actions
    assert [(row.object, row.usd) for row in written(second).reservations] == [("old", 1.0), ("new", 1.0)]
    assert isinstance(launch, LaunchInstance)


@pytest.mark.parametrize("kinds", [("Job",), ("Job", "TrainingJob"), ("PyTorchJob",)])
def test_new_pod_of_a_job_waits_for_the_money_that_the_old_one_holds(kinds):
    old, new = both_pods(*kinds)
    first, _ = plan(snapshot(old, spending=facts())).actions
    reason, message = waits(plan(snapshot(new, spending=facts(*written(first).reservations))))
    assert reason == Reason.BUDGET_EXHAUSTED
    assert "other launches hold 1.00 USD: wait until they end, or raise the annotation." in message


def test_launch_after_a_dear_instance_reserves_for_both():
    paid = wanted(earlier_instances=(EarlierInstance(id="i-0", usd=0.25),))
    reserve, _ = plan(snapshot(paid, spending=facts())).actions
    assert written(reserve).reservations[0].usd == 1.25


def test_launch_without_candidates_reserves_nothing_unless_there_is_a_budget():
    unpriced = claim("Claimed")
    reserve, _ = plan(snapshot(unpriced, spending=facts())).actions
    assert written(reserve).reservations[0].usd == 0.0
    limited = facts(policies=(policy(budget=Budget(9.0)),))
    assert waits(plan(snapshot(unpriced, spending=limited)))[0] == Reason.BUDGET_EXHAUSTED


def running(**status: Any):
    return claim("Running", of=spec(candidates=OFFERS), **{**RUNNING, "ready_time": ago(30), **status})


def observed(of, price: float = 3.6, **fields: Any):
    """Mirrored once, so that the plan that follows has nothing else to write."""
    seen = Observed((instance(usd_per_hour=price),))
    made = plan(snapshot(of, observation=seen, **fields))
    after = of if made.status is None else msgspec.structs.replace(of, status=made.status)
    return plan(snapshot(after, observation=seen, **fields)), made


def test_instance_with_its_reservation_writes_nothing():
    again, _ = observed(running(), spending=facts(held(4.0)))
    assert again.actions == ()


def test_instance_without_reservation_gets_one():
    again, first = observed(running(), spending=facts())
    assert first.actions == ()
    (adopt,) = again.actions
    assert written(adopt).reservations == (held(3.6, at=ago(20)),)


def test_instance_without_account_gets_one():
    again, _ = observed(running(), spending=facts(account=None))
    assert [type(action) for action in again.actions] == [Create]


def test_instance_reservation_of_an_earlier_process_is_noted():
    (again, first) = observed(running(reserve_time=None, reserved_usd=None), spending=facts(held(4.0)))
    assert (first.status.reserve_time, first.status.reserved_usd, again.actions) == (ago(20), 4.0, ())


def test_instance_dearer_than_reserved_raises_the_reservation():
    again, first = observed(running(), spending=facts(held(1.0), policies=(policy(budget=Budget(5.0)),)))
    assert first.actions == ()
    (more,) = again.actions
    assert written(more).reservations == (held(3.6),)


def test_instance_dearer_than_reserved_is_kept_if_its_cost_exactly_fits():
    # With errors of floats, 0.15 - 0.1 USD pay for a little less than an hour at 0.05 USD.
    of = running(earlier_instances=(EarlierInstance(id="i-0", usd=0.1),), usd_per_hour=0.05)
    again, _ = observed(of, 0.05, spending=facts(held(0.12), policies=(policy(budget=Budget(0.15)),)))
    (more,) = again.actions
    assert written(more).reservations == (held(0.15),)


@pytest.mark.parametrize(("price", "highest"), [(7.2, 7.2), (1.8, 3.6), (0.0, 3.6)])
def test_instance_whose_price_changes_keeps_the_highest_one(price, highest):
    again, first = observed(running(usd_per_hour=3.6), price, spending=facts(held(4.0)))
    assert first.status.usd_per_hour == highest
    assert [written(action).reservations for action in again.actions] == ([(held(7.2),)] if highest > 3.6 else [])


@pytest.mark.parametrize("limit", [{"budget": Budget(3.0)}, {}])
def test_instance_dearer_than_reserved_is_terminated_if_the_limits_leave_less(limit):
    of = running()
    if not limit:
        of = msgspec.structs.replace(of, spec=msgspec.structs.replace(of.spec, max_cost_usd=3.0))
    made = plan(
        snapshot(of, observation=Observed((instance(),)), spending=facts(held(1.0), policies=(policy(**limit),)))
    )
    # Without the grace period, which the owner of the pod chooses: the money is used up.
    assert made.actions == (TerminateInstance(CLOUD, "i-1", 0.0),)
    row = conditions.find_condition(made.status.conditions, Condition.TERMINATED)
    assert (made.status.state, row.reason) == ("Terminating", Reason.BUDGET_EXHAUSTED)


def test_instance_dearer_than_reserved_waits_while_policies_are_unknown():
    again, _ = observed(running(), spending=facts(held(1.0), unknown_policies="Not listed."))
    assert again.actions == ()


def test_instance_while_the_account_is_unknown_is_left_alone():
    again, _ = observed(running(), spending=facts(account=None, unknown_account="Not read."))
    assert again.actions == ()


def test_wait_for_long_releases_the_money():
    made = plan(snapshot(wanted(), limited_by="Too many.", spending=facts(held(1.0), held(2.0, "other"))))
    (release,) = made.actions
    assert written(release).reservations == (held(2.0, "other"),)
    assert (made.status.reserved_usd, made.status.reserve_time) == (None, None)


@pytest.mark.parametrize(
    ("of", "fields"),
    [
        (wanted(), {"launch_spec": None}),
        (wanted(earlier_instances=(EarlierInstance(id="i-0", usd=0.25),)), {"limited_by": "Too many."}),
    ],
)
def test_wait_keeps_the_money_if_it_is_short_or_something_was_paid(of, fields):
    assert plan(snapshot(of, spending=facts(held(1.0)), **fields)).actions == ()


ENDED = {"usd_total": 2.0, "start_time": "2026-11-14T23:00:00Z", "end_time": "2026-11-15T03:00:00Z"}


def ended(**status: Any):
    known = {"reserve_time": ago(20), "reserved_usd": 4.0, **ENDED, **status}
    return claim("Terminated", of=spec(candidates=OFFERS), **known)


def test_terminated_claim_settles_its_cost_by_day():
    made = plan(snapshot(ended(), spending=facts(held(4.0))))
    (settle,) = made.actions
    assert written(settle) == SpendAccountStatus(
        totals=(
            DayTotal(day="2026-11-14", provider=CLOUD, gpu="T4", usd=0.5),
            DayTotal(day="2026-11-15", provider=CLOUD, gpu="T4", usd=1.5),
        )
    )
    assert made.requeue_after == 0.0


def test_terminated_claim_without_start_time_settles_on_the_day_of_its_end():
    (settle,) = plan(snapshot(ended(start_time=None), spending=facts(held(4.0)))).actions
    assert [row.day for row in written(settle).totals] == ["2026-11-15"]


def test_terminated_claim_that_cost_nothing_is_released():
    (settle,) = plan(snapshot(ended(usd_total=0.0), spending=facts(held(4.0)))).actions
    assert written(settle) == SpendAccountStatus()


def test_terminated_claim_with_a_reservation_of_another_time_counts_no_cost_twice():
    (settle,) = plan(snapshot(ended(), spending=facts(held(4.0, at=ago(1))))).actions
    assert written(settle) == SpendAccountStatus()


def test_terminated_claim_is_deleted_after_it_is_settled():
    gone = {"owner": OwnerState.ABSENT}
    assert [type(action) for action in plan(snapshot(ended(), spending=facts(held(4.0)), **gone)).actions] == [
        PatchStatus
    ]
    assert [type(action) for action in plan(snapshot(ended(), spending=facts(), **gone)).actions] == [Delete]
    assert [type(action) for action in plan(snapshot(ended(), spending=facts(account=None), **gone)).actions] == [
        Delete
    ]


def test_terminated_claim_is_kept_while_its_account_is_unknown():
    unknown = facts(account=None, unknown_account="Not read.")
    made = plan(snapshot(ended(), spending=unknown, owner=OwnerState.ABSENT))
    assert (made.actions, made.requeue_after) == ((), 5.0)
    never_reserved = claim("Terminated", reserve_time=None)
    assert [
        type(action) for action in plan(snapshot(never_reserved, spending=unknown, owner=OwnerState.ABSENT)).actions
    ] == [Delete]


def test_terminated_claim_late_instance_is_terminated_before_anything_is_settled():
    late = Observed((instance("i-9"),))
    kinds = [type(action) for action in plan(snapshot(ended(), spending=facts(held(4.0)), observation=late)).actions]
    assert kinds == [TerminateInstance, PatchStatus]


def test_rejected_write_of_a_terminated_claim_keeps_its_conditions():
    of, event = ended(), Event("ReconcileFailed", "No.", warning=True)
    assert refused(snapshot(of), event).status == of.status


def test_launch_spec_is_that_of_the_node_but_for_its_lifetime():
    _, launch = plan(snapshot(claim("Claimed"), spending=facts())).actions
    assert launch.launch_spec == launch_spec()
    assert launch.object.metadata.name == NAME
    assert launch.status.launching.at == NOW.strftime("%Y-%m-%dT%H:%M:%SZ")
