from __future__ import annotations

from decimal import Decimal

import pytest

from skysail.kube.api import quantities


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", "1"),
        (2, "2"),
        ("250m", "0.25"),
        ("1.5", "1.5"),
        ("1k", "1000"),
        ("1Ki", "1024"),
        ("2Gi", "2147483648"),
        ("3G", "3000000000"),
        ("1e3", "1000"),
        ("100u", "0.0001"),
        ("5n", "0.000000005"),
        ("1Ei", str(2**60)),
    ],
)
def test_a_quantity_is_a_number(text, value):
    assert quantities.parse(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "Gi", "one", "1GiB", "--1"])
def test_what_is_no_quantity_is_refused(text):
    with pytest.raises(ValueError, match="is not a quantity"):
        quantities.parse(text)


@pytest.mark.parametrize(
    ("quantity", "divisor", "units"), [("1500m", "0", 2), ("1Gi", "1Mi", 1024), ("100m", "1m", 100), ("1", "1", 1)]
)
def test_the_downward_api_rounds_up(quantity, divisor, units):
    assert quantities.in_units(quantity, divisor) == units


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0"),
        (1, "1"),
        (1000, "1k"),
        (1024, "1Ki"),
        (1536, "1536"),
        (2**20, "1Mi"),
        (10**9, "1G"),
        (3 * 2**30, "3Gi"),
    ],
)
def test_bytes_are_written_with_the_largest_unit_that_fits(amount, text):
    assert quantities.in_bytes(amount) == text
    assert quantities.parse(text) == amount
