"""Shorter forms of a pod's status, for a pod that is too large for the API server. Pure.

Spec and status are stored together, so only the API server knows whether they fit. The shorter form depends only on the
status and on `brevity`, so that the same status is written only once.
"""

from __future__ import annotations

from typing import Any

from skysail.kube.client.errors import ApiError

# 0: full status; 1: short messages; 2: no messages; 3: no container statuses.
MAX_BREVITY = 3
_SHORT = 200
_ROWS = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
_TOO_LARGE = 413
# Messages of etcd, and of the API server's connection to it.
_SIGNS = ("too large", "larger than max")

Json = dict[str, Any]


def is_too_large(error: ApiError) -> bool:
    """Return whether the API server rejects a write because of its size."""
    return error.status == _TOO_LARGE or any(sign in error.message for sign in _SIGNS)


def shortened(status: Json, brevity: int) -> Json:
    if brevity == 0:
        return status
    found = {name: _without_messages(part, _SHORT if brevity == 1 else 0) for name, part in status.items()}
    return found | ({key: [] for key in _ROWS} if brevity >= MAX_BREVITY else {})


def _without_messages(part: Any, max_length: int) -> Any:
    if isinstance(part, list):
        return [_without_messages(row, max_length) for row in part]
    if not isinstance(part, dict):
        return part
    found = {name: _without_messages(value, max_length) for name, value in part.items()}
    if isinstance(found.get("message"), str):
        found["message"] = found["message"][:max_length]
    return found
