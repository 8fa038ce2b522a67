"""Labels of a model's children: for selection, and those that users know. Pure."""

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
    """Return the selector for all children.

    It uses the UID, because a name can be reused and both kinds may have it.
    """
    return {Label.MODEL_UID: serving.object.metadata.uid}


def servers(serving: Serving) -> dict[str, str]:
    """Return the selector for serving pods. Prepare pods must not get requests."""
    return {**selector(serving), Label.TYPE: _INFERENCE}


def of_child(serving: Serving) -> dict[str, str]:
    return {**known(serving), Label.MODEL_NAME: serving.names.model, **servers(serving)}


def of_server(serving: Serving, entry: Entry) -> dict[str, str]:
    return {**of_child(serving), Label.REVISION: entry.hash}


def of_source(entry: Entry) -> dict[str, str]:
    """Return the label of all pods, of any model, that copy from the same PVC."""
    claim = model_uri.claim(entry.want.uri)
    return {Label.SOURCE_CLAIM: child_names.label_value(claim, _LONGEST_STEM)} if claim else {}


def of_prepare(serving: Serving, entry: Entry) -> dict[str, str]:
    return {**known(serving), **of_preparing(serving, entry)}


def of_preparing(serving: Serving, entry: Entry) -> dict[str, str]:
    """Labels of the prepare pod.

    It must not have the legacy `model`/`app` label, because Services select serving pods by it.
    """
    found = {Label.MODEL_NAME: serving.names.model, **selector(serving)}
    return {**found, Label.TYPE: VALIDATION_TYPE, Label.REVISION: entry.hash}


def known(serving: Serving) -> dict[str, str]:
    """Return the legacy label of the kind's children."""
    names = serving.names
    is_deployment = serving.kind is MODEL_DEPLOYMENT
    return {Label.MODEL: names.model} if is_deployment else {Label.APP: names.deployment}
