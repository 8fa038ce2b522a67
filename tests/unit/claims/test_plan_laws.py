"""The launch protocol: what must never happen, whatever is known."""

from __future__ import annotations

from datetime import timedelta
from itertools import combinations, product

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from skysail.claims.limits.spend_account import SpendAccountStatus
from skysail.claims.limits.spending_facts import SpendingFacts
from skysail.claims.plan.planner import plan
from skysail.claims.plan.termination import termination_reason
from skysail.claims.snapshot import CallResult, NotObserved, Observed, OwnerState, Snapshot
from skysail.claims.types import CloudInstanceStatus, Exit
from skysail.cloud.errors import Gone, NoCapacity, OutcomeUnknown, Rejected, Throttled, Unsupported
from skysail.core.actions import Delete, LaunchInstance, PatchStatus, SetFinalizers, TerminateInstance
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
    launch_spec,
    snapshot,
)

# Rows of what may be are made beforehand, so that an example is a few choices. Calls of ours have the nonce `mine`.

ERRORS = (
    NoCapacity("x" * 40_000),
    Throttled("slow", 9.0),
    Rejected("No", "no"),
    Unsupported("no"),
    OutcomeUnknown("y" * 40_000),
    Gone("?"),
)
EXITS = (None, exited(0), exited(37, "z" * 9000))
INSTANCES = [
    instance(id_, state, exit=exit_, usd_total=usd)
    for id_, state, exit_, usd in product(("i-1", "i-2"), ("starting", "running", "ended"), EXITS, (None, 2.5))
]
SEEN = [
    *(Observed((row,)) for row in INSTANCES),
    *(Observed(pair) for pair in combinations(INSTANCES, 2) if pair[0].id != pair[1].id),
]
UNSEEN = [
    NotObserved(listings=listings, seconds=seconds, is_gone=is_gone, others=others)
    for listings, seconds, is_gone in product(range(5), (0.0, 60.0, 61.0, 1320.0, 1321.0), (True, False))
    for others in ((), (instance("i-2"),), (instance("i-2", "ended"),))
]
CALLS = [
    None,
    CallResult(nonce="mine"),
    *(CallResult(nonce="mine", instance=row) for row in INSTANCES if row.id == "i-1"),
    *(
        CallResult(nonce="mine", error=error, failed=NOW, pause=timedelta(seconds=pause))
        for error, pause in product(ERRORS, (0.0, 10.0))
    ),
]
NONCES = {"Launching": (TICKET, "mine", "theirs"), "Unknown": (TICKET, "mine", "theirs")}
KNOWN_EXITS = dict.fromkeys(("Running", "Terminating", "Terminated"), (None, Exit(code=5, reason="Error")))
CLAIMS = [
    claim(state, metadata={"deletion_timestamp": deleted}, nonce=nonce, exit=exit_, deadline_time=deadline)
    for state in (None, "Claimed", "Launching", "Unknown", "Starting", "Running", "Terminating", "Terminated")
    for nonce, exit_ in product(NONCES.get(state, ("",)), KNOWN_EXITS.get(state, (None,)))
    for deadline, deleted in product((None, ago(1), ago(-60)), (None, DELETING))
]
THROTTLED = CallResult(nonce="other", error=Throttled("slow", 9.0), failed=NOW, pause=timedelta(seconds=9))
SENTENCES = st.sampled_from(["", "", "", "", "Not now."])


def snapshots():
    return st.builds(
        snapshot,
        st.sampled_from(CLAIMS),
        observation=st.sampled_from(SEEN) | st.sampled_from(UNSEEN),
        owner=st.sampled_from(OwnerState),
        call=st.sampled_from(CALLS),
        outage=SENTENCES,
        limited_by=SENTENCES,
        blocked_by=SENTENCES,
        is_superseded=st.booleans(),
        uptime=st.sampled_from([0.0, 1e6]),
        throttled=st.sampled_from([None, THROTTLED]),
        termination_requests=st.sampled_from([{}, {"i-1": NOW}, {"i-1": NOW, "i-2": NOW}]),
        launch_spec=st.sampled_from([None, launch_spec(), launch_spec(), launch_spec()]),
    )


def state_after(made, before):
    return before.object.status.state if made.status is None else made.status.state


def is_surely_absent(of: Snapshot) -> bool:
    sight, known = of.observation, of.object.status.instance_id
    if not isinstance(sight, NotObserved) or sight.listings < TERMS.absence_threshold:
        return False
    return sight.seconds > TERMS.visibility_delay + (0.0 if known else TERMS.create_timeout)


