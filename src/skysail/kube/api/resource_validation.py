"""Validation of compute resources beyond the schema. Errors name field, value and fix. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from skysail.kube.api import quantities
from skysail.kube.api.fields import Quantity, ResourceRequirements

# Reject quantities with more digits before or after the decimal point: none is realistic, and numbers stay small.
_MAX_DIGITS = 30
_KUBERNETES = "kubernetes.io"


def validate(where: str, resources: ResourceRequirements) -> Iterator[str]:
    """Yield a validation error for each invalid amount. `where` is the path of the field."""
    for kind, amounts in (("limits", resources.limits), ("requests", resources.requests)):
        for name, amount in sorted(amounts.items()):
            if parse_quantity(amount) is None:
                yield f"{where}.{kind} has {name}: {amount}, which is not a quantity: write 500m, 2 or 4Gi."
    for name, request in sorted(resources.requests.items()):
        yield from _against_limit(where, name, request, resources.limits.get(name))


def is_extended_resource(resource: str) -> bool:
    """Return whether it is an extended resource such as a GPU, whose request and limit must be equal."""
    domain, found, _ = resource.partition("/")
    return bool(found) and domain != _KUBERNETES and not domain.endswith(f".{_KUBERNETES}")


def parse_quantity(quantity: Quantity | None) -> Decimal | None:
    """Parse a quantity. Returns None if it is missing or invalid."""
    try:
        found = None if quantity is None else quantities.parse(quantity)
    except ValueError:
        return None
    return None if found is None or abs(found.adjusted()) > _MAX_DIGITS else found


def _against_limit(where: str, name: str, request: Quantity, limit: Quantity | None) -> Iterator[str]:
    requested, allowed = parse_quantity(request), parse_quantity(limit)
    if requested is None or allowed is None or requested == allowed:
        return
    if requested > allowed:
        yield (
            f"{where}.requests has {name}: {request}, which is above its limit of {limit}: lower the request or raise "
            "the limit."
        )
    elif is_extended_resource(name):
        yield (
            f"{where} has {name}: {request} as request and {limit} as limit: make them equal, because devices are "
            "not shared."
        )
