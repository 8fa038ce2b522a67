"""Longest time that an instance may run at a cloud, in seconds."""

from __future__ import annotations

from collections.abc import Mapping

_DAY = 24 * 3600.0

# Modal ends a sandbox after a day. RunPod has no limit of its own, so this is ours.
MAX_LIFETIMES: Mapping[str, float] = {"modal": _DAY, "runpod": 30 * _DAY}
# Limit at simulated clouds, and at clouds that are not listed above.
DEFAULT_MAX_LIFETIME = _DAY
