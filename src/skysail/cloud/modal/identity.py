"""Names and tags of what belongs to a claim at Modal. Pure.

A sandbox has the name of its claim, which Modal keeps unique among the running sandboxes of an App. A gang is an App of
its own, whose name holds the claim. Tags hold what an inventory has to know about an instance, because Modal returns
neither its age nor its price by its id.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping

import msgspec

from skysail.cloud.account import LaunchSpec
from skysail.cloud.errors import Rejected

_OWNER = "skysail"
_MAX_NAME = 64
_HASH_LENGTH = 8
_CLUSTER_LENGTH = 8
# Part of the name of a gang's App. A namespace has no full stop, so no App of a namespace has such a name.
_GANG = "gang."
# More members than a gang at Modal can have. A tampered tag must not cost memory.
_MAX_MEMBERS = 256
# The rule of Modal for tags of Apps; sandboxes accept more.
_VALUE = re.compile(r"[A-Za-z0-9._-]{1,63}")


class InstanceTags(msgspec.Struct, frozen=True, kw_only=True):
    """Tags of a sandbox, or of the App of a gang. A foreign one has an empty `claim` and `cluster`.

    `members`, `is_one_pod` and `call` are those of a gang: its size, whether all of it is one pod, and the id of its
    call, which is empty until the call is made.
    """

    claim: str = ""
    cluster: str = ""
    created: float = 0.0
    usd_per_hour: float = 0.0
    lifetime: float = 0.0
    region: str = ""
    app: str = ""
    members: int = 0
    is_one_pod: bool = False
    call: str = ""


def app_prefix(cluster: str) -> str:
    """Return the prefix of the names of all Apps of a cluster."""
    return f"op-{cluster[:_CLUSTER_LENGTH]}-"


def app_name(cluster: str, namespace: str) -> str:
    """Return the name of the App of a namespace. A long name is cut and gets a hash."""
    return _cut(app_prefix(cluster) + namespace)


def gang_name(cluster: str, claim: str) -> str:
    """Return the name of the App of a gang, which belongs to one claim. Raises Rejected if Modal does not accept it."""
    return _cut(app_prefix(cluster) + _GANG + sandbox_name(claim))


def gang_claim(app_name: str, cluster: str) -> str:
    """Return the claim in the name of a gang's App. That of a name that was cut is not the name of any claim."""
    return app_name.removeprefix(app_prefix(cluster) + _GANG)


def is_gang(app_name: str, cluster: str) -> bool:
    """Return whether an App of the cluster is that of a gang."""
    return app_name.startswith(app_prefix(cluster) + _GANG)


def volume_name(cluster: str, namespace: str, name: str, shared: Collection[str]) -> str:
    """Return the name of a Volume at Modal. Only a shared one is visible in all namespaces, under its own name."""
    # A namespace has no full stop, so two namespaces never share a name.
    return name if name in shared else _cut(f"{app_prefix(cluster)}{namespace}.{name}")


def _cut(name: str) -> str:
    if len(name) <= _MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH_LENGTH]
    return f"{name[: _MAX_NAME - _HASH_LENGTH - 1]}-{digest}"


def sandbox_name(claim: str) -> str:
    """Return the name of the sandbox of a claim. Raises Rejected if Modal does not accept it."""
    if not _VALUE.fullmatch(claim):
        raise Rejected("InvalidClaim", f"Modal accepts no sandbox with the name {claim}: delete the pod.")
    return claim


def encode_tags(spec: LaunchSpec, *, created: float, usd_per_hour: float, region: str) -> dict[str, str]:
    tags = {
        "owner": _OWNER,
        "cluster": spec.cluster,
        "claim": sandbox_name(spec.claim),
        "created": f"{created:.3f}",
        "usd-per-hour": f"{usd_per_hour:.6f}",
        "lifetime": f"{spec.max_lifetime:.0f}",
    }
    if region:
        tags["region"] = region
    if spec.size > 1:
        tags["members"] = str(spec.size)
    if spec.replicas > 1:
        tags["one-pod"] = "true"
    return tags


def with_call(tags: Mapping[str, str], app_id: str, call_id: str) -> dict[str, str]:
    """Return the tags of a gang whose call was made."""
    return {**tags, "app": app_id, "call": call_id}


def decode_tags(tags: Mapping[str, str]) -> InstanceTags:
    """Return the tags of a sandbox. Those of a foreign or tampered one are empty."""
    if tags.get("owner") != _OWNER:
        return InstanceTags()
    return InstanceTags(
        claim=tags.get("claim", ""),
        cluster=tags.get("cluster", ""),
        created=_number(tags.get("created")),
        usd_per_hour=_number(tags.get("usd-per-hour")),
        lifetime=_number(tags.get("lifetime")),
        region=tags.get("region", ""),
        app=tags.get("app", ""),
        members=min(int(_number(tags.get("members"))), _MAX_MEMBERS),
        is_one_pod=tags.get("one-pod") == "true",
        call=tags.get("call", ""),
    )


def _number(text: str | None) -> float:
    try:
        number = float(text or 0)
    except ValueError:
        return 0.0
    return number if 0 <= number < 1e12 else 0.0  # noqa: PLR2004 (a time or a price, never infinite)
