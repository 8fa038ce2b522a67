"""Names of a model's children, as the operators that Skysail replaces gave them. Pure."""

from __future__ import annotations

import msgspec

from skysail.kube.api import child_names

# What is left of 63 after the longest suffix, `-download-job`.
_LONGEST_STEM = 50


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """`model` is what the server calls the model, and the value of labels. `script` is the ConfigMap of validation.

    `claim` is empty where the model is kept in its pods. `predecessor` is what served it when the operator whose names
    these are ran it; empty where that has the name of ours.
    """

    model: str
    job: str
    deployment: str
    services: tuple[str, ...]
    autoscaler: str
    script: str
    claim: str = ""
    predecessor: str = ""

    def revision(self, hash_: str) -> str:
        """Made from the hash, so that writing one twice makes one."""
        return f"{self.deployment}-{hash_}"


def of_deployment(name: str) -> Names:
    """The second Service is the one of the Model Operator's code, the first the one of its documents."""
    stem = _stem(name)
    return Names(
        model=_label(name),
        job=f"validate-{stem}",
        deployment=stem,
        services=(f"{stem}-service", f"svc-{stem}"),
        autoscaler=stem,
        script=f"{stem}-validate",
        predecessor=f"inference-{name}",
    )


def of_ml_model(name: str) -> Names:
    stem = _stem(name)
    return Names(
        model=_label(name),
        job=f"{stem}-download-job",
        deployment=f"{stem}-server",
        services=(f"{stem}-service",),
        autoscaler=f"{stem}-server",
        script=f"{stem}-validate",
        claim=f"{stem}-pvc",
    )


def _label(name: str) -> str:
    return child_names.label_value(name, _LONGEST_STEM)


def _stem(name: str) -> str:
    return child_names.stem(name, _LONGEST_STEM)
