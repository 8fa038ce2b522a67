"""History of a model: one ControllerRevision for each prepared revision, and its outcome. Pure."""

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
    """Data of a ControllerRevision, which is immutable.

    - `claim`: UID of the PVC that holds the content.
    - `seconds`: duration of the download; 0 if unknown.
    - `is_shared`: whether pods on several nodes can mount the source PVC.
    """

    want: Want
    digest: str = ""
    bytes: int = 0
    files: int = 0
    claim: str = ""
    seconds: int = 0
    is_shared: bool = False


class ControllerRevision(Object, frozen=True):
    """ControllerRevision as cached.

    Its data may be anything: other controllers and versions of Skysail write some, too.
    """

    revision: int = 0
    data: Any = None


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Revision of the history.

    `digest` is empty if the model is part of the image, `claim` is empty without a PVC. `object` is None until the
    revision is stored.
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
    """Return the hash of the desired state. Unused fields do not change it."""
    return hashlib.sha256(msgspec.json.encode(want, order="sorted")).hexdigest()[:_HASH]


def candidate(want: Want, digest: str = "", *, is_shared: bool = False) -> Entry:
    """Return a revision without a number, before it is prepared. `digest` is the expected digest."""
    return Entry(number=0, hash=hash_of(want), want=want, digest=digest, is_shared=is_shared)


def entry(stored: ControllerRevision) -> Entry | None:
    """Return the stored revision, or None if it is not ours, cannot be read, or needs an unknown runtime."""
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
