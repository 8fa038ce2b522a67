"""Options of a simulated cloud in the container's environment: `SKYSAIL_SIMULATE=start=20s,exit=37`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from skysail.cloud.errors import Rejected
from skysail.cloud.provider import Container
from skysail.cloud.simulated.faults import FAULTS_BY_OPERATION, FaultKind

VARIABLE = "SKYSAIL_SIMULATE"
# Few digits, so that no value becomes infinite, which JSON cannot represent.
_SECONDS = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)")
_DOLLARS = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?")
_NUMBER = re.compile(r"[0-9]{1,3}")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class SimulationOptions(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    """Options of one instance. Times are in seconds. None: the vendor's value.

    `start`, `lag` and `run` as in `Vendor`; `run`, `exit` and `fail-rank`, the only rank of a gang that
    exits with `exit`, apply to fake programs only. `preempt`: the cloud preempts
    the instance this long after its start. `hidden`: listings and lookups do not show the instance this long. `end`:
    duration of its termination. `no-capacity`: number of create calls for this pod that find no capacity.
    `no-capacity-types`: create calls with one of these GPU types find no capacity. `create`: fault of the first create
    call after these.
    """

    start: float | None = None
    run: float | None = None
    exit: int = 0
    fail_rank: int | None = None
    preempt: float | None = None
    lag: float | None = None
    hidden: float = 0.0
    end: float = 0.0
    usd: float | None = None
    no_capacity: int = 0
    no_capacity_types: tuple[str, ...] = ()
    create: FaultKind = "nothing"


def from_container(container: Container) -> SimulationOptions:
    """Return the options of a container. Raises `Rejected` if they are invalid."""
    text = dict(container.env).get(VARIABLE, "")
    try:
        return parse(text)
    except ValueError as error:
        raise Rejected("InvalidSimulation", f"{VARIABLE}={text!r} is invalid: {error}.") from error


def parse(text: str) -> SimulationOptions:
    """Parse options. Raises ValueError with the invalid part."""
    given: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or name not in _READERS:
            raise ValueError(f"{part!r} is not one of {', '.join(f'{known}=…' for known in _READERS)}")
        given[name] = _READERS[name](name, value)
    return msgspec.convert(given, SimulationOptions)


def _seconds(name: str, value: str) -> float:
    match = _SECONDS.fullmatch(value)
    if not match:
        raise ValueError(f"{name} must be a time such as 500ms, 20s, 5m or 1h, not {value!r}")
    return float(match[1]) * _UNITS[match[2]]


def _number(name: str, value: str) -> int:
    if not _NUMBER.fullmatch(value) or int(value) > 255:  # noqa: PLR2004 (the largest exit code)
        raise ValueError(f"{name} must be a number from 0 to 255, not {value!r}")
    return int(value)


def _dollars(name: str, value: str) -> float:
    if not _DOLLARS.fullmatch(value):
        raise ValueError(f"{name} must be US dollars per hour such as 1.25, not {value!r}")
    return float(value)


def _types(name: str, value: str) -> list[str]:
    types = [part.strip() for part in value.split("+")]
    if not all(types):
        raise ValueError(f"{name} wants GPU types such as T4+L4, not {value!r}")
    return types


def _fault(name: str, value: str) -> str:
    if value not in FAULTS_BY_OPERATION["create"]:
        raise ValueError(f"{name} must be one of {', '.join(FAULTS_BY_OPERATION['create'])}, not {value!r}")
    return value


_READERS: dict[str, Callable[[str, str], Any]] = {
    "start": _seconds,
    "run": _seconds,
    "exit": _number,
    "fail-rank": _number,
    "preempt": _seconds,
    "lag": _seconds,
    "hidden": _seconds,
    "end": _seconds,
    "usd": _dollars,
    "no-capacity": _number,
    "no-capacity-types": _types,
    "create": _fault,
}
