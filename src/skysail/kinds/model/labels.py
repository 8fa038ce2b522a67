"""Labels of a model's children: by which they are found, and which people know. Pure."""

from __future__ import annotations

from skysail.base.names import Label
from skysail.kinds.model.revisions import Entry
from skysail.kinds.model.types import MODEL_DEPLOYMENT
from skysail.kinds.model.wants import Serving

_INFERENCE = "inference"
_VALIDATION = "validation"


def selector(serving: Serving) -> dict[str, str]:
    """Of everything that belongs to the model. By UID: a name can come back, and both kinds may have it."""
    return {Label.MODEL_UID: serving.object.metadata.uid}


def servers(serving: Serving) -> dict[str, str]:
    """Of the pods that serve. Those that download and validate answer nobody."""
    return {**selector(serving), Label.TYPE: _INFERENCE}


def of_child(serving: Serving) -> dict[str, str]:
    return {**_named(serving), **servers(serving)}


def of_server(serving: Serving, entry: Entry) -> dict[str, str]:
    return {**of_child(serving), Label.REVISION: entry.hash}


def of_prepare(serving: Serving, entry: Entry) -> dict[str, str]:
    return {**_named(serving), **selector(serving), Label.TYPE: _VALIDATION, Label.REVISION: entry.hash}


def _named(serving: Serving) -> dict[str, str]:
    """The first is what children of that kind have always had."""
    names = serving.names
    known, value = (Label.MODEL, names.model) if serving.kind is MODEL_DEPLOYMENT else (Label.APP, names.deployment)
    return {known: value, Label.MODEL_NAME: names.model}
