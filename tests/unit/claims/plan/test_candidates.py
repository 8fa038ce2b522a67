"""Candidates of a claim: tried in order, one at a time, and never two instances at once."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skysail.base.names import Condition, Reason
from skysail.claims.plan.planner import plan
from skysail.claims.snapshot import CallResult, NotObserved, Observed, OwnerState
from skysail.claims.types import Candidate, CloudInstanceStatus, EarlierInstance, RefusedCandidate
from skysail.cloud.account import GpuRequest
from skysail.cloud.errors import MachineRejected, NoCapacity, OutcomeUnknown, Throttled
from skysail.core import conditions
from skysail.core.actions import LaunchInstance, PatchStatus, TerminateInstance
from tests.unit.claims.samples import (
    CLOUD,
    NOW,
    TERMS,
    ago,
    claim,
    exited,
    facts,
    instance,
    launch_spec,
    snapshot,
    spec,
)

NAMES = ("T4", "L4", "H100")
THREE = tuple(
    Candidate(gpu_type=name, region="eu", cloud_type="SECURE", usd_per_hour=price)
    for name, price in zip(NAMES, (0.5, 0.8, 4.0), strict=True)
)
SPEC = spec(candidates=THREE, nearest_miss="cloud B200 (eu) costs 6 USD/h, above the cap of 5", max_usd_per_hour=5.0)
LEAVING = msgspec.structs.replace(SPEC, may_leave=True)
DEAR = instance("i-1", "starting", usd_per_hour=9.0)
NEVER = NotObserved(listings=TERMS.absence_threshold, seconds=TERMS.visibility_delay + TERMS.create_timeout + 1)
GONE = NotObserved(listings=TERMS.absence_threshold, seconds=TERMS.visibility_delay + 1, is_gone=True)


def refused(*reasons: str, at: str | None = None) -> tuple[RefusedCandidate, ...]:
    return tuple(
        RefusedCandidate(candidate=index, reason=reason, message=f"No {NAMES[index]}.", at=at or ago(30))
        for index, reason in enumerate(reasons)
    )


def no_capacity(pause: float = 0.0) -> CallResult:
    return CallResult(nonce="mine", error=NoCapacity("None free."), failed=NOW, pause=timedelta(seconds=pause))


def launching(index: int, *reasons: str, of=SPEC):
    return claim("Launching", of=of, nonce="mine", candidate=index, refused_candidates=refused(*reasons))


def terminating(index: int = 0, of=SPEC, **status):
    """A claim whose dear instance i-1 is being terminated."""
    started = plan(
        snapshot(claim("Launching", of=of, nonce="mine", candidate=index, **status), observation=Observed((DEAR,)))
    )
    return msgspec.structs.replace(claim("Launching", of=of), status=started.status)


def launched(made) -> str:
    return conditions.find_condition(made.status.conditions, Condition.LAUNCHED).reason


@pytest.mark.parametrize("index", range(3))
def test_launch_candidate_chosen_sets_gpu_type_region_tier_and_cap(index):
    gpus = msgspec.structs.replace(launch_spec(), gpus=GpuRequest("", 2))
    (action,) = plan(snapshot(claim("Claimed", of=SPEC, candidate=index), launch_spec=gpus)).actions
    assert isinstance(action, LaunchInstance)
    assert action.launch_spec.gpus == GpuRequest(NAMES[index], 2)
    assert (action.launch_spec.region, action.launch_spec.cloud_type, action.launch_spec.max_usd_per_hour) == (
        "eu",
        "SECURE",
        5.0,
    )
    assert action.status.candidate == index


def test_launch_without_candidates_leaves_the_choice_to_the_cloud():
    (action,) = plan(snapshot(claim("Claimed"))).actions
    assert action.launch_spec == launch_spec()


@pytest.mark.parametrize("index", [0, 1])
def test_no_capacity_more_candidates_moves_to_the_next_at_once(index):
    made = plan(snapshot(launching(index, *["NoCapacity"] * index), call=no_capacity()))
    assert (made.status.state, made.status.candidate, made.requeue_after) == ("Claimed", index + 1, 0.0)
    assert [row.candidate for row in made.status.refused_candidates] == list(range(index + 1))
    assert (launched(made), made.events, made.actions) == (Reason.TRYING_NEXT_CANDIDATE, (), ())
    after = snapshot(msgspec.structs.replace(launching(0), status=made.status), call=no_capacity())
    (action,) = plan(after).actions
    assert action.launch_spec.cloud_type == "SECURE"
    assert action.status.candidate == index + 1


def test_no_capacity_last_candidate_waits_and_lists_all_refusals_with_the_nearest_miss():
    made = plan(snapshot(launching(2, "NoCapacity", "NoCapacity"), call=no_capacity(42.0)))
    assert (made.status.state, made.status.candidate, launched(made)) == ("Claimed", 0, Reason.NO_CAPACITY)
    (event,) = made.events
    assert (event.reason, event.warning) == (Reason.NO_CAPACITY, True)
    for words in ("T4 (SECURE, eu, 0.5 USD/h): No T4;", "No L4;", "None free.", "Nearest miss: cloud B200"):
        assert words in event.message
    waiting = snapshot(msgspec.structs.replace(launching(0), status=made.status), call=no_capacity(42.0))
    again = plan(waiting)
    assert [type(action) for action in again.actions] == [PatchStatus], "the reservation is released meanwhile"
    assert (again.requeue_after, again.status.state, again.status.reserved_usd) == (42.0, "Claimed", None)


def test_no_capacity_delay_over_starts_again_with_the_first_candidate_and_forgets_the_refusals():
    of = claim("Claimed", of=SPEC, refused_candidates=refused(*["NoCapacity"] * 3))
    (action,) = plan(snapshot(of)).actions
    assert (action.status.candidate, action.status.refused_candidates) == (0, ())


def test_no_capacity_last_candidate_of_a_pod_that_may_leave_ends_the_claim_unpaid():
    made = plan(snapshot(launching(2, "NoCapacity", "NoCapacity", of=LEAVING), call=no_capacity()))
    end = conditions.find_condition(made.status.conditions, Condition.TERMINATED)
    assert (made.status.state, made.status.usd_total, made.status.exit) == ("Terminated", 0.0, None)
    assert (end.status, end.reason) == ("True", Reason.NO_CAPACITY)
    assert "No L4" in end.message
    assert [event.reason for event in made.events] == [Reason.NO_CAPACITY]


def rejection() -> CallResult:
    return CallResult(nonce="mine", error=MachineRejected("The request is odd."), failed=NOW)


def test_request_rejected_for_one_candidate_is_sent_for_the_next():
    made = plan(snapshot(launching(0), call=rejection()))
    assert (made.status.state, made.status.candidate, made.events) == ("Claimed", 1, ())
    assert [row.reason for row in made.status.refused_candidates] == ["Rejected"]


@pytest.mark.parametrize("earlier", [("Rejected", "NoCapacity"), ("NoCapacity", "NoCapacity")])
def test_request_rejected_for_some_candidates_is_retried_later(earlier):
    made = plan(snapshot(launching(2, *earlier), call=rejection()))
    assert (made.status.state, made.status.candidate, launched(made)) == ("Claimed", 0, Reason.NO_CAPACITY)
    waited = msgspec.structs.replace(launching(0), status=made.status)
    assert isinstance(plan(snapshot(waited)).actions[-1], LaunchInstance), "no delay as after a dear instance"


def test_request_rejected_for_all_candidates_ends_the_claim():
    made = plan(snapshot(launching(2, "Rejected", "Rejected"), call=rejection()))
    end = conditions.find_condition(made.status.conditions, Condition.TERMINATED)
    assert (made.status.state, made.status.usd_total, end.reason) == ("Terminated", 0.0, Reason.REFUSED)
    assert [(event.reason, event.message) for event in made.events] == [(Reason.REFUSED, "The request is odd.")]


def test_request_rejected_for_many_candidates_is_not_sent_for_all_of_them():
    many = msgspec.structs.replace(SPEC, candidates=THREE * 10)
    rows = tuple(refused("Rejected")[0] for _ in range(7))
    rows = tuple(msgspec.structs.replace(row, candidate=index) for index, row in enumerate(rows))
    of = claim("Launching", of=many, nonce="mine", candidate=7, refused_candidates=rows)
    assert plan(snapshot(of, call=rejection())).status.state == "Terminated"
    of = claim("Launching", of=many, nonce="mine", candidate=6, refused_candidates=rows[:6])
    assert plan(snapshot(of, call=rejection())).status.candidate == 7
    leaving = msgspec.structs.replace(many, may_leave=True)
    of = claim("Launching", of=leaving, nonce="mine", candidate=7, refused_candidates=rows)
    made = plan(snapshot(of, call=rejection()))
    end = conditions.find_condition(made.status.conditions, Condition.TERMINATED)
    assert (made.status.state, end.reason) == ("Terminated", Reason.NO_CAPACITY)


def test_request_rejected_for_all_candidates_of_a_pod_that_may_leave_lets_it_leave():
    made = plan(snapshot(launching(2, "Rejected", "Rejected", of=LEAVING), call=rejection()))
    end = conditions.find_condition(made.status.conditions, Condition.TERMINATED)
    assert (made.status.state, end.reason) == ("Terminated", Reason.NO_CAPACITY)


def test_request_rejected_without_candidates_ends_the_claim():
    made = plan(snapshot(claim("Launching", nonce="mine"), call=rejection()))
    end = conditions.find_condition(made.status.conditions, Condition.TERMINATED)
    assert (made.status.state, end.reason) == ("Terminated", Reason.REFUSED)


def throttled(seconds: float) -> CallResult:
    pause = timedelta(seconds=seconds)
    return CallResult(nonce="mine", error=Throttled("No balance.", seconds), failed=NOW, pause=pause)


@pytest.mark.parametrize("whose", ["call", "throttled"])
def test_pod_that_may_leave_does_not_wait_for_a_cloud_that_asks_to_wait_long(whose):
    made = plan(snapshot(claim("Claimed", of=LEAVING), **{whose: throttled(300.0)}))
    end = conditions.find_condition(made.status.conditions, Condition.TERMINATED)
    assert (made.status.state, made.status.usd_total, end.reason) == ("Terminated", 0.0, Reason.NO_CAPACITY)
    assert end.message.startswith("No balance. The pod ends")


def test_pod_that_may_leave_does_not_wait_for_a_cloud_that_is_unreachable_and_asked_to_wait_long():
    made = plan(snapshot(claim("Claimed", of=LEAVING), throttled=throttled(300.0), outage="down"))
    assert made.status.state == "Terminated"


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        (Reason.POLICY_DENIED, {"spending": facts(claim("Claimed", of=LEAVING), policies=())}),
        (Reason.WAITING_FOR_NODE, {"launch_spec": None}),
        (Reason.PREVIOUS_INSTANCE_RUNNING, {"blocked_by": "The instance before it still runs."}),
    ],
)
def test_pod_that_may_leave_and_waits_for_something_else_stays_while_the_cloud_asks_to_wait_long(reason, fields):
    made = plan(snapshot(claim("Claimed", of=LEAVING), throttled=throttled(300.0), **fields))
    assert (made.status.state, launched(made)) == ("Claimed", reason)


@pytest.mark.parametrize(("of", "seconds"), [(LEAVING, 60.0), (SPEC, 300.0)])
def test_other_pods_wait_as_long_as_the_cloud_asks(of, seconds):
    made = plan(snapshot(claim("Claimed", of=of), throttled=throttled(seconds)))
    assert (made.status.state, launched(made), made.requeue_after) == ("Claimed", Reason.THROTTLED, seconds)


def test_claim_without_candidates_of_a_pod_that_may_leave_ends_unpaid_without_a_call():
    of = claim("Claimed", of=spec(may_leave=True, nearest_miss="cloud has no GPU B200."))
    made = plan(snapshot(of, outage="down"))
    assert (made.status.state, made.status.usd_total, made.actions) == ("Terminated", 0.0, ())
    assert "cloud has no GPU B200" in made.events[0].message


@pytest.mark.parametrize("error", [Throttled("slow", 5.0), OutcomeUnknown("lost")])
def test_other_errors_keep_the_candidate(error):
    made = plan(snapshot(launching(1, "NoCapacity"), call=CallResult(nonce="mine", error=error, failed=NOW)))
    assert (made.status.candidate, len(made.status.refused_candidates)) == (1, 1)


def test_unknown_outcome_resolved_as_absent_tries_the_same_candidate_again():
    of = claim("Unknown", of=SPEC, nonce="theirs", candidate=1, refused_candidates=refused("NoCapacity"))
    made = plan(snapshot(of, observation=NEVER))
    assert (made.status.state, made.status.candidate) == ("Claimed", 1)


@pytest.mark.parametrize(
    "known",
    [
        {"call": CallResult(nonce="mine", instance=DEAR)},
        {"observation": Observed((DEAR,))},
        {"observation": Observed((instance("i-1", "running", usd_per_hour=9.0),))},
    ],
)
@pytest.mark.parametrize("state", ["Launching", "Unknown"])
def test_price_above_cap_terminates_at_once_without_grace_and_hides_the_start(known, state):
    made = plan(snapshot(claim(state, of=SPEC, nonce="mine"), **known))
    assert made.actions == (TerminateInstance(CLOUD, "i-1", 0.0),)
    assert (made.status.state, made.status.instance_id, made.status.ready_time) == ("Terminating", "i-1", None)
    assert launched(made) == Reason.PRICE_ABOVE_CAP
    (event,) = made.events
    assert "Instance i-1 costs 9 USD/h, above the cap of 5" in event.message


def test_price_equal_to_the_cap_or_without_a_cap_is_accepted():
    at_cap = Observed((instance("i-1", "running", usd_per_hour=5.0),))
    assert plan(snapshot(claim("Launching", of=SPEC, nonce="mine"), observation=at_cap)).status.state == "Running"
    free = msgspec.structs.replace(SPEC, max_usd_per_hour=None)
    dear = Observed((instance("i-1", "running", usd_per_hour=9.0),))
    assert plan(snapshot(claim("Launching", of=free, nonce="mine"), observation=dear)).status.state == "Running"


def test_price_above_cap_of_a_program_that_has_exited_is_paid_and_its_result_is_used():
    done = Observed((instance("i-1", "running", usd_per_hour=9.0, exit=exited(3)),))
    made = plan(snapshot(claim("Unknown", of=SPEC, nonce="mine"), observation=done))
    assert (made.status.state, made.status.exit.code) == ("Terminating", 3)
    assert conditions.find_condition(made.status.conditions, Condition.TERMINATED).reason == Reason.COMPLETED


def test_price_known_late_and_above_cap_ends_a_running_program_and_the_claim():
    of = claim("Running", of=SPEC, ready_time=ago(30), usd_per_hour=None)
    made = plan(snapshot(of, observation=Observed((instance("i-1", "running", usd_per_hour=9.0),))))
    assert (made.status.state, made.status.ready_time) == ("Terminating", ago(30))
    over = plan(
        snapshot(
            msgspec.structs.replace(of, status=made.status),
            observation=Observed((instance("i-1", "ended", usd_per_hour=9.0),)),
        )
    )
    assert over.status.state == "Terminated"


@pytest.mark.parametrize("observation", [Observed((DEAR,)), NotObserved(), NEVER])
def test_dear_instance_not_confirmed_as_terminated_tries_no_other_candidate(observation):
    made = plan(snapshot(terminating(), observation=observation, termination_requests={"i-1": NOW}))
    assert made.actions == ()
    assert made.status is None or (made.status.state, made.status.candidate) == ("Terminating", 0)


@pytest.mark.parametrize(
    ("observation", "usd"),
    [
        (Observed((instance("i-1", "ended", usd_per_hour=9.0, usd_total=0.02),)), 0.02),
        (Observed((instance("i-1", "ended", usd_per_hour=9.0, usd_total=0.02, exit=exited(143)),)), 0.02),
        (GONE, 0.15),
    ],
)
def test_dear_instance_terminated_tries_the_next_candidate_and_keeps_its_cost(observation, usd):
    made = plan(snapshot(terminating(), observation=observation))
    status = made.status
    assert (status.state, status.candidate, status.instance_id, status.exit) == ("Claimed", 1, "", None)
    assert status.earlier_instances == (EarlierInstance(id="i-1", usd=usd),)
    assert [row.reason for row in status.refused_candidates] == ["PriceAboveCap"]
    assert conditions.find_condition(status.conditions, Condition.TERMINATED) is None
    after = msgspec.structs.replace(terminating(), status=status)
    (action,) = plan(
        snapshot(after, observation=observation if isinstance(observation, Observed) else NotObserved())
    ).actions
    assert isinstance(action, LaunchInstance)
    assert action.status.candidate == 1


def test_dear_instance_whose_program_succeeded_meanwhile_finishes_the_claim():
    done = Observed((instance("i-1", "ended", usd_per_hour=9.0, exit=exited(0)),))
    made = plan(snapshot(terminating(), observation=done))
    assert (made.status.state, made.status.exit.code) == ("Terminated", 0)


@pytest.mark.parametrize(
    ("exit_", "state"),
    [(None, "Claimed"), (exited(137), "Claimed"), (exited(3), "Terminated"), (exited(0), "Terminated")],
)
@pytest.mark.parametrize("before", ["Launching", "Unknown"])
def test_dear_instance_terminated_by_a_process_that_crashed_before_it_wrote_so(before, exit_, state):
    ended = Observed((instance("i-1", "ended", usd_per_hour=9.0, usd_total=0.02, exit=exit_),))
    made = plan(snapshot(claim(before, of=SPEC, nonce="theirs"), observation=ended))
    assert made.status.state == state
    assert [row.id for row in made.status.earlier_instances] == (["i-1"] if state == "Claimed" else [])


def test_dear_instance_of_a_deleted_pod_finishes_the_claim():
    ended = Observed((instance("i-1", "ended", usd_per_hour=9.0, usd_total=0.02),))
    made = plan(snapshot(terminating(), observation=ended, owner=OwnerState.ABSENT))
    assert (made.status.state, made.status.usd_total) == ("Terminated", 0.02)


def test_final_cost_includes_the_dear_instances():
    of = claim("Running", of=SPEC, earlier_instances=(EarlierInstance(id="i-0", usd=0.25),), instance_id="i-1")
    ended = Observed((instance("i-0", "ended", usd_total=0.25), instance("i-1", "ended", usd_total=1.0)))
    assert plan(snapshot(of, observation=ended)).status.usd_total == 1.25


def test_dear_instance_that_runs_again_is_terminated_before_the_next_launch():
    of = claim("Claimed", of=SPEC, candidate=1, earlier_instances=(EarlierInstance(id="i-1", usd=0.1),))
    made = plan(snapshot(of, observation=Observed((DEAR,))))
    assert (made.actions, made.status) == ((TerminateInstance(CLOUD, "i-1", 0.0),), None)
    running = claim("Running", of=SPEC, instance_id="i-2", earlier_instances=of.status.earlier_instances)
    made = plan(snapshot(running, observation=Observed((DEAR, instance("i-2", usd_per_hour=4.0)))))
    assert (made.actions, made.status.instance_id) == ((TerminateInstance(CLOUD, "i-1", 0.0),), "i-2")


@pytest.mark.parametrize(("earlier", "delay"), [(1, 300.0), (2, 600.0), (3, 1200.0), (20, 3600.0)])
def test_round_with_a_dear_instance_waits_longer_each_time_also_after_a_restart(earlier, delay):
    rows = tuple(EarlierInstance(id=f"i-{n}", usd=0.1) for n in range(earlier))
    reasons = ("NoCapacity", "PriceAboveCap", "NoCapacity")
    of = claim("Claimed", of=SPEC, refused_candidates=refused(*reasons, at=ago(0)), earlier_instances=rows)
    made = plan(snapshot(of))
    assert (made.actions, made.requeue_after, launched(made)) == ((), delay, Reason.NO_CAPACITY)
    assert plan(snapshot(of, now=NOW + timedelta(seconds=delay))).actions
    assert plan(snapshot(of, now=NOW - timedelta(days=1))).actions


def test_earlier_instances_at_their_limit_keep_their_cost():
    rows = tuple(EarlierInstance(id=f"e-{n}", usd=0.5) for n in range(64))
    made = plan(
        snapshot(
            terminating(earlier_instances=rows),
            observation=Observed((instance("i-1", "ended", usd_per_hour=9.0, usd_total=1.0),)),
        )
    )
    assert len(made.status.earlier_instances) == 64
    assert sum(row.usd for row in made.status.earlier_instances) == 33.0


ANSWERS = ("no capacity", "dear", "lost, done", "lost, not done", "throttled", "created")


class Cloud:
    """A cloud in a few lines: one answer for each create, and everything that it has created."""

    def __init__(self, answers: list[str]) -> None:
        self.answers = iter(answers)
        self.instances: dict[str, object] = {}
        self.creates: list[str] = []

    @property
    def alive(self) -> int:
        return sum(row.state != "ended" for row in self.instances.values())

    def create(self, nonce: str, gpu_type: str) -> CallResult:
        assert self.alive == 0, "two instances at once"
        self.creates.append(gpu_type)
        answer = next(self.answers, "created")
        call = CallResult(nonce=nonce, failed=NOW)
        if answer in {"no capacity", "throttled"}:
            error = NoCapacity("None.") if answer == "no capacity" else Throttled("slow", 0.0)
            return msgspec.structs.replace(call, error=error)
        if answer != "lost, not done":
            id_ = f"i-{len(self.instances) + 1}"
            price = 9.0 if answer == "dear" else 1.0
            self.instances[id_] = instance(id_, "starting", usd_per_hour=price, started=None)
        if answer.startswith("lost"):
            return msgspec.structs.replace(call, error=OutcomeUnknown("lost"))
        return msgspec.structs.replace(call, instance=self.instances[id_], failed=None)

    def terminate(self, id_: str) -> None:
        self.instances[id_] = msgspec.structs.replace(
            self.instances[id_], state="ended", ended=NOW.timestamp(), usd_total=0.1
        )


@settings(max_examples=300)
@given(st.lists(st.sampled_from(ANSWERS), max_size=9), st.lists(st.booleans(), max_size=60), st.booleans())
def test_candidates_any_answers_and_restarts_are_tried_in_order_and_one_at_a_time(answers, restarts, may_leave):
    cloud, of, call, now = Cloud(answers), claim(of=LEAVING if may_leave else SPEC), None, NOW
    forget, tickets, requests = iter(restarts), iter(range(10_000)), {}
    ticket = f"ticket-{next(tickets)}"
    for _ in range(120):
        shown = tuple(cloud.instances.values())
        now += timedelta(minutes=2)
        sight = Observed(shown) if shown else NEVER
        if shown and of.status.instance_id == "" and all(row.state == "ended" for row in shown):
            # As the tracker: terminated instances of refused candidates do not count.
            sight = NEVER
        made = plan(snapshot(of, observation=sight, call=call, now=now, nonce=ticket, termination_requests=requests))
        for action in made.actions:
            if isinstance(action, LaunchInstance):
                index = action.status.candidate
                tried = [row.candidate for row in action.status.refused_candidates]
                assert tried == list(range(index)), "candidates are tried in order"
                of = msgspec.structs.replace(of, status=action.status)
                call = cloud.create(action.status.launching.nonce, action.launch_spec.region and NAMES[index])
                ticket = f"ticket-{next(tickets)}"
            elif isinstance(action, TerminateInstance):
                cloud.terminate(action.instance)
        if made.status is not None:
            of = msgspec.structs.replace(of, status=made.status)
            assert msgspec.convert(msgspec.to_builtins(made.status), CloudInstanceStatus) == made.status
        if next(forget, False):
            call, requests, ticket = None, {}, f"ticket-{next(tickets)}"
        if of.status.state in {"Starting", "Running", "Terminated"}:
            break
    assert of.status.state in {"Starting", "Running", "Terminated"}
    if of.status.state == "Terminated":
        assert may_leave
        assert cloud.alive == 0
        assert of.status.usd_total == pytest.approx(0.1 * len(cloud.instances))
    else:
        assert cloud.alive == 1
        assert of.status.usd_per_hour == 1.0
