"""Shorter forms of a pod's status, for one that does not fit into what the API server stores. Pure.

Pod and status are stored together, so only the API server can tell whether they fit. A shorter form is a function of
the status and of its `brevity`, so the same status is written once, and not again.
"""

from __future__ import annotations

from typing import Any

from skysail.kube.client.errors import ApiError

# 0 is the whole status; 1 has short messages, 2 no messages; 3 has no rows of containers.
MAX_BREVITY = 3
_SHORT = 200
_ROWS = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
_TOO_LARGE = 413
# Of etcd, and of the API server's connection to it.
_SIGNS = ("too large", "larger than max")

Json = dict[str, Any]


def is_too_large(error: ApiError) -> bool:
    """Whether the API server rejects a write for its size alone."""
    return error.status == _TOO_LARGE or any(sign in error.message for sign in _SIGNS)


def shortened(status: Json, brevity: int) -> Json:
    if brevity == 0:
        return status
    found = {name: _without_messages(part, _SHORT if brevity == 1 else 0) for name, part in status.items()}
    return found | ({key: [] for key in _ROWS} if brevity >= MAX_BREVITY else {})


def _without_messages(part: Any, longest: int) -> Any:
    if isinstance(part, list):
        return [_without_messages(row, longest) for row in part]
    if not isinstance(part, dict):
        return part
    found = {name: _without_messages(value, longest) for name, value in part.items()}
    if isinstance(found.get("message"), str):
        found["message"] = found["message"][:longest]
    return found
