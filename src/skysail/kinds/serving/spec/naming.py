"""Names of a model's children, as the operators that Skysail replaces gave them. Pure."""

from __future__ import annotations

import msgspec

from skysail.kube.api import child_names

# 63 characters minus the longest suffix, `-download-job`.
_MAX_STEM_LENGTH = 50


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """Names of a model's children.

    - `model`: name of the model in its server, and label value.
    - `script`: ConfigMap with validation scripts.
    - `claim`: PVC; empty if each pod stores the model itself.
    - `predecessor`: Deployment of the previous operator; empty if ours has the same name.
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
        """Return the name of a revision, derived from its hash so that a repeated write creates no second object."""
        return f"{self.deployment}-{hash_}"


def of_deployment(name: str) -> Names:
    """Return the names for a ModelDeployment. The Model Operator documents the first Service and creates the second."""
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
    return child_names.label_value(name, _MAX_STEM_LENGTH)


def _stem(name: str) -> str:
    return child_names.child_prefix(name, _MAX_STEM_LENGTH)
