"""What a user asks of a simulated cloud, by the container's environment: `SKYSAIL_SIMULATE=start=20s,exit=37`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from skysail.cloud.errors import Rejected
from skysail.cloud.provider import Container
from skysail.cloud.simulated.faults import FAULTS_BY_OPERATION, FaultKind

VARIABLE = "SKYSAIL_SIMULATE"
# So short that neither becomes infinite, which JSON cannot say.
_SECONDS = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)")
_DOLLARS = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?")
_NUMBER = re.compile(r"[0-9]{1,3}")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class SimulationOptions(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    """Times in seconds. None: as the vendor does it.

    `start`, `lag` and `run` as in `Vendor`; `run` and `exit` count only where programs are pretended. `preempt`: so
    long after the start the cloud takes it away. `hidden`: so long the cloud denies that it exists, whoever asks.
    `end`: so long its end takes. `no-capacity`: the first so many creates for this pod are turned away.
    `no-capacity-types`: creates with one of these GPU types are turned away. `create`: this befalls the first one.
    """

    start: float | None = None
    run: float | None = None
    exit: int = 0
    preempt: float | None = None
    lag: float | None = None
    hidden: float = 0.0
    end: float = 0.0
    usd: float | None = None
    no_capacity: int = 0
    no_capacity_types: tuple[str, ...] = ()
    create: FaultKind = "nothing"


def from_container(container: Container) -> SimulationOptions:
    """`Rejected` where they cannot be understood."""
    text = dict(container.env).get(VARIABLE, "")
    try:
        return parse(text)
    except ValueError as error:
        raise Rejected("InvalidSimulation", f"{VARIABLE}={text!r} is not understood: {error}.") from error


def parse(text: str) -> SimulationOptions:
    """Raises ValueError with what is wrong."""
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
        raise ValueError(f"{name} wants a time such as 500ms, 20s, 5m or 1h, not {value!r}")
    return float(match[1]) * _UNITS[match[2]]


def _number(name: str, value: str) -> int:
    if not _NUMBER.fullmatch(value) or int(value) > 255:  # noqa: PLR2004 (the largest exit code)
        raise ValueError(f"{name} wants a number from 0 to 255, not {value!r}")
    return int(value)


def _dollars(name: str, value: str) -> float:
    if not _DOLLARS.fullmatch(value):
        raise ValueError(f"{name} wants US dollars an hour such as 1.25, not {value!r}")
    return float(value)


def _types(name: str, value: str) -> list[str]:
    types = [part.strip() for part in value.split("+")]
    if not all(types):
        raise ValueError(f"{name} wants GPU types such as T4+L4, not {value!r}")
    return types


def _fault(name: str, value: str) -> str:
    if value not in FAULTS_BY_OPERATION["create"]:
        raise ValueError(f"{name} wants one of {', '.join(FAULTS_BY_OPERATION['create'])}, not {value!r}")
    return value


_READERS: dict[str, Callable[[str, str], Any]] = {
    "start": _seconds,
    "run": _seconds,
    "exit": _number,
    "preempt": _seconds,
    "lag": _seconds,
    "hidden": _seconds,
    "end": _seconds,
    "usd": _dollars,
    "no-capacity": _number,
    "no-capacity-types": _types,
    "create": _fault,
}
