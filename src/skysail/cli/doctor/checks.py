"""Types of a check of `skysail doctor`. Pure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from skysail.cli import text_table

# Exit codes of the command. 2 is that of a wrong or missing setting, as for every command.
FAILED = 1
NOT_CONFIGURED = 2


class Outcome(StrEnum):
    """Outcome of a check.

    `skipped`: an earlier failure makes the check pointless, or a flag switches it on.
    `missing`: a setting that the part cannot do without, such as credentials, is missing.
    """

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    MISSING = "missing"
    SKIPPED = "skipped"


class Check(msgspec.Struct, frozen=True):
    """One check: its name, its outcome, and a sentence. The sentence of a failure contains the fix."""

    name: str
    outcome: Outcome
    message: str = ""


class DoctorContext(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that every part may use.

    `environment`: variables of the process and of `.env`. `is_paid`: the user allows checks that cost money.
    """

    environment: Mapping[str, str]
    operator_namespace: str = "skysail-system"
    kubeconfig: Path | None = None
    context: str | None = None
    is_paid: bool = False


class Part(msgspec.Struct, frozen=True):
    """One part of the product. `checks` yields the checks in order, each as soon as its outcome is known."""

    name: str
    title: str
    checks: Callable[[DoctorContext], AsyncIterator[Check]]


class PartReport(msgspec.Struct, frozen=True):
    part: str
    checks: tuple[Check, ...]


def exit_code(reports: Iterable[PartReport]) -> int:
    """Return 1 if a check failed, else 2 if a setting is missing, else 0."""
    outcomes = {check.outcome for report in reports for check in report.checks}
    if Outcome.FAILED in outcomes:
        return FAILED
    return NOT_CONFIGURED if Outcome.MISSING in outcomes else 0


def problem_names(reports: Iterable[PartReport]) -> list[str]:
    """Return `part/check` of each check that found something to do."""
    quiet = {Outcome.OK, Outcome.SKIPPED}
    return [
        f"{report.part}/{check.name}" for report in reports for check in report.checks if check.outcome not in quiet
    ]


def render(reports: Iterable[PartReport]) -> list[str]:
    """Return the lines of a table with one row per check."""
    rows = [
        (report.part, check.name, check.outcome.value, check.message) for report in reports for check in report.checks
    ]
    return text_table.render(("PART", "CHECK", "OUTCOME", "MESSAGE"), rows)