def shown(of: Snapshot):
    return of.observation.instances if isinstance(of.observation, Observed) else of.observation.others


def a_launch_writes_our_unused_ticket_and_needs_everybody_s_leave(of):
    launches = [action for action in plan(of).actions if isinstance(action, LaunchInstance)]
    if not launches:
        return
    (launch_instance,) = launches
    assert (launch_instance.cloud, launch_instance.object, launch_instance.launch_spec) == (
        CLOUD,
        of.object,
        of.launch_spec,
    )
    assert (launch_instance.status.state, launch_instance.status.launching.nonce) == ("Launching", of.nonce)
    assert isinstance(of.observation, NotObserved)
    assert termination_reason(of) is None
    assert (of.outage, of.limited_by, of.blocked_by) == ("", "", "")
    assert of.call is None or of.call.error is not None or of.call.nonce != of.nonce


def a_ticket_is_written_only_where_it_is_certain_that_there_is_nothing(of):
    if not any(isinstance(action, LaunchInstance) for action in plan(of).actions):
        return
    status = of.object.status
    assert status.state in {None, "Claimed"} or (status.state, status.launching.nonce) == ("Launching", of.nonce)
    assert of.call is None or not of.call.is_under_way


def nobody_says_launching_without_the_call(of):
    made = plan(of)
    assert made.status is None or made.status.state != "Launching" or of.object.status.state == "Launching"


def what_is_not_seen_and_not_surely_absent_changes_nothing_by_itself(of):
    if shown(of) or is_surely_absent(of) or termination_reason(of) is not None:
        return
    made, status = plan(of), of.object.status
    mine = of.call is not None and status.launching is not None and of.call.nonce == status.launching.nonce
    is_done = mine and of.call.instance is not None and of.call.instance.exit is not None
    assert (
        is_done
        or status.state == "Terminating"
        or not any(isinstance(action, TerminateInstance) for action in made.actions)
    )
    if made.status is not None and made.status.state == "Terminated" != status.state:
        assert status.state in {"Launching", "Unknown"}
        assert mine
        assert isinstance(of.call.error, (Rejected, Unsupported)) or of.call.instance is not None


def a_doubt_is_left_by_a_sight_an_answer_or_sure_absence_only(of):
    made, status = plan(of), of.object.status
    if status.state == "Unknown" and state_after(made, of) != "Unknown":
        is_answered = of.call is not None and of.call.nonce == status.launching.nonce and of.call.instance is not None
        assert isinstance(of.observation, Observed) or is_answered or is_surely_absent(of)


def an_instance_that_is_known_is_given_up_only_for_one_that_is_seen_beside_it_or_when_it_is_gone(of):
    made, known = plan(of), of.object.status.instance_id
    if known and made.status is not None and made.status.instance_id != known:
        is_gone = is_surely_absent(of) and of.observation.is_gone
        assert is_gone or known in {row.id for row in shown(of)}


def who_nobody_wants_is_ended_whatever_else_is_seen(of):
    status = of.object.status
    if status.state not in {"Starting", "Running", "Terminating"} or termination_reason(of) is None:
        return
    made = plan(of)
    ended = {action.instance for action in made.actions if isinstance(action, TerminateInstance)}
    told_ended = {row.id for row in shown(of) if row.state == "ended"}
    is_gone = is_surely_absent(of) and of.observation.is_gone
    assert is_gone or status.instance_id in ended | told_ended | set(of.termination_requests)


def an_end_is_believed_only_where_it_is_confirmed(of):
    made, status = plan(of), of.object.status
    if status.state not in {"Starting", "Running", "Terminating"} or state_after(made, of) != "Terminated":
        return
    if isinstance(of.observation, NotObserved):
        assert is_surely_absent(of)
        assert of.observation.is_gone
        assert {row.state for row in of.observation.others} <= {"ended"}
    else:
        assert {row.state for row in of.observation.instances} == {"ended"}
        assert status.instance_id in {row.id for row in of.observation.instances}


def a_claim_is_let_go_only_when_its_end_is_written_and_nobody_needs_it(of):
    goes = [action for action in plan(of).actions if isinstance(action, (SetFinalizers, Delete))]
    if goes:
        assert of.object.status.state == "Terminated"
        assert of.owner is OwnerState.ABSENT or of.is_superseded
        assert {row.state for row in shown(of)} <= {"ended"}


