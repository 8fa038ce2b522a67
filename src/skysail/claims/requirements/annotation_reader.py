"""Reads values of annotations: strict syntax, defaults with a warning, errors with the fix. Pure.

Values come from tenants. A value is either matched as a whole by a pattern, or reported and not used. Messages show at
most the first characters of a value, escaped; values of variables and commands are never shown, because they may hold
secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

from skysail.claims.requirements.types import Warned
from skysail.kube.api import quantities

_MAX_SHOWN = 40
_INTEGER = re.compile(r"[0-9]{1,9}")
_DOLLARS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")
_QUANTITY = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?(m|k|M|G|T|Ki|Mi|Gi|Ti)?")


class AnnotationReader:
    """Annotations and labels of one object, with the errors and warnings that reading them has caused."""

    def __init__(self, annotations: Mapping[str, str], labels: Mapping[str, str]) -> None:
        self._annotations = annotations
        self._labels = labels
        self.errors: list[str] = []
        self.warnings: list[Warned] = []

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._annotations))

    def text(self, name: str) -> str | None:
        """Return the value of an annotation, or None if it is absent."""
        return self._annotations.get(name)

    def text_or_label(self, name: str) -> str | None:
        """Return the value of an annotation, else of the label with this name."""
        return self._annotations.get(name, self._labels.get(name))

    def is_true(self, name: str, *, or_label: bool = False) -> bool:
        """Return whether the value is `true`. Other values count as false, with a warning unless they mean false."""
        value = self.text_or_label(name) if or_label else self.text(name)
        if value is None or value in {"", "false", "False"}:
            return False
        if value in {"true", "True"}:
            return True
        self.warn(name, f"{shown(value)} is neither true nor false and counts as false.")
        return False

    def integer(self, name: str, *, default: int, least: int, most: int) -> int | None:
        """Return the number, None if the annotation is absent, or the default with a warning if it is malformed."""
        value = self.text(name)
        if value is None:
            return None
        if _INTEGER.fullmatch(value) and least <= int(value) <= most:
            return int(value)
        self.warn(name, f"{shown(value)} is no whole number from {least} to {most}; the default {default} is used.")
        return default

    def quantity(self, name: str, *, default: str, least: str, most: str) -> Decimal | None:
        """Return the quantity, None if the annotation is absent, or the default with a warning if it is malformed."""
        value = self.text(name)
        if value is None:
            return None
        if _QUANTITY.fullmatch(value) and quantities.parse(least) <= quantities.parse(value) <= quantities.parse(most):
            return quantities.parse(value)
        self.warn(name, f"{shown(value)} is no quantity from {least} to {most}; the default {default} is used.")
        return quantities.parse(default)

    def dollars(self, name: str) -> float | None:
        """Return an amount of US dollars above 0, or None. A malformed amount is an error."""
        value = self.text(name)
        if value is None:
            return None
        if _DOLLARS.fullmatch(value) and float(value) > 0:
            return float(value)
        self.fail(name, f"{shown(value)} is no amount of US dollars above 0. Write a number such as 0.5.")
        return None

    def matching(self, name: str, pattern: str, expected: str) -> str | None:
        """Return a value that the pattern matches as a whole, or None. Another value is an error."""
        value = self.text(name)
        if value is None or re.fullmatch(pattern, value, re.ASCII):
            return value
        self.fail(name, f"{shown(value)} is not {expected}. Change or remove it.")
        return None

    def items(self, name: str, pattern: str, expected: str) -> tuple[str, ...]:
        """Return a list that is separated by commas, without repetitions. A malformed item is an error."""
        value = self.text(name)
        if value is None:
            return ()
        found = tuple(dict.fromkeys(item.strip(" ") for item in value.split(",")))
        if all(re.fullmatch(pattern, item, re.ASCII) for item in found):
            return found
        self.fail(name, f"{shown(value)} is not a list of {expected}, separated by commas. Change or remove it.")
        return ()

    def warn(self, name: str, problem: str) -> None:
        warned = Warned(name, f"{self._path(name)}: {problem}")
        if warned not in self.warnings:
            self.warnings.append(warned)

    def fail(self, name: str, problem: str) -> None:
        self.errors.append(f"{self._path(name)}: {problem}")

    def _path(self, name: str) -> str:
        is_label = name in self._labels and name not in self._annotations
        return f"metadata.{'labels' if is_label else 'annotations'}[{name}]"


def shown(value: str) -> str:
    """Return the beginning of a value in quotes, with control characters escaped."""
    return repr(value) if len(value) <= _MAX_SHOWN else f"{value[:_MAX_SHOWN]!r}..."
