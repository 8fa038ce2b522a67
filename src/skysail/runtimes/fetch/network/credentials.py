"""Keys of the user's Secret, passed to the pod with a prefix that no program interprets. Pure.

Without the prefix a Secret could set a proxy, a preloaded library or a module path (`HTTPS_PROXY`, `LD_PRELOAD`,
`PYTHONPATH`), and so bypass the egress policy.
"""

from __future__ import annotations

from collections.abc import Mapping

PREFIX = "SKYSAIL_SECRET_"


def from_env(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the keys by their names in the Secret. Trailing newlines, which editors add, are removed."""
    ours = {name.removeprefix(PREFIX): value for name, value in environment.items() if name.startswith(PREFIX)}
    return {name: value.rstrip("\r\n") for name, value in ours.items()}


def without(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the keys, for a program that must not get them."""
    return {name: value for name, value in environment.items() if not name.startswith(PREFIX)}
