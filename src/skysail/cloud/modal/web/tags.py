"""Names, tags and ids of web Apps. Pure.

An App outlives its claims: an update, a new scale or a new day is a new claim for the same App. The tag `claim` names
the claim that pays for it. Earlier claims that were not terminated yet stay in the tags `was-N`, so that their
instances are listed, free of charge, until their pods are gone. The tag `returned` marks an App that went back to an
earlier claim, so that no process takes the tag `created` for the begin of its costs. The tag `unverified` marks a new
App until it has answered: no process takes it for one that serves.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import msgspec

from skysail.cloud.account import LaunchSpec
from skysail.cloud.errors import Rejected
from skysail.cloud.web_app import INSTANCE_PREFIX

# Part of the names of all web Apps, apart from Apps of sandboxes and gangs.
_PREFIX = "ow"
_OWNER = "skysail"
_MAX_NAME = 64
_MAX_LABEL = 63
_CLUSTER_LENGTH = 8
# Long enough that no tenant finds a name with the digest of another one's App.
_DIGEST_LENGTH = 16
_MAX_EARLIER = 8
_RETURNED = "returned"
_UNVERIFIED = "unverified"
_CHECK = "-check"
# A claim of this name never exists, so the orphan collector ends a check that was left over.
_CHECK_CLAIM = "check."
_VALUE = re.compile(r"[A-Za-z0-9._-]{1,50}")


class WebTags(msgspec.Struct, frozen=True, kw_only=True):
    """Tags of a web App. A foreign one has an empty `claim` and `cluster`. `usd_per_hour` is that of one container.

    `is_returned`: a newer claim had the App, and `created` is its time.
    `is_unverified`: the App has never answered. It has no earlier claims.
    """

    claim: str = ""
    cluster: str = ""
    created: float = 0.0
    usd_per_hour: float = 0.0
    max_containers: int = 1
    revision: str = ""
    earlier: tuple[str, ...] = ()
    is_returned: bool = False
    is_unverified: bool = False


def prefix(cluster: str) -> str:
    return f"{_PREFIX}-{cluster[:_CLUSTER_LENGTH]}-"


def app_name(cluster: str, namespace: str, name: str, *, is_check: bool = False) -> str:
    """Return the name of an App. A namespace has no full stop, so two namespaces never share a name."""
    suffix = _CHECK if is_check else ""
    whole = f"{prefix(cluster)}{namespace}.{name}"
    if len(whole) + len(suffix) > _MAX_NAME or whole.endswith(_CHECK):
        whole = f"{whole[: _MAX_NAME - _DIGEST_LENGTH - len(_CHECK) - 1]}.{_digest(whole)}"
    return whole + suffix


def is_check(name: str) -> bool:
    return name.endswith(_CHECK)


def label(app: str) -> str:
    """Return the label of the App's URL, which is unique in the workspace."""
    readable = re.sub(r"[^a-z0-9]+", "-", app.lower()).strip("-")
    return f"{readable[: _MAX_LABEL - _DIGEST_LENGTH - 1].strip('-')}-{_digest(app)}"


def instance_id(app_id: str, claim: str) -> str:
    """Return the id of the instance of a claim: the App alone would not tell two claims apart."""
    return f"{INSTANCE_PREFIX}{app_id}.{claim}"


def split_id(instance: str) -> tuple[str, str]:
    """Return App id and claim of an instance."""
    app_id, _, claim = instance.removeprefix(INSTANCE_PREFIX).partition(".")
    return app_id, claim


def encode(
    spec: LaunchSpec, *, created: float, usd_per_hour: float, max_containers: int, revision: str, is_check: bool = False
) -> dict[str, str]:
    """Return the tags of a deploy. Raises Rejected if Modal does not accept the name of the claim."""
    if not _VALUE.fullmatch(spec.claim):
        raise Rejected("InvalidClaim", f"Modal accepts no tag {spec.claim}: delete the pod.")
    return {
        "owner": _OWNER,
        "cluster": spec.cluster,
        "claim": f"{_CHECK_CLAIM}{spec.claim}" if is_check else spec.claim,
        "created": f"{created:.3f}",
        "usd-per-hour": f"{usd_per_hour:.6f}",
        "containers": str(max_containers),
        "revision": revision,
    }


def with_earlier(tags: Mapping[str, str], claims: tuple[str, ...]) -> dict[str, str]:
    """Return the tags with these earlier claims, newest first."""
    kept = {name: value for name, value in tags.items() if not name.startswith("was-")}
    return {**kept, **{f"was-{number}": claim for number, claim in enumerate(claims[:_MAX_EARLIER])}}


def as_unverified(tags: Mapping[str, str]) -> dict[str, str]:
    return {**tags, _UNVERIFIED: "true"}


def with_claims(tags: Mapping[str, str], claims: tuple[str, ...]) -> dict[str, str]:
    """Return the tags with these claims, newest first. The newest one pays."""
    returned = {} if claims[0] == tags["claim"] else {_RETURNED: "true"}
    return with_earlier({**tags, **returned, "claim": claims[0]}, claims[1:])


def decode(tags: Mapping[str, str]) -> WebTags:
    """Return the tags of an App. Those of a foreign or tampered one are empty."""
    if tags.get("owner") != _OWNER or not tags.get("claim"):
        return WebTags()
    earlier = sorted(name for name in tags if name.startswith("was-"))
    return WebTags(
        claim=tags["claim"],
        cluster=tags.get("cluster", ""),
        created=_number(tags.get("created")),
        usd_per_hour=_number(tags.get("usd-per-hour")),
        max_containers=max(1, int(_number(tags.get("containers")))),
        revision=tags.get("revision", ""),
        earlier=tuple(tags[name] for name in earlier),
        is_returned=_RETURNED in tags,
        is_unverified=_UNVERIFIED in tags,
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]


def _number(text: str | None) -> float:
    try:
        number = float(text or 0)
    except ValueError:
        return 0.0
    return number if 0 <= number < 1e12 else 0.0  # noqa: PLR2004 (a time or a price, never infinite)
