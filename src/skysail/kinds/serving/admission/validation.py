"""Validation of a model beyond its schema. Each error is a sentence with field, value and fix. Pure.

Admission rejects with these errors. If admission was bypassed, nothing starts for the model and its status has the same
errors.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from skysail.base.names import Annotation
from skysail.claims.requirements.annotations import parse as parse_offload
from skysail.claims.requirements.types import PodSpecView
from skysail.kinds.serving.api.types import MLModel, Model, ModelDeployment
from skysail.kinds.serving.children import pod_templates
from skysail.kinds.serving.spec import model_uri
from skysail.kinds.serving.spec.config import ServingConfig
from skysail.kinds.serving.spec.desired import Autoscaling, DesiredModel, desired_model
from skysail.kinds.serving.spec.runtimes import FRAMEWORKS, RUNTIMES
from skysail.kube.api import resource_validation, text_validation
from skysail.kube.api.fields import ResourceRequirements

ACCESS_MODES = ("ReadWriteOnce", "ReadWriteMany")


def validate(model: Model, config: ServingConfig) -> tuple[str, ...]:
    desired = desired_model(model, config)
    return (
        *text_validation.nul_errors("spec", msgspec.to_builtins(model.spec)),
        *_source(model, desired, config),
        *_runtime(model, desired),
        *_script(desired, config),
        *_environment(model, desired),
        *_resources(model.spec.resources or ResourceRequirements(), desired),
        *_storage(desired),
        *_annotations(model),
        *_offload(model, desired),
    )


def warnings_for(model: Model, config: ServingConfig) -> tuple[str, ...]:
    """Return warnings for models that are likely to fail. Only the content shows for sure what a model is."""
    spec = desired_model(model, config).want
    runtime = RUNTIMES.get(spec.runtime)
    if runtime is None:
        return ()
    found = [runtime.warning] if runtime.warning else []
    suffix, server = model_uri.suffix(spec.uri), config.matching_runtime(spec.image, spec.runtime) or spec.runtime
    if suffix in RUNTIMES[server].unsupported_suffixes:
        found.append(f"{_field(model)} ends with {suffix}, which {server} cannot load: {RUNTIMES[server].hint}.")
    return (*found, *_cloud_warnings(model, config))


def _cloud_warnings(model: Model, config: ServingConfig) -> Iterator[str]:
    desired = desired_model(model, config)
    spec = desired.want
    if not spec.offload:
        return
    if isinstance(desired.scale, Autoscaling):
        yield "spec.autoscale has no effect at a cloud, which reports no CPU use: set spec.minReplicas."
    own = RUNTIMES.get(config.matching_runtime(spec.image, spec.runtime))
    if not model_uri.image_path(spec.uri) and not (own and own.fetches):
        yield (
            f"Servers at a cloud download the model themselves, so image {spec.image} needs the download program: "
            "see docs/serving.md."
        )


def _source(model: Model, desired: DesiredModel, config: ServingConfig) -> Iterator[str]:
    uri = desired.want.uri
    if not uri:
        yield f"{_field(model)} is empty: set the address of the model, such as https://host/model.tar.gz."
        return
    error = model_uri.validate(uri, config.allowed)
    if error is not None:
        yield f"{_field(model)} is invalid. {error}"
    elif desired.want.sha256 and model_uri.image_path(uri):
        yield "spec.sha256 needs a model that is downloaded, but this one is part of the server image: remove it."


def _runtime(model: Model, desired: DesiredModel) -> Iterator[str]:
    if desired.want.runtime not in RUNTIMES and isinstance(model, MLModel):
        yield (
            f"spec.framework is {model.spec.framework}, which no runtime serves: use one of {', '.join(FRAMEWORKS)}."
        )


def _script(desired: DesiredModel, config: ServingConfig) -> Iterator[str]:
    script = desired.want.script
    if not script.isprintable():
        yield "spec.validateScript contains control characters: remove them."
    elif model_uri.is_downloaded_script(script):
        error = model_uri.validate(script, config.allowed)
        if error is not None:
            yield f"spec.validateScript is invalid. {error}"
    elif "://" in script:
        yield (
            f"spec.validateScript is {script}, but scripts are downloaded by http and https only: set such a URL, a "
            f"path inside the image, or a key of the ConfigMap {desired.names.script}."
        )


def _environment(model: Model, desired: DesiredModel) -> Iterator[str]:
    if desired.want.runtime not in RUNTIMES:
        return
    ours = pod_templates.environment(desired, desired.want)
    for place, variable in enumerate(model.spec.env):
        if variable.name in ours:
            yield f"spec.env[{place}] sets {variable.name}, which Skysail sets itself: remove it."


def _resources(resources: ResourceRequirements, desired: DesiredModel) -> Iterator[str]:
    yield from resource_validation.validate("spec.resources", resources)
    if resources.claims:
        yield "spec.resources.claims is not supported for models: request devices in spec.resources.limits."
    if isinstance(desired.scale, Autoscaling) and not {"cpu"} & {*resources.requests, *resources.limits}:
        yield (
            "spec.autoscale needs a CPU request: set spec.resources.requests.cpu, such as 500m, or set spec.autoscale "
            "to false."
        )


def _storage(desired: DesiredModel) -> Iterator[str]:
    if desired.storage is None:
        return
    size = resource_validation.parse_quantity(desired.storage.size)
    if size is None or size <= 0:
        yield f"spec.storageSize is {desired.storage.size}, which is not a valid size: set a size such as 5Gi."


def _annotations(model: Model) -> Iterator[str]:
    known = model.metadata.annotations or {}
    path = known.get(Annotation.READY_PATH, "/")
    if not path.startswith("/") or not path.isprintable() or " " in path:
        yield f"Annotation {Annotation.READY_PATH} is {path}, which is not a path: set a path such as /ping."
    mode = known.get(Annotation.ACCESS_MODE, ACCESS_MODES[0])
    if isinstance(model, MLModel) and mode not in ACCESS_MODES:
        yield f"Annotation {Annotation.ACCESS_MODE} is {mode}: set one of {', '.join(ACCESS_MODES)}."


def _offload(model: Model, desired: DesiredModel) -> Iterator[str]:
    spec = desired.want
    if not spec.offload:
        return
    yield from parse_offload(spec.offload, {}, PodSpecView()).errors
    if model_uri.pvc_name(spec.uri):
        yield (
            f"{_field(model)} is in a PVC, which no cloud can mount: put the model to an https, s3, gs, hf or oci "
            "address, or remove the annotation that asks for a cloud."
        )


def _field(model: Model) -> str:
    return "spec.modelURI" if isinstance(model, ModelDeployment) else "spec.modelURL"
