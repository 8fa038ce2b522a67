"""Labels of a model's children: by which they are found, and which people know. Pure."""

from __future__ import annotations

from skysail.base.names import Label
from skysail.kinds.serving.api.types import MODEL_DEPLOYMENT
from skysail.kinds.serving.spec import model_uri
from skysail.kinds.serving.spec.desired import Serving
from skysail.kinds.serving.spec.revisions import Entry
from skysail.kube.api import child_names

VALIDATION_TYPE = "validation"
_INFERENCE = "inference"
_LONGEST_STEM = 50


def selector(serving: Serving) -> dict[str, str]:
    """Of everything that belongs to the model. By UID: a name can come back, and both kinds may have it."""
    return {Label.MODEL_UID: serving.object.metadata.uid}


def servers(serving: Serving) -> dict[str, str]:
    """Of the pods that serve. Those that download and validate answer nobody."""
    return {**selector(serving), Label.TYPE: _INFERENCE}


def of_child(serving: Serving) -> dict[str, str]:
    return {**known(serving), Label.MODEL_NAME: serving.names.model, **servers(serving)}


def of_server(serving: Serving, entry: Entry) -> dict[str, str]:
    return {**of_child(serving), Label.REVISION: entry.hash}


def of_source(entry: Entry) -> dict[str, str]:
    """Of pods, whichever model they are of, that copy theirs from the same claim."""
    claim = model_uri.claim(entry.want.uri)
    return {Label.SOURCE_CLAIM: child_names.label_value(claim, _LONGEST_STEM)} if claim else {}


def of_prepare(serving: Serving, entry: Entry) -> dict[str, str]:
    return {**known(serving), **of_preparing(serving, entry)}


def of_preparing(serving: Serving, entry: Entry) -> dict[str, str]:
    """Of the pod that does it. By the label that it lacks, others find what answers."""
    found = {Label.MODEL_NAME: serving.names.model, **selector(serving)}
    return {**found, Label.TYPE: VALIDATION_TYPE, Label.REVISION: entry.hash}


def known(serving: Serving) -> dict[str, str]:
    """What children of that kind have always had."""
    names = serving.names
    is_deployment = serving.kind is MODEL_DEPLOYMENT
    return {Label.MODEL: names.model} if is_deployment else {Label.APP: names.deployment}
