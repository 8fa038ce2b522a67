"""Conditions: one per type. lastTransitionTime changes only with the status."""

from __future__ import annotations

from skysail.kube.api.fields import Condition, Conditions


def set_condition(conditions: Conditions, new: Condition) -> Conditions:
    """Return the conditions with `new` added, or in the place of the old one of its type.

    The transition time of `new` must be the current time.
    """
    old = find_condition(conditions, new.type)
    if old is None:
        return (*conditions, new)
    if old.status == new.status:
        new = Condition(
            type=new.type,
            status=new.status,
            last_transition_time=old.last_transition_time,
            reason=new.reason,
            message=new.message,
            observed_generation=new.observed_generation,
        )
    return tuple(new if condition.type == new.type else condition for condition in conditions)


def find_condition(conditions: Conditions, type_: str) -> Condition | None:
    return next((condition for condition in conditions if condition.type == type_), None)
