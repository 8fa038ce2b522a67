"""Validation of a model beyond its schema. Each error is a sentence with field, value and fix. Pure.

Admission rejects with these errors. If admission was bypassed, nothing starts for the model and its status has the same
errors.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from skysail.base.names import Annotation
from skysail.kinds.serving.api.types import MLModel, Model, ModelDeployment
from skysail.kinds.serving.children import pod_templates
from skysail.kinds.serving.spec import model_uri
from skysail.kinds.serving.spec.config import Terms
from skysail.kinds.serving.spec.desired import Auto, Serving, serving
from skysail.kinds.serving.spec.runtimes import FRAMEWORKS, ROWS
from skysail.kube.api import resource_validation, text_validation
from skysail.kube.api.fields import ResourceRequirements

ACCESS_MODES = ("ReadWriteOnce", "ReadWriteMany")


def objections(model: Model, terms: Terms) -> tuple[str, ...]:
    wanted = serving(model, terms)
    return (
        *text_validation.nul_errors("spec", msgspec.to_builtins(model.spec)),
        *_source(model, wanted, terms),
        *_runtime(model, wanted),
        *_script(wanted, terms),
        *_environment(model, wanted),
        *_resources(model.spec.resources or ResourceRequirements(), wanted),
        *_storage(wanted),
        *_annotations(model),
    )


def cautions(model: Model, terms: Terms) -> tuple[str, ...]:
    """Return warnings for models that are likely to fail. Only the content shows for sure what a model is."""
    want = serving(model, terms).want
    row = ROWS.get(want.runtime)
    if row is None:
        return ()
    found = [row.warning] if row.warning else []
    suffix, server = model_uri.suffix(want.uri), terms.known(want.image, want.runtime) or want.runtime
    if suffix in ROWS[server].unloadable:
        found.append(f"{_field(model)} ends with {suffix}, which {server} cannot load: {ROWS[server].instead}.")
    return tuple(found)


def _source(model: Model, wanted: Serving, terms: Terms) -> Iterator[str]:
    uri = wanted.want.uri
    if not uri:
        yield f"{_field(model)} is empty: set the address of the model, such as https://host/model.tar.gz."
        return
    objection = model_uri.objection(uri, terms.allowed)
    if objection is not None:
        yield f"{_field(model)} is invalid. {objection}"
    elif wanted.want.sha256 and model_uri.in_image(uri):
        yield "spec.sha256 needs a model that is downloaded, but this one is part of the server image: remove it."


def _runtime(model: Model, wanted: Serving) -> Iterator[str]:
    if wanted.want.runtime not in ROWS and isinstance(model, MLModel):
        yield (
            f"spec.framework is {model.spec.framework}, which no runtime serves: use one of {', '.join(FRAMEWORKS)}."
        )


def _script(wanted: Serving, terms: Terms) -> Iterator[str]:
    script = wanted.want.script
    if not script.isprintable():
        yield "spec.validateScript contains control characters: remove them."
    elif model_uri.is_downloaded_script(script):
        objection = model_uri.objection(script, terms.allowed)
        if objection is not None:
            yield f"spec.validateScript is invalid. {objection}"
    elif "://" in script:
        yield (
            f"spec.validateScript is {script}, but scripts are downloaded by http and https only: set such a URL, a "
            f"path inside the image, or a key of the ConfigMap {wanted.names.script}."
        )


def _environment(model: Model, wanted: Serving) -> Iterator[str]:
    if wanted.want.runtime not in ROWS:
        return
    ours = pod_templates.environment(wanted, wanted.want)
    for place, variable in enumerate(model.spec.env):
        if variable.name in ours:
            yield f"spec.env[{place}] sets {variable.name}, which Skysail sets itself: remove it."


def _resources(resources: ResourceRequirements, wanted: Serving) -> Iterator[str]:
    yield from resource_validation.objections("spec.resources", resources)
    if resources.claims:
        yield "spec.resources.claims is not supported for models: request devices in spec.resources.limits."
    if isinstance(wanted.scale, Auto) and not {"cpu"} & {*resources.requests, *resources.limits}:
        yield (
            "spec.autoscale needs a CPU request: set spec.resources.requests.cpu, such as 500m, or set spec.autoscale "
            "to false."
        )


def _storage(wanted: Serving) -> Iterator[str]:
    if wanted.storage is None:
        return
    size = resource_validation.number(wanted.storage.size)
    if size is None or size <= 0:
        yield f"spec.storageSize is {wanted.storage.size}, which is not a valid size: set a size such as 5Gi."


def _annotations(model: Model) -> Iterator[str]:
    known = model.metadata.annotations or {}
    path = known.get(Annotation.READY_PATH, "/")
    if not path.startswith("/") or not path.isprintable() or " " in path:
        yield f"Annotation {Annotation.READY_PATH} is {path}, which is not a path: set a path such as /ping."
    mode = known.get(Annotation.ACCESS_MODE, ACCESS_MODES[0])
    if isinstance(model, MLModel) and mode not in ACCESS_MODES:
        yield f"Annotation {Annotation.ACCESS_MODE} is {mode}: set one of {', '.join(ACCESS_MODES)}."


def _field(model: Model) -> str:
    return "spec.modelURI" if isinstance(model, ModelDeployment) else "spec.modelURL"
