"""The launch protocol: every transition by a table, and what must never happen by chance."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from skysail.base.names import Condition, Finalizer, Reason
from skysail.claims.plan.planner import plan, refused
from skysail.claims.plan.status import accrued_cost
from skysail.claims.snapshot import CallResult, NotObserved, Observed, OwnerState
from skysail.claims.types import CLOUD_INSTANCE, CloudInstanceStatus, Exit
from skysail.cloud.errors import Gone, NoCapacity, OutcomeUnknown, ProviderError, Rejected, Throttled, Unsupported
from skysail.cloud.provider import Ended
from skysail.core import conditions
from skysail.core.actions import Delete, Event, LaunchInstance, SetFinalizers, TerminateInstance
from tests.unit.claims.samples import (
    CLOUD,
    DELETING,
    NOW,
    TERMS,
    TICKET,
    ago,
    claim,
    exited,
    instance,
    moved,
    snapshot,
)

ABSENT = NotObserved(listings=TERMS.absence_threshold, seconds=TERMS.visibility_delay + 1)
NEVER = NotObserved(listings=TERMS.absence_threshold, seconds=TERMS.visibility_delay + TERMS.create_timeout + 1)
GONE = NotObserved(listings=TERMS.absence_threshold, seconds=TERMS.visibility_delay + 1, is_gone=True)
DELETED = {"deletion_timestamp": DELETING}
ASKED = {"i-1": NOW - timedelta(seconds=1)}


def seen(*instances):
    return Observed(instances or (instance(),))


def with_others(sight, *instances):
    return msgspec.structs.replace(sight, others=instances)


def called(**fields):
    """A call of ours whose nonce is `mine`."""
    return CallResult(nonce="mine", **fields)


def failed(error, pause=10.0):
    return called(error=error, failed=NOW, pause=timedelta(seconds=pause))


def state_after(made, before):
    written = [made.status, *(action.status for action in made.actions if isinstance(action, LaunchInstance))]
    return next((status.state for status in written if status is not None), before.object.status.state)


def kinds(made):
    return tuple(type(action) for action in made.actions)


LAUNCHING = claim("Launching", nonce="mine")
FOREIGN = claim("Launching", nonce="theirs")
DOUBTED = claim("Unknown", nonce="theirs")
RUNNING = claim("Running", ready_time=ago(30))
ENDING = claim("Terminating")
OVER = claim("Terminated")
# It was given ten minutes.
TIMED = claim("Running", ready_time=ago(30), deadline_time=ago(-540))

TRANSITIONS = [
    ("a new claim gets our ticket, and is launched", claim(), {}, "Launching", (LaunchInstance,)),
    ("and so is one that waited", claim("Claimed"), {}, "Launching", (LaunchInstance,)),
    ("a ticket that was not used is written anew", claim("Launching", nonce=TICKET), {}, "Launching",
     (LaunchInstance,)),
    ("a call under way is waited for", LAUNCHING, {"call": called()}, "Launching", ()),
    ("also where a listing is faster", LAUNCHING, {"call": called(), "observation": seen()}, "Launching", ()),
    ("an answer is written down", LAUNCHING, {"call": called(instance=instance("i-1", "starting"))}, "Starting", ()),
    ("an answer that runs already", LAUNCHING, {"call": called(instance=instance())}, "Running", ()),
    ("no capacity: nothing was made", LAUNCHING, {"call": failed(NoCapacity("none"))}, "Claimed", ()),
    ("throttled: nothing was made", LAUNCHING, {"call": failed(Throttled("slow", 5.0))}, "Claimed", ()),
    ("refused for good", LAUNCHING, {"call": called(error=Rejected("No", "never"))}, "Terminated", ()),
    ("refused for good, although an older listing shows it", LAUNCHING,
     {"call": called(error=Rejected("No", "never")), "observation": seen()}, "Terminated", ()),
    ("unsupported for good", LAUNCHING, {"call": called(error=Unsupported("never"))}, "Terminated", ()),
    ("a lost answer is a doubt", LAUNCHING, {"call": called(error=OutcomeUnknown("lost"))}, "Unknown", ()),
    ("gone is no proof", LAUNCHING, {"call": called(error=Gone("404"))}, "Unknown", ()),
    ("an error that says nothing", LAUNCHING, {"call": called(error=ProviderError("?"))}, "Unknown", ()),
    ("somebody else may have called", FOREIGN, {}, "Unknown", ()),
    ("our last call was another", FOREIGN, {"call": called(error=OutcomeUnknown("lost"))}, "Unknown", ()),
    ("somebody else did call", FOREIGN, {"observation": seen()}, "Running", ()),
    ("a launch that nobody wants is broken off", claim("Launching", nonce="mine", metadata=DELETED),
     {"call": called()}, "Unknown", ()),
    ("a ticket that nobody wants is not used", claim("Launching", nonce=TICKET, metadata=DELETED), {},
     "Terminated", ()),
    ("a doubt is not ended by few listings", DOUBTED, {"observation": NotObserved(listings=2, seconds=500)}, "Unknown",
     ()),
    ("nor by listings in a short time", DOUBTED, {"observation": NotObserved(listings=50, seconds=60)}, "Unknown", ()),
    ("nor while a call is being broken off", DOUBTED, {"observation": NEVER, "call": called()}, "Unknown", ()),
    ("nor while its call may still be worked on", DOUBTED, {"observation": ABSENT}, "Unknown", ()),
    ("nor is it over then, where nobody wants it", DOUBTED, {"observation": ABSENT, "owner": OwnerState.ABSENT},
     "Unknown", ()),
    ("but by enough of them", DOUBTED, {"observation": NEVER}, "Claimed", ()),
    ("and then it is over, where nobody wants it", DOUBTED, {"observation": NEVER, "owner": OwnerState.ABSENT},
     "Terminated", ()),
    ("a doubt is ended by a sight", DOUBTED, {"observation": seen()}, "Running", ()),
    ("and the instance ends, where nobody wants it", DOUBTED, {"observation": seen(), "owner": OwnerState.ABSENT},
     "Terminating", (TerminateInstance,)),
    ("what starts begins to run", claim("Starting"), {"observation": seen()}, "Running", ()),
    ("what runs does not go back", RUNNING, {"observation": seen(instance("i-1", "starting"))}, "Running", ()),
    ("what is not seen runs on", RUNNING, {}, "Running", ()),
    ("what is not seen for long runs on, while its page is there", RUNNING, {"observation": ABSENT}, "Running", ()),
    ("what has vanished is over", RUNNING, {"observation": GONE}, "Terminated", ()),
    ("nobody is left", RUNNING, {"observation": seen(), "owner": OwnerState.ABSENT}, "Terminating",
     (TerminateInstance,)),
    ("nobody is left, and nothing is listed", RUNNING, {"owner": OwnerState.ABSENT}, "Terminating",
     (TerminateInstance,)),
    ("an owner that cannot be asked ends nothing", RUNNING, {"owner": OwnerState.UNKNOWN}, "Running", ()),
    ("a claim that was deleted", claim("Running", metadata=DELETED), {"observation": seen()}, "Terminating",
     (TerminateInstance,)),
    ("its time is over", TIMED, {"observation": seen(), "uptime": 600}, "Terminating", (TerminateInstance,)),
    ("its time is not over", TIMED, {"observation": seen(), "uptime": 599}, "Running", ()),
    ("a clock that is set ends nothing", TIMED, {"observation": seen(), "now": NOW + timedelta(days=2)}, "Running", ()),
    ("a program that ended is told at once", RUNNING, {"observation": seen(instance(exit=exited()))}, "Running",
     (TerminateInstance,)),
    ("and written down, where the cloud takes its time", RUNNING,
     {"observation": seen(instance(exit=exited())), "termination_requests": ASKED}, "Terminating", ()),
    ("an end is carried through", ENDING, {"observation": seen()}, "Terminating", (TerminateInstance,)),
    ("also where it is not listed", ENDING, {}, "Terminating", (TerminateInstance,)),
    ("it is not asked for at every look", ENDING, {"observation": seen(), "termination_requests": ASKED}, "Terminating",
     ()),
    ("an end is confirmed by the cloud", ENDING, {"observation": seen(instance("i-1", "ended"))}, "Terminated", ()),
    ("or by its absence", ENDING, {"observation": GONE}, "Terminated", ()),
    ("another instance is not ours", RUNNING, {"observation": seen(instance("i-9"))}, "Running", ()),
    ("ours ends with it", RUNNING, {"observation": seen(instance("i-9")), "owner": OwnerState.ABSENT}, "Terminating",
     (TerminateInstance, TerminateInstance)),
    ("also where ours is not listed", RUNNING,
     {"observation": NotObserved(others=(instance("i-9"),)), "owner": OwnerState.ABSENT}, "Terminating",
      (TerminateInstance, TerminateInstance)),
    ("the end of another one confirms nothing", ENDING,
     {"observation": seen(instance("i-9", "ended")), "termination_requests": ASKED}, "Terminating", ()),
    ("where ours is gone the other one stands in", RUNNING, {"observation": with_others(GONE, instance("i-9"))},
     "Running", ()),
    ("and ends first where nobody is left", ENDING, {"observation": with_others(GONE, instance("i-9"))},
     "Terminating", (TerminateInstance,)),
    ("also a straggler beside ours", claim("Terminated", instance_id="i-1"),
     {"observation": NotObserved(others=(instance("i-9"),)), "owner": OwnerState.ABSENT}, "Terminated",
      (TerminateInstance,)),
    ("that another instance ended confirms nothing", RUNNING, {"observation": seen(instance("i-9", "ended"))},
     "Running", ()),
    ("the cloud ended it", RUNNING, {"observation": seen(instance("i-1", "ended"))}, "Terminated", ()),
    ("what is over stays, with what it was for", OVER, {}, "Terminated", ()),
    ("and while nobody knows of it", OVER, {"owner": OwnerState.UNKNOWN}, "Terminated", ()),
    ("it goes with it", OVER, {"owner": OwnerState.ABSENT}, "Terminated", (Delete,)),
    ("or when there is a later one", OVER, {"is_superseded": True}, "Terminated", (Delete,)),
    ("and is let go", claim("Terminated", metadata=DELETED), {"owner": OwnerState.ABSENT}, "Terminated",
     (SetFinalizers,)),
    ("deleted by hand, it stays as long as its pod", claim("Terminated", metadata=DELETED), {}, "Terminated", ()),
    ("a straggler ends first", OVER, {"observation": seen(), "owner": OwnerState.ABSENT}, "Terminated",
     (TerminateInstance,)),
    ("never launched, never paid", claim("Claimed"), {"owner": OwnerState.ABSENT}, "Terminated", ()),
    ("what is found without a call is ours", claim("Claimed"), {"observation": seen()}, "Running", ()),
    ("a call of an earlier ticket may still succeed", claim("Claimed"), {"call": called()}, "Claimed", ()),
]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "known", "after", "acts"), [row[1:] for row in TRANSITIONS], ids=[row[0] for row in TRANSITIONS]
)
def test_transition(before, known, after, acts):
    given_ = snapshot(before, **known)
    made = plan(given_)
    assert (state_after(made, given_), kinds(made)) == (after, acts)


@pytest.mark.parametrize(
    ("error", "state"), [(Rejected("HandlerNotFound", "No."), "Terminated"), (NoCapacity("No answer."), "Claimed")]
)
def test_plan_failed_call_that_cost_money_is_part_of_the_claims_cost(error, state):
    error.usd = 0.25
    given_ = snapshot(LAUNCHING, call=called(error=error))
    made = plan(given_)
    assert made.status.state == state
    assert sum(row.usd for row in made.status.earlier_instances) == 0.25
    assert made.status.usd_total == (0.25 if state == "Terminated" else None)


@pytest.mark.parametrize("state", ["Claimed", "Launching"])
@pytest.mark.parametrize(
    ("known", "reason", "wait"),
    [
        ({"launch_spec": None}, Reason.WAITING_FOR_NODE, 5.0),
        ({"outage": "The cloud is down."}, Reason.CLOUD_UNREACHABLE, 5.0),
        ({"blocked_by": "Pod b does the same work."}, Reason.PREVIOUS_INSTANCE_RUNNING, 5.0),
        ({"limited_by": "Too many."}, Reason.LAUNCH_RATE_LIMITED, 5.0),
        ({"call": failed(NoCapacity("None left."), 42.0)}, Reason.NO_CAPACITY, 42.0),
        ({"call": failed(Throttled("Wait.", 42.0), 42.0)}, Reason.THROTTLED, 42.0),
    ],
)
def test_a_launch_waits_and_says_for_what_also_with_the_ticket_written(state, known, reason, wait):
    made = plan(snapshot(claim(state, nonce=TICKET if state == "Launching" else ""), **known))
    told = conditions.find_condition(made.status.conditions, Condition.LAUNCHED)
    assert (made.status.state, made.status.launching) == ("Claimed", None)
    assert not {LaunchInstance, TerminateInstance} & set(kinds(made))
    assert (told.status, told.reason, made.requeue_after) == ("False", reason, wait)


def test_wait_for_another_reason_than_before_can_be_written_later():
    first = plan(snapshot(claim(), outage="The cloud is down."))
    assert not first.is_deferrable
    of = claim("Claimed", conditions=first.status.conditions)
    assert plan(snapshot(of, limited_by="Too many.")).is_deferrable


@pytest.mark.parametrize("state", ["Launching", "Unknown", "Starting", "Running", "Terminating"])
@pytest.mark.parametrize("owner", [OwnerState.PRESENT, OwnerState.ABSENT])
def test_without_an_account_what_may_cost_is_not_forgotten_and_nobody_is_called(state, owner):
    of = claim(state, nonce="theirs" if state in {"Launching", "Unknown"} else "", metadata=DELETED)
    made = plan(snapshot(of, has_account=False, owner=owner, outage="No account at cloud."))
    told = conditions.find_condition(made.status.conditions, Condition.TERMINATED)
    assert (made.actions, made.status.state) == ((), state)
    assert (told.status, told.reason) == ("Unknown", Reason.NO_ACCOUNT)
    assert ("i-1" in told.message) == bool(of.status.instance_id)


def test_without_an_account_nothing_is_launched_and_what_was_never_launched_may_go():
    made = plan(snapshot(claim("Claimed"), has_account=False, outage="No account at cloud.", launch_spec=None))
    assert conditions.find_condition(made.status.conditions, Condition.LAUNCHED).reason == Reason.NO_ACCOUNT
    gone = plan(snapshot(claim("Claimed"), has_account=False, owner=OwnerState.ABSENT))
    assert gone.status.state == "Terminated"


def test_a_pause_ends_and_does_not_grow_when_the_clock_is_set_back():
    of, call = claim("Claimed"), failed(NoCapacity("None left."), 10.0)
    assert plan(snapshot(of, call=call, now=NOW + timedelta(seconds=9))).status.state == "Claimed"
    assert kinds(plan(snapshot(of, call=call, now=NOW + timedelta(seconds=10)))) == (LaunchInstance,)
    assert kinds(plan(snapshot(of, call=call, now=NOW - timedelta(days=1)))) == (LaunchInstance,)


@pytest.mark.parametrize(("jump", "again"), [(1, False), (59, False), (60, True), (-86400, True)])
def test_an_end_is_asked_for_again_after_a_while_and_after_a_jump_of_the_clock(jump, again):
    made = plan(
        snapshot(ENDING, observation=seen(), termination_requests={"i-1": NOW}, now=NOW + timedelta(seconds=jump))
    )
    assert made.actions == ((TerminateInstance(CLOUD, "i-1", 30.0),) if again else ())


def test_grace_is_for_those_who_are_still_there():
    assert plan(snapshot(claim("Running", metadata=DELETED))).actions == (TerminateInstance(CLOUD, "i-1", 30.0),)
    assert plan(snapshot(RUNNING, owner=OwnerState.ABSENT)).actions == (TerminateInstance(CLOUD, "i-1", 0.0),)


def test_of_several_the_oldest_is_kept_and_the_others_end():
    old, young = instance("i-9", created=NOW.timestamp() - 90), instance("i-1")
    made = plan(snapshot(DOUBTED, observation=seen(old, young)))
    assert made.status.instance_id == "i-9"
    assert made.actions == (TerminateInstance(CLOUD, "i-1", 30.0),)
    assert [event.warning for event in made.events] == [True]
    assert plan(snapshot(DOUBTED, observation=seen(old, young), termination_requests={"i-1": NOW})).events == ()


def test_a_dead_one_does_not_win_over_one_that_lives():
    dead, alive = instance("i-0", "ended", created=NOW.timestamp() - 90), instance("i-1")
    made = plan(snapshot(DOUBTED, observation=seen(dead, alive)))
    assert (made.status.instance_id, made.status.state, made.actions) == ("i-1", "Running", ())


def test_who_is_not_wanted_ends_with_all_its_doubles():
    made = plan(snapshot(DOUBTED, observation=seen(instance("i-1"), instance("i-2")), owner=OwnerState.ABSENT))
    assert [action.instance for action in made.actions] == ["i-1", "i-2"]


def test_the_double_that_ended_does_not_end_the_claim_while_ours_is_not_listed():
    lonely = seen(instance("i-2", "ended"))
    assert plan(snapshot(RUNNING, observation=lonely)).status is None
    deleted = plan(snapshot(claim("Running", metadata=DELETED), observation=lonely))
    assert (deleted.actions, deleted.status.state) == ((TerminateInstance(CLOUD, "i-1", 30.0),), "Terminating")


def test_a_cloud_that_does_not_say_since_when_it_runs_is_believed_from_now_on():
    first = plan(snapshot(claim("Starting"), observation=seen(instance(started=None))))
    assert first.status.ready_time == ago(0)
    kept = claim("Running", ready_time=ago(20))
    assert plan(snapshot(kept, observation=seen(instance(started=None)))).status.ready_time == ago(20)


def test_an_exit_is_told_once():
    told = claim("Terminating", exit=Exit(code=3, reason="Error"), finish_time=ago(9))
    other = instance("i-1", "ended", exit=exited(0))
    made = plan(snapshot(told, observation=seen(other)))
    assert (made.status.exit.code, made.status.finish_time) == (3, ago(9))


@pytest.mark.parametrize(
    ("sight", "reason"),
    [(seen(instance("i-1", "ended")), Reason.DEADLINE_EXCEEDED), (GONE, Reason.DEADLINE_EXCEEDED)],
)
def test_the_reason_of_an_end_stays_when_it_is_confirmed(sight, reason):
    ending = plan(snapshot(TIMED, observation=seen(), uptime=600))
    before = claim("Terminating", conditions=ending.status.conditions)
    made = plan(snapshot(before, observation=sight))
    assert conditions.find_condition(made.status.conditions, Condition.TERMINATED).reason == reason


@pytest.mark.parametrize(
    ("limit", "because"), [("", ""), ("the cap of 0.1 USD", ", because the cap of 0.1 USD left no more: raise it")]
)
def test_the_end_at_a_deadline_says_what_made_it_earlier(limit, because):
    timed = claim("Running", ready_time=ago(30), deadline_time=ago(-540), lifetime_limit=limit)
    made = plan(snapshot(timed, observation=seen(), uptime=600))
    condition = conditions.find_condition(made.status.conditions, Condition.TERMINATED)
    assert condition.message == f"The instance reached its maximum lifetime of 600 seconds{because}."


def test_what_vanished_is_told_to_be_lost():
    made = plan(snapshot(RUNNING, observation=GONE))
    assert (made.status.exit.code, made.status.exit.reason, made.status.finish_time) == (137, "Lost", ago(0))


def test_what_was_seen_to_end_before_it_vanished_is_not_lost():
    forgotten = msgspec.structs.replace(GONE, before=(instance(exit=exited()),))
    made = plan(snapshot(RUNNING, observation=forgotten))
    assert made.status.exit.code == exited().code
    assert conditions.find_condition(made.status.conditions, Condition.TERMINATED).reason == "Completed"


def test_an_end_that_could_not_be_written_in_time_costs_what_it_cost():
    """It was seen; then the API server was away for longer than the cloud remembers."""
    forgotten = msgspec.structs.replace(GONE, before=(instance("i-1", "ended", ended=NOW.timestamp() - 40),))
    made = plan(snapshot(ENDING, observation=forgotten))
    assert (made.status.state, made.status.end_time, made.status.usd_total) == ("Terminated", ago(40), 0.02)
    told = msgspec.structs.replace(GONE, before=(instance("i-1", "ended", usd_total=0.7),))
    assert plan(snapshot(ENDING, observation=told)).status.usd_total == 0.7


@pytest.mark.parametrize(
    ("before", "known", "usd"),
    [
        (claim("Claimed"), {"owner": OwnerState.ABSENT}, 0.0),
        (DOUBTED, {"owner": OwnerState.ABSENT, "observation": NEVER}, 0.0),
        (LAUNCHING, {"call": called(error=Rejected("No", "never"))}, 0.0),
        (ENDING, {"observation": seen(instance("i-1", "ended", usd_total=1.25))}, 1.25),
        (ENDING, {"observation": seen(instance("i-1", "ended", ended=NOW.timestamp() - 10))}, 0.05),
        (ENDING, {"observation": GONE}, 0.06),
        (claim("Terminating", deadline_time=ago(20)), {"observation": GONE}, 0.04),
        (claim("Running", deadline_time=ago(20)), {"observation": GONE}, 0.04),
        (ENDING, {"observation": seen(instance("i-1", "ended", usd_total=-5.0, ended=NOW.timestamp() - 10))}, 0.05),
        (claim("Terminating", usd_total=9.0), {"observation": seen(instance("i-1", "ended", usd_total=1.25))}, 9.0),
    ],
)
def test_the_final_cost(before, known, usd):
    made = plan(snapshot(before, **known))
    assert (made.status.state, made.status.usd_total) == ("Terminated", usd)


def test_a_cost_is_never_negative_though_clocks_differ():
    assert accrued_cost(CloudInstanceStatus(start_time=ago(0), usd_per_hour=3.6), NOW.timestamp() - 3600) == 0.0
    assert accrued_cost(CloudInstanceStatus(start_time=ago(0)), NOW.timestamp() + 3600) == 0.0


def test_foreign_finalizers_stay():
    before = claim("Terminated", metadata={**DELETED, "finalizers": ("theirs", Finalizer.CLAIM)})
    made = plan(snapshot(before, owner=OwnerState.ABSENT))
    assert made.actions == (SetFinalizers(CLOUD_INSTANCE.resource, before, ("theirs",)),)
    waiting = claim("Terminated", metadata={**DELETED, "finalizers": ("theirs",)})
    assert plan(snapshot(waiting, owner=OwnerState.ABSENT)).actions == ()


def test_the_deadline_is_looked_at_in_time():
    assert plan(snapshot(TIMED, observation=seen(), uptime=510)).requeue_after == 90
    assert plan(snapshot(RUNNING, observation=seen())).requeue_after is None


def test_a_refused_write_leaves_the_state():
    shown = refused(snapshot(RUNNING), Event(Reason.RECONCILE_FAILED, "The server said no.")).status
    assert (shown.state, shown.instance_id) == ("Running", "i-1")
    assert conditions.find_condition(shown.conditions, Condition.LAUNCHED).message == "The server said no."


@pytest.mark.parametrize(
    "error", [OutcomeUnknown("x" * 40_000), NoCapacity("x" * 40_000), Rejected("No", "x" * 40_000)]
)
def test_a_page_of_an_error_fits_into_the_status(error):
    made = plan(snapshot(LAUNCHING, call=called(error=error)))
    assert msgspec.convert(msgspec.to_builtins(made.status), CloudInstanceStatus) == made.status


STRANGE = [
    {"created": NOW.timestamp() * 1000, "started": NOW.timestamp() * 1000},
    {"created": float("nan"), "started": -1.0},
    {"created": 1e300},
    {"region": "r" * 300},
    {"usd_per_hour": -1.0},
    {"usd_per_hour": 1e12},
    {"usd_per_hour": float("nan"), "usd_total": float("inf")},
    {"exit": Ended(code=2**40, reason="r" * 300, message="", ended=NOW.timestamp() * 1000)},
]


@pytest.mark.parametrize("fields", STRANGE)
@pytest.mark.parametrize("state", ["starting", "running", "ended"])
def test_whatever_a_cloud_says_is_written_as_far_as_it_can_be(state, fields):
    made = plan(snapshot(claim("Launching", nonce="theirs"), observation=seen(instance(**{"state": state, **fields}))))
    assert msgspec.convert(msgspec.to_builtins(made.status), CloudInstanceStatus) == made.status
    assert made.status.instance_id == "i-1"
    assert made.status.start_time is not None


@pytest.mark.parametrize("fields", STRANGE)
def test_whatever_a_cloud_says_an_instance_that_nobody_wants_is_ended(fields):
    made = plan(snapshot(RUNNING, observation=seen(instance(**fields)), owner=OwnerState.ABSENT))
    assert made.actions == (TerminateInstance(CLOUD, "i-1", 0.0),)


def test_an_exit_code_that_cannot_be_one_is_no_success():
    strange = instance(exit=Ended(code=2**40, reason="Error", ended=NOW.timestamp()))
    assert plan(snapshot(ENDING, observation=seen(strange))).status.exit.code == 255


def test_the_answer_to_our_call_counts_beside_a_listing_without_it():
    first, double = instance("i-1"), instance("i-2")
    made = plan(snapshot(LAUNCHING, call=called(instance=first), observation=seen(double)))
    assert (made.status.instance_id, made.actions) == ("i-1", (TerminateInstance(CLOUD, "i-2", 30.0),))
    doubted = claim("Unknown", nonce="mine")
    assert plan(snapshot(doubted, call=called(instance=first), observation=seen(double))).status.instance_id == "i-1"


@pytest.mark.parametrize(("known", "seconds"), [({}, 3600), ({"launch_spec": None}, TERMS.max_lifetime)])
def test_what_is_found_after_it_was_given_up_has_a_deadline(known, seconds):
    made = plan(snapshot(claim("Claimed"), observation=seen(), **known))
    assert made.status.deadline_time == ago(60 - seconds)
    later = claim("Running", start_time=made.status.start_time, deadline_time=made.status.deadline_time)
    assert plan(snapshot(later, observation=seen(), uptime=seconds)).actions == (TerminateInstance(CLOUD, "i-1", 30.0),)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Rejected("PaymentRequired", "Add money."), "PaymentRequired"),
        (Rejected("not one word", "Never."), Reason.REFUSED),
        (Rejected("", "Never."), Reason.REFUSED),
        (Rejected("x" * 2000, "Never."), Reason.REFUSED),
        (Unsupported("Never."), Reason.REFUSED),
    ],
)
def test_a_refusal_has_the_cloud_s_own_reason(error, reason):
    before = plan(snapshot(claim("Claimed"))).actions[0].status.conditions
    of = claim("Launching", nonce="mine", conditions=before)
    made = plan(snapshot(of, call=called(error=error)))
    told = [
        conditions.find_condition(made.status.conditions, type_) for type_ in (Condition.LAUNCHED, Condition.TERMINATED)
    ]
    assert [(one.status, one.reason, one.message) for one in told] == [
        ("False", reason, str(error)),
        ("True", reason, str(error)),
    ]


def test_a_claim_that_was_deleted_by_hand_says_what_it_is_kept_for():
    before = claim("Terminated", metadata=DELETED)
    made = plan(snapshot(before))
    assert (
        "kept until Pod n/a is deleted" in conditions.find_condition(made.status.conditions, Condition.RELEASED).message
    )
    after = msgspec.structs.replace(before, status=made.status)
    assert plan(snapshot(after)).status == made.status


def test_a_pause_that_the_cloud_asked_for_is_kept_by_all():
    throttled = CallResult(nonce="other", error=Throttled("Wait.", 42.0), failed=NOW, pause=timedelta(seconds=42))
    made = plan(snapshot(claim("Claimed"), throttled=throttled))
    told = conditions.find_condition(made.status.conditions, Condition.LAUNCHED)
    assert (made.status.state, told.reason, made.requeue_after) == ("Claimed", Reason.THROTTLED, 42.0)
    later = snapshot(claim("Claimed"), throttled=throttled, now=NOW + timedelta(seconds=42))
    assert kinds(plan(later)) == (LaunchInstance,)


def test_what_ended_a_program_is_what_the_claim_says():
    preempted = Ended(code=137, reason="Preempted", message="Another paid more.", ended=NOW.timestamp() - 2)
    made = plan(snapshot(claim("Running"), observation=seen(instance("i-1", "ended", exit=preempted))))
    told = conditions.find_condition(made.status.conditions, Condition.TERMINATED)
    assert (told.reason, told.message) == ("Preempted", "Another paid more.")


def test_exit_is_written_before_the_end_of_an_instance_that_its_cloud_forgets():
    timings = msgspec.structs.replace(TERMS, forgets_ended=True)
    observation = seen(instance(exit=exited()))
    before = claim("Running")
    first = plan(snapshot(before, observation=observation, timings=timings))
    assert (kinds(first), first.status.exit.code, first.requeue_after) == ((), exited().code, 0.0)
    then = plan(snapshot(moved(before, exit=first.status.exit), observation=observation, timings=timings))
    assert kinds(then) == (TerminateInstance,)


def test_the_final_cost_is_that_of_all_that_were_made():
    both = (instance("i-1", "ended", usd_total=0.6, exit=exited()), instance("i-2", "ended", usd_total=0.04))
    assert plan(snapshot(claim("Running"), observation=Observed(both))).status.usd_total == pytest.approx(0.64)


def test_a_refusal_is_an_event():
    made = plan(
        snapshot(claim("Launching", nonce="n"), call=CallResult(nonce="n", error=Rejected("NoSuchGpu", "No such GPU.")))
    )
    assert [(event.reason, event.message, event.warning) for event in made.events] == [
        ("NoSuchGpu", "No such GPU.", True)
    ]


def test_who_has_just_written_that_they_call_is_given_time_to_do_so():
    """Two operators at once would else take the ticket from each other for ever."""
    theirs = claim("Launching", nonce="theirs")
    soon = plan(snapshot(theirs, now=NOW - timedelta(seconds=6)))
    assert (soon.status, soon.actions, soon.requeue_after) == (None, (), TERMS.poll_interval)
    assert plan(snapshot(theirs)).status.state == "Unknown"
