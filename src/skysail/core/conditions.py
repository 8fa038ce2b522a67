"""Conditions of a status: one per type. lastTransitionTime changes only with the status. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from skysail.base.timestamps import timestamp
from skysail.kube.api.fields import Condition, Conditions
from skysail.kube.api.objects import Object

Value = Literal["True", "False", "Unknown"]

MAX_MESSAGE_LENGTH = 4096


class Snapshot(Protocol):
    """Part of a snapshot that a condition refers to: the object and the current time."""

    @property
    def object(self) -> Object: ...

    @property
    def now(self) -> datetime: ...


class Status(Protocol):
    """Status of any kind."""

    @property
    def conditions(self) -> Conditions: ...


S = TypeVar("S", bound=Status)


def set_condition(snapshot: Snapshot, status: S, type_: str, value: Value, reason: str, message: str) -> S:
    """Return the status with this condition added or replaced, and with the generation of the object."""
    generation = snapshot.object.metadata.generation
    new = Condition(
        type=type_,
        status=value,
        last_transition_time=timestamp(snapshot.now),
        reason=reason,
        message=message[:MAX_MESSAGE_LENGTH],
        observed_generation=generation,
    )
    struct: Any = status
    replaced: S = msgspec.structs.replace(
        struct, conditions=replace_condition(status.conditions, new), observed_generation=generation
    )
    return replaced


def replace_condition(conditions: Conditions, new: Condition) -> Conditions:
    """Return the conditions with `new` added, or in the place of the old one of its type.

    The transition time of `new` must be the current time.
    """
    old = find_condition(conditions, new.type)
    if old is None:
        return (*conditions, new)
    if old.status == new.status:
        new = msgspec.structs.replace(new, last_transition_time=old.last_transition_time)
    return tuple(new if condition.type == new.type else condition for condition in conditions)


def find_condition(conditions: Conditions, type_: str) -> Condition | None:
    return next((condition for condition in conditions if condition.type == type_), None)


def condition_state(status: Status, type_: str) -> tuple[str, str]:
    """Return status and reason of a condition; both are empty if the condition is missing."""
    condition = find_condition(status.conditions, type_)
    return (condition.status, condition.reason) if condition is not None else ("", "")
