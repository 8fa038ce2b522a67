"""Merge patches (RFC 7396) and JSON patches (RFC 6902: add, remove, replace, test)."""

from __future__ import annotations

from typing import Any

from tests.simulation.statuses import Refusal


def merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def edit(document: Any, operations: list[dict[str, Any]]) -> Any:
    """Apply a JSON patch to a document that the caller does not mind losing."""
    for operation in operations:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        place = document
        try:
            for part in parents:
                place = place[int(part)] if isinstance(place, list) else place[part]
            _perform(place, last, operation)
        except (KeyError, IndexError, ValueError) as error:
            raise _rejected() from error
    return document


def _perform(place: Any, last: str, operation: dict[str, Any]) -> None:
    key: Any = last
    if isinstance(place, list):
        key = len(place) if last == "-" else int(last)
    current = None if operation["op"] == "add" else place[key]
    match operation["op"]:
        case "add" if isinstance(place, list):
            place.insert(key, operation["value"])
        case "add" | "replace":
            place[key] = operation["value"]
        case "remove":
            del place[key]
        case "test" if current == operation["value"]:
            pass
        case _:
            raise _rejected()


def _rejected() -> Refusal:
    return Refusal(422, "Invalid", "the server rejected our request due to an error in our request")
