"""History of a model: one ControllerRevision for each prepared revision, and its outcome. Pure."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec

from skysail.base.names import Label
from skysail.kinds.serving.spec.desired import RevisionSpec
from skysail.kinds.serving.spec.runtimes import RUNTIMES
from skysail.kube.api.objects import Object

Outcome = Literal["", "served", "failed"]

_HASH = 10
_OUTCOMES: dict[str, Outcome] = {"served": "served", "failed": "failed"}


class RevisionData(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Data of a ControllerRevision, which is immutable.

    - `claim`: UID of the PVC that holds the content.
    - `seconds`: duration of the download; 0 if unknown.
    - `is_shared`: whether pods on several nodes can mount the source PVC.
    """

    want: RevisionSpec
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


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """Revision of the history.

    `digest` is empty if the model is part of the image, `claim` is empty without a PVC. `object` is None until the
    revision is stored.
    """

    number: int
    hash: str
    want: RevisionSpec
    digest: str = ""
    bytes: int = 0
    files: int = 0
    claim: str = ""
    seconds: int = 0
    is_shared: bool = False
    outcome: Outcome = ""
    object: Object | None = None


def hash_of(spec: RevisionSpec) -> str:
    """Return the hash of the desired state. Unused fields do not change it."""
    return hashlib.sha256(msgspec.json.encode(spec, order="sorted")).hexdigest()[:_HASH]


def new_candidate(spec: RevisionSpec, digest: str = "", *, is_shared: bool = False) -> Revision:
    """Return a revision without a number, before it is prepared. `digest` is the expected digest."""
    return Revision(number=0, hash=hash_of(spec), want=spec, digest=digest, is_shared=is_shared)


def from_object(stored: ControllerRevision) -> Revision | None:
    """Return the stored revision, or None if it is not ours, cannot be read, or needs an unknown runtime."""
    labels = stored.metadata.labels or {}
    hash_ = labels.get(Label.REVISION)
    try:
        revision_data = msgspec.convert(stored.data, RevisionData)
    except msgspec.ValidationError:
        return None
    if not hash_ or revision_data.want.runtime not in RUNTIMES:
        return None
    return Revision(
        number=stored.revision,
        hash=hash_,
        outcome=_OUTCOMES.get(labels.get(Label.OUTCOME, ""), ""),
        object=stored,
        **msgspec.structs.asdict(revision_data),
    )
