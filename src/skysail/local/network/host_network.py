"""Administrator's setting for pods with `hostNetwork`, which share the network of the whole local cluster."""

from __future__ import annotations

from collections.abc import Mapping

from skysail.local.errors import Misused

SETTING = "SKYSAIL_ALLOWED_HOST_NETWORK"
_VALUES = {"true": True, "1": True, "false": False, "0": False, "": False}


def is_allowed(env: Mapping[str, str]) -> bool:
    """Return the setting. Raises Misused if it is neither true nor false."""
    value = env.get(SETTING, "")
    if value.lower() not in _VALUES:
        raise Misused(f"{SETTING} must be true or false, not {value!r}.")
    return _VALUES[value.lower()]
