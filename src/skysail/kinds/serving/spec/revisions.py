"""The history of a model: one ControllerRevision for each content that was found good, and what became of it. Pure."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec

from skysail.base.names import Label
from skysail.kinds.serving.spec.desired import Want
from skysail.kinds.serving.spec.runtimes import ROWS
from skysail.kube.api.objects import Object

Outcome = Literal["", "served", "failed"]

_HASH = 10
_OUTCOMES: dict[str, Outcome] = {"served": "served", "failed": "failed"}


class Content(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What a ControllerRevision of ours holds. It can never be changed. `claim` is the UID of the one that it is on.

    `seconds` is how long its download took; 0 where nobody knows. `is_shared`: pods of several nodes can have the claim
    that it is copied from.
    """

    want: Want
    digest: str = ""
    bytes: int = 0
    files: int = 0
    claim: str = ""
    seconds: int = 0
    is_shared: bool = False


class ControllerRevision(Object, frozen=True):
    """As the cache has it. It may hold anything: others write such, and so does another version of Skysail."""

    revision: int = 0
    data: Any = None


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One revision of the history. `digest` is empty where the model is in the image, `claim` where it is on none.

    `object` is there once it is stored.
    """

    number: int
    hash: str
    want: Want
    digest: str = ""
    bytes: int = 0
    files: int = 0
    claim: str = ""
    seconds: int = 0
    is_shared: bool = False
    outcome: Outcome = ""
    object: Object | None = None


def hash_of(want: Want) -> str:
    """Equal wants, equal hashes; and a field that is not used does not count."""
    return hashlib.sha256(msgspec.json.encode(want, order="sorted")).hexdigest()[:_HASH]


def candidate(want: Want, digest: str = "", *, is_shared: bool = False) -> Entry:
    """What has no number yet, because nobody has found it good. `digest` is what it must have."""
    return Entry(number=0, hash=hash_of(want), want=want, digest=digest, is_shared=is_shared)


def entry(stored: ControllerRevision) -> Entry | None:
    """None for one that is not ours, or that nobody here can read or serve."""
    labels = stored.metadata.labels or {}
    hash_ = labels.get(Label.REVISION)
    try:
        content = msgspec.convert(stored.data, Content)
    except msgspec.ValidationError:
        return None
    if not hash_ or content.want.runtime not in ROWS:
        return None
    return Entry(
        number=stored.revision,
        hash=hash_,
        want=content.want,
        digest=content.digest,
        bytes=content.bytes,
        files=content.files,
        claim=content.claim,
        seconds=content.seconds,
        is_shared=content.is_shared,
        outcome=_OUTCOMES.get(labels.get(Label.OUTCOME, ""), ""),
        object=stored,
    )
