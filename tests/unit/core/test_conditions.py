from skysail.core import conditions
from skysail.kube.api.fields import Condition


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
    assert conditions.set_condition((other,), condition()) == (other, condition())


def test_the_transition_time_stays_while_the_status_stays():
    new = condition(reason="StillWaiting", last_transition_time="2026-02-02T00:00:00Z", observed_generation=3)
    (result,) = conditions.set_condition((condition(),), new)
    assert result == condition(reason="StillWaiting", observed_generation=3)


def test_the_transition_time_moves_with_the_status():
    new = condition(status="True", last_transition_time="2026-02-02T00:00:00Z")
    assert conditions.set_condition((condition(), condition(type="Z")), new) == (new, condition(type="Z"))


def test_what_is_not_there_is_none():
    assert conditions.find_condition((condition(),), "Other") is None
    assert conditions.find_condition((condition(),), "Ready") == condition()
