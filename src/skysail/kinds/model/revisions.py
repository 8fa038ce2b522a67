"""The history of a model: one ControllerRevision for each content that was found good, and what became of it. Pure."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from skysail.base.names import Label
from skysail.kinds.model.wants import Want
from skysail.kube.objects import Object

Outcome = Literal["", "served", "failed"]

_HASH = 10
_OUTCOMES: dict[str, Outcome] = {"served": "served", "failed": "failed"}


class Content(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, rename="camel"):
    """What a ControllerRevision of ours holds. It can never be changed; one of others has no `want`."""

    want: Want | None = None
    digest: str = ""
    bytes: int = 0
    files: int = 0


class ControllerRevision(Object, frozen=True, gc=False):
    """As the cache has it."""

    revision: int = 0
    data: Content = Content()


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One revision of the history. `digest` is empty where the model is in the image; `object` once it is stored."""

    number: int
    hash: str
    want: Want
    digest: str = ""
    bytes: int = 0
    files: int = 0
    outcome: Outcome = ""
    object: Object | None = None


def hash_of(want: Want) -> str:
    """Equal wants, equal hashes; and a field that is not used does not count."""
    return hashlib.sha256(msgspec.json.encode(want, order="sorted")).hexdigest()[:_HASH]


def candidate(want: Want) -> Entry:
    """What has no number yet, because nobody has found it good."""
    return Entry(number=0, hash=hash_of(want), want=want)


def entry(stored: ControllerRevision) -> Entry | None:
    """None for one that is not ours."""
    content, labels = stored.data, stored.metadata.labels or {}
    hash_ = labels.get(Label.REVISION)
    if content.want is None or not hash_:
        return None
    return Entry(
        number=stored.revision,
        hash=hash_,
        want=content.want,
        digest=content.digest,
        bytes=content.bytes,
        files=content.files,
        outcome=_OUTCOMES.get(labels.get(Label.OUTCOME, ""), ""),
        object=stored,
    )
