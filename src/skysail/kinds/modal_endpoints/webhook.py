"""Validating webhooks of ModalEndpoints and ModalFunctions. Pure."""

from __future__ import annotations

from skysail.kinds import modal_fields
from skysail.kinds.modal_endpoints.types import KINDS, ModalEndpoint, ModalFunction
from skysail.kube.admission.validating_hook import Checks, validating_hook


def validate(owner: ModalEndpoint | ModalFunction) -> tuple[str, ...]:
    """Return why the containers cannot run, each as a sentence with the fix."""
    return tuple(modal_fields.errors(owner.spec.cpu, owner.spec.memory, owner.spec.env))


HOOKS = tuple(
    validating_hook(kind, Checks(validate=validate, immutable_fields=lambda _, __: (), warnings=lambda _, __: ()))
    for kind in KINDS
)
