"""Marks of our pods at RunPod, which has no tags: the name and three variables of a pod carry them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

CLUSTER = "SKYSAIL_CLUSTER"
CLAIM = "SKYSAIL_CLAIM"
NONCE = "SKYSAIL_NONCE"
LIFETIME = "SKYSAIL_LIFETIME"
NAMES = (CLUSTER, CLAIM, NONCE, LIFETIME)
# Prefix of registry credentials that Skysail creates. Others are never touched.
REGISTRY_PREFIX = "skysail"
_MAX_NAME_LENGTH = 60
_SHORT = 8


class Mark(NamedTuple):
    """Mark of a pod. All fields are empty for a foreign pod."""

    cluster: str = ""
    claim: str = ""
    nonce: str = ""


def of_env(env: Mapping[str, str] | None) -> Mark:
    """Read the mark of a pod. A pod that lacks one of the variables is foreign."""
    found = Mark(*((env or {}).get(name, "") for name in (CLUSTER, CLAIM, NONCE)))
    return found if all(found) else Mark()


def env(mark: Mark, lifetime: float) -> dict[str, str]:
    return {CLUSTER: mark.cluster, CLAIM: mark.claim, NONCE: mark.nonce, LIFETIME: f"{lifetime:.0f}"}


def pod_name(cluster: str, claim: str) -> str:
    """Return the name of a pod: for people who look at RunPod's console, and for a search after a lost answer."""
    return f"skysail-{cluster[:_SHORT]}-{claim}"[:_MAX_NAME_LENGTH]


def registry_name(cluster: str, digest: str) -> str:
    return f"{REGISTRY_PREFIX}-{cluster}-{digest}"


def is_own_registry(name: str, cluster: str) -> bool:
    return name.startswith(f"{REGISTRY_PREFIX}-{cluster}-")
