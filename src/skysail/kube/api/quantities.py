"""Conversion of Kubernetes quantities to numbers: `250m` is 0.25, `1Gi` is 1073741824."""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation

_FACTORS = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    **{prefix + "i": Decimal(1024 ** (power + 1)) for power, prefix in enumerate("KMGTPE")},
}


def parse(quantity: str | float) -> Decimal:
    """Parse a quantity. Raises ValueError if the value is not a quantity."""
    text = str(quantity).strip()
    for length in (2, 1):
        factor = _FACTORS.get(text[-length:])
        if factor is not None:
            return _number(text[:-length], text) * factor
    return _number(text, text)


def in_units(quantity: str | float, divisor: str | float) -> int:
    """Divide a quantity by a divisor and round up, as the downward API does. A divisor of 0 means 1."""
    unit = parse(divisor) or Decimal(1)
    return math.ceil(parse(quantity) / unit)


def in_bytes(amount: int) -> str:
    """Return a number of bytes as Kubernetes writes it: with the largest unit that divides the number."""
    for base, units in ((1024, ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki")), (1000, ("E", "P", "T", "G", "M", "k"))):
        for power, unit in enumerate(units):
            size = base ** (len(units) - power)
            if amount and amount % size == 0:
                return f"{amount // size}{unit}"
    return str(amount)


def _number(text: str, whole: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation as error:
        raise ValueError(f"{whole!r} is not a quantity.") from error
