"""Whether a TrainJob asks for Modal other than by an annotation of its own. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skysail.base.names import Annotation
from skysail.kube.api.train_job_overrides import read_overrides

_MODAL_RUNTIME = "modal-"
_MODAL_VARIABLE = "MODAL_ENABLED"


def asks_for_modal(spec: Mapping[str, Any]) -> bool:
    """Return whether a TrainJob asks for Modal: by its runtime, by a variable, or by an override in any spelling."""
    runtime = str((spec.get("runtimeRef") or {}).get("name") or "")
    overrides = list(read_overrides(spec))
    containers = [row for override in overrides for row in override.spec.get("containers") or ()]
    variables = [row for part in (spec.get("trainer") or {}, *containers) for row in part.get("env") or ()]
    annotations = [(override.metadata.get("annotations") or {}) for override in overrides]
    return (
        runtime.startswith(_MODAL_RUNTIME)
        or any(row.get("name") == _MODAL_VARIABLE and _is_on(row.get("value", "true")) for row in variables)
        or any(_is_on(row.get(Annotation.MODAL_ENABLED, "false")) for row in annotations)
    )


def _is_on(value: object) -> bool:
    return str(value).casefold() != "false"
