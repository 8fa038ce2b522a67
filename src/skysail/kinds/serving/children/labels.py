"""Labels of a model's children: for selection, and those that users know. Pure."""

from __future__ import annotations

from skysail.base.names import Label
from skysail.kinds.serving.api.types import MODEL_DEPLOYMENT
from skysail.kinds.serving.spec import model_uri
from skysail.kinds.serving.spec.desired import DesiredModel
from skysail.kinds.serving.spec.revisions import Revision
from skysail.kube.api import child_names

VALIDATION_TYPE = "validation"
_INFERENCE = "inference"
_MAX_STEM_LENGTH = 50


def selector(desired: DesiredModel) -> dict[str, str]:
    """Return the selector for all children.

    It uses the UID, because a name can be reused and both kinds may have it.
    """
    return {Label.MODEL_UID: desired.object.metadata.uid}


def servers(desired: DesiredModel) -> dict[str, str]:
    """Return the selector for serving pods. Prepare pods must not get requests."""
    return {**selector(desired), Label.TYPE: _INFERENCE}


def for_child(desired: DesiredModel) -> dict[str, str]:
    return {**legacy_labels(desired), Label.MODEL_NAME: desired.names.model, **servers(desired)}


def of_server(desired: DesiredModel, revision: Revision) -> dict[str, str]:
    found = {**for_child(desired), Label.REVISION: revision.hash}
    return found | {Label.AT_CLOUD: "true"} if revision.want.offload else found


def of_source(revision: Revision) -> dict[str, str]:
    """Return the label of all pods, of any model, that copy from the same PVC."""
    claim = model_uri.pvc_name(revision.want.uri)
    return {Label.SOURCE_CLAIM: child_names.label_value(claim, _MAX_STEM_LENGTH)} if claim else {}


def for_job(desired: DesiredModel, revision: Revision) -> dict[str, str]:
    return {**legacy_labels(desired), **for_prepare_pod(desired, revision)}


def for_prepare_pod(desired: DesiredModel, revision: Revision) -> dict[str, str]:
    """Labels of the prepare pod.

    It must not have the legacy `model`/`app` label, because Services select serving pods by it.
    """
    found = {Label.MODEL_NAME: desired.names.model, **selector(desired)}
    return {**found, Label.TYPE: VALIDATION_TYPE, Label.REVISION: revision.hash}


def legacy_labels(desired: DesiredModel) -> dict[str, str]:
    """Return the legacy label of the kind's children."""
    names = desired.names
    is_deployment = desired.kind is MODEL_DEPLOYMENT
    return {Label.MODEL: names.model} if is_deployment else {Label.APP: names.deployment}