def what_was_told_is_not_taken_back(of):
    made, before = plan(of), of.object.status
    if made.status is None:
        return
    if before.state == "Terminated":
        assert msgspec.structs.replace(made.status, conditions=(), observed_generation=0) == before
    assert before.exit in {None, made.status.exit}
    for told, shown in ((before.ready_time, made.status.ready_time), (before.start_time, made.status.start_time)):
        assert told in {None, shown}
    assert (made.status.usd_total is not None) == (made.status.state == "Terminated")
    if before.state in {"Running", "Terminating"}:
        assert made.status.state in {before.state, "Terminating", "Terminated"}


def only_instances_of_this_claim_are_ended(of):
    known = {of.object.status.instance_id}
    known |= {row.id for row in shown(of)}
    known |= {of.call.instance.id} if of.call is not None and of.call.instance is not None else set()
    assert {action.instance for action in plan(of).actions if isinstance(action, TerminateInstance)} <= known - {""}


def an_owner_that_cannot_be_asked_counts_as_one_that_is_there(of):
    there, unknown = (msgspec.structs.replace(of, owner=owner) for owner in (OwnerState.PRESENT, OwnerState.UNKNOWN))
    assert plan(there) == plan(unknown)


def every_status_is_one_that_the_api_server_takes(of):
    made = plan(of)
    if made.status is not None:
        assert msgspec.convert(msgspec.to_builtins(made.status), CloudInstanceStatus) == made.status


LAWS = (
    a_launch_writes_our_unused_ticket_and_needs_everybody_s_leave,
    a_ticket_is_written_only_where_it_is_certain_that_there_is_nothing,
    nobody_says_launching_without_the_call,
    what_is_not_seen_and_not_surely_absent_changes_nothing_by_itself,
    a_doubt_is_left_by_a_sight_an_answer_or_sure_absence_only,
    an_instance_that_is_known_is_given_up_only_for_one_that_is_seen_beside_it_or_when_it_is_gone,
    who_nobody_wants_is_ended_whatever_else_is_seen,
    an_end_is_believed_only_where_it_is_confirmed,
    a_claim_is_let_go_only_when_its_end_is_written_and_nobody_needs_it,
    what_was_told_is_not_taken_back,
    only_instances_of_this_claim_are_ended,
    an_owner_that_cannot_be_asked_counts_as_one_that_is_there,
    every_status_is_one_that_the_api_server_takes,
)


@settings(max_examples=1000)
@given(snapshots())
def test_no_law_is_ever_broken(of):
    for law in LAWS:
        law(of)


@settings(max_examples=300)
@given(snapshots())
def test_it_comes_to_rest(of):
    for _ in range(8):
        made = plan(of)
        after = carried_out(of, made)
        if after == of:
            assert made.actions == ()
            return
        of = after
    raise AssertionError(made)


def patched(facts: SpendingFacts, action: PatchStatus) -> SpendingFacts:
    """The account after a write of its status."""
    status = {**msgspec.to_builtins(facts.account.status), **action.fields}
    account = msgspec.structs.replace(facts.account, status=msgspec.convert(status, SpendAccountStatus))
    return msgspec.structs.replace(facts, account=account)


def carried_out(of: Snapshot, made) -> Snapshot:
    """The world as it is after this plan, with a cloud that does not move."""
    object_, changes = of.object, {}
    for action in made.actions:
        match action:
            case TerminateInstance():
                changes["termination_requests"] = {
                    **changes.get("termination_requests", of.termination_requests),
                    action.instance: of.now,
                }
            case PatchStatus():
                changes["spending"] = patched(of.spending, action)
            case LaunchInstance():
                object_ = msgspec.structs.replace(object_, status=action.status)
                changes |= {"call": CallResult(nonce=action.status.launching.nonce), "nonce": "another"}
            case Delete():
                metadata = msgspec.structs.replace(object_.metadata, deletion_timestamp=DELETING)
                object_ = msgspec.structs.replace(object_, metadata=metadata)
            case SetFinalizers():
                metadata = msgspec.structs.replace(object_.metadata, finalizers=action.finalizers)
                object_ = msgspec.structs.replace(object_, metadata=metadata)
    if made.status is not None:
        object_ = msgspec.structs.replace(object_, status=made.status)
    return msgspec.structs.replace(of, object=object_, **changes)
