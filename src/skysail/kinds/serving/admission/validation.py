"""What speaks against a model that its schema takes: each objection a sentence with field, value and fix. Pure.

Admission refuses with these sentences. Where nobody asks admission, nothing is changed for the model, and the status
has the same ones.
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
    """What is likely to fail and is not refused: only the content of a model tells for sure what it is."""
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
        yield f"{_field(model)} is empty: write where the model is, such as https://host/model.tar.gz."
        return
    objection = model_uri.objection(uri, terms.allowed)
    if objection is not None:
        yield f"{_field(model)} cannot be used. {objection}"
    elif wanted.want.sha256 and model_uri.in_image(uri):
        yield "spec.sha256 is of a model that is downloaded, and this one is in the image of its server: remove it."


def _runtime(model: Model, wanted: Serving) -> Iterator[str]:
    if wanted.want.runtime not in ROWS and isinstance(model, MLModel):
        yield (
            f"spec.framework is {model.spec.framework}, and nothing here serves such models: "
            f"use one of {', '.join(FRAMEWORKS)}."
        )


def _script(wanted: Serving, terms: Terms) -> Iterator[str]:
    script = wanted.want.script
    if not script.isprintable():
        yield "spec.validateScript has control characters in it: remove them."
    elif model_uri.is_downloaded_script(script):
        objection = model_uri.objection(script, terms.allowed)
        if objection is not None:
            yield f"spec.validateScript cannot be used. {objection}"
    elif "://" in script:
        yield (
            f"spec.validateScript is {script}, and a script is downloaded by http and https only: write such an "
            f"address, a path inside the image, or the name of a key in the ConfigMap {wanted.names.script}."
        )


def _environment(model: Model, wanted: Serving) -> Iterator[str]:
    if wanted.want.runtime not in ROWS:
        return
    ours = pod_templates.environment(wanted, wanted.want)
    for place, variable in enumerate(model.spec.env):
        if variable.name in ours:
            yield f"spec.env[{place}] sets {variable.name}, which Skysail sets for each server: remove it."


def _resources(resources: ResourceRequirements, wanted: Serving) -> Iterator[str]:
    yield from resource_validation.objections("spec.resources", resources)
    if resources.claims:
        yield "spec.resources.claims names devices that no pod of a model has: ask for them in spec.resources.limits."
    if isinstance(wanted.scale, Auto) and not {"cpu"} & {*resources.requests, *resources.limits}:
        yield (
            "spec.autoscale needs to know what a full CPU is: set spec.resources.requests.cpu, such as 500m, or "
            "spec.autoscale to false."
        )


def _storage(wanted: Serving) -> Iterator[str]:
    if wanted.storage is None:
        return
    size = resource_validation.number(wanted.storage.size)
    if size is None or size <= 0:
        yield f"spec.storageSize is {wanted.storage.size}, which is no size: write one such as 5Gi."


def _annotations(model: Model) -> Iterator[str]:
    known = model.metadata.annotations or {}
    path = known.get(Annotation.READY_PATH, "/")
    if not path.startswith("/") or not path.isprintable() or " " in path:
        yield f"The annotation {Annotation.READY_PATH} is {path}: write a path of the server, such as /ping."
    mode = known.get(Annotation.ACCESS_MODE, ACCESS_MODES[0])
    if isinstance(model, MLModel) and mode not in ACCESS_MODES:
        yield f"The annotation {Annotation.ACCESS_MODE} is {mode}: write one of {', '.join(ACCESS_MODES)}."


def _field(model: Model) -> str:
    return "spec.modelURI" if isinstance(model, ModelDeployment) else "spec.modelURL"
