from datetime import UTC, datetime

import msgspec

from skysail.core import conditions
from skysail.kube.api.fields import Condition, Conditions
from skysail.kube.api.objects import Meta, Object


class Status(msgspec.Struct, frozen=True):
    conditions: Conditions = ()
    observed_generation: int = 0


class Snapshot(msgspec.Struct, frozen=True):
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    object: Object = Object(Meta(name="a", generation=7))


def condition(**changes) -> Condition:
    values = {
        "type": "Ready",
        "status": "False",
        "last_transition_time": "2026-01-01T00:00:00Z",
        "reason": "Waiting",
        "message": "It waits.",
    }
    return Condition(**{**values, **changes})


def test_a_new_condition_is_added_at_the_end():
    other = condition(type="Accepted")
    assert conditions.replace_condition((other,), condition()) == (other, condition())


def test_the_transition_time_stays_while_the_status_stays():
    new = condition(reason="StillWaiting", last_transition_time="2026-02-02T00:00:00Z", observed_generation=3)
    (result,) = conditions.replace_condition((condition(),), new)
    assert result == condition(reason="StillWaiting", observed_generation=3)


def test_the_transition_time_moves_with_the_status():
    new = condition(status="True", last_transition_time="2026-02-02T00:00:00Z")
    assert conditions.replace_condition((condition(), condition(type="Z")), new) == (new, condition(type="Z"))


def test_what_is_not_there_is_none():
    assert conditions.find_condition((condition(),), "Other") is None
    assert conditions.find_condition((condition(),), "Ready") == condition()


def test_set_condition_writes_generation_and_time_of_the_snapshot():
    status = conditions.set_condition(Snapshot(), Status(), "Ready", "False", "Waiting", "It waits.")
    assert status == Status(conditions=(condition(observed_generation=7),), observed_generation=7)


def test_set_condition_same_status_keeps_transition_time():
    status = conditions.set_condition(Snapshot(), Status(), "Ready", "False", "Waiting", "It waits.")
    later = Snapshot(now=datetime(2026, 2, 2, tzinfo=UTC))
    assert conditions.set_condition(later, status, "Ready", "False", "Waiting", "It waits.") == status


def test_set_condition_long_message_is_truncated():
    long = "x" * 5000
    (written,) = conditions.set_condition(Snapshot(), Status(), "Ready", "True", "Served", long).conditions
    assert written.message == long[: conditions.MAX_MESSAGE_LENGTH]


def test_condition_state_returns_status_and_reason_or_empty_strings():
    status = Status(conditions=(condition(),))
    assert conditions.condition_state(status, "Ready") == ("False", "Waiting")
    assert conditions.condition_state(status, "Other") == ("", "")
