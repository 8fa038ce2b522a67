"""Kind-independent form of a model. Pure.

Translation never fails: `objections` reports invalid specs, and a served revision needs its names, storage and scale
even while the spec is invalid.
"""

from __future__ import annotations

from typing import Any

import msgspec

from skysail.base.names import Annotation
from skysail.claims.requirements.annotations import of_servers
from skysail.kinds.serving.api.types import ML_MODEL, MODEL_DEPLOYMENT, MLModel, Model, ModelDeployment
from skysail.kinds.serving.spec import naming, runtimes
from skysail.kinds.serving.spec.config import ServingConfig
from skysail.kinds.serving.spec.naming import Names
from skysail.kube.api.crd import CustomKind
from skysail.kube.api.fields import ResourceRequirements
from skysail.kube.api.objects import Object

_MAX_REPLICAS = 10
_CPU_PERCENT = 80
_SHARED = "ReadWriteMany"
_NO_VERSION = "1"


class FixedScale(msgspec.Struct, frozen=True):
    """Fixed number of servers."""

    replicas: int


class Autoscaling(msgspec.Struct, frozen=True):
    """Number of servers set by a HorizontalPodAutoscaler."""

    min: int
    max: int
    cpu_percent: int


class ModelStorage(msgspec.Struct, frozen=True):
    """PVC of the model. If `is_shared`, pods on several nodes can mount it."""

    size: str
    is_shared: bool


class ServiceRef(msgspec.Struct, frozen=True):
    """Service in front of the servers."""

    name: str
    port: int


class RevisionSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Part of the spec that determines the pods. It is hashed into the revision and stored in the history.

    - `runtime`: key of `runtimes.ROWS`.
    - `ready`: readiness path that overrides the runtime's own.
    - `script`: validation script that must succeed before the model is served.
    - `sha256`: expected digest of the content, in hexadecimal.
    - `credentials`: name of a Secret.
    - `env`: environment variables that the user adds to the server.
    - `offload`: annotations by which the servers ask for a cloud; empty if they run in the cluster.
    """

    uri: str
    version: str
    runtime: str
    image: str
    resources: dict[str, Any] = {}
    env: list[dict[str, Any]] = []
    script: str = ""
    sha256: str = ""
    credentials: str = ""
    ready: str = ""
    offload: dict[str, str] = {}


class DesiredModel(msgspec.Struct, frozen=True, kw_only=True):
    """Desired state of a model, and settings that apply to all of its revisions.

    `services` and `address` are empty if the model is not exposed. `period`: a new number replaces servers at a cloud.
    `ignores_cloud`: servers at a cloud do not count when a pod looks for the node of its PVC.
    """

    kind: CustomKind
    object: Object
    want: RevisionSpec
    scale: FixedScale | Autoscaling
    names: Names
    storage: ModelStorage | None = None
    services: tuple[ServiceRef, ...] = ()
    address: str = ""
    rollback_to: int | None = None
    period: int = 0
    ignores_cloud: bool = False

    @property
    def exposed(self) -> bool:
        return bool(self.services)


def desired_model(model: Model, config: ServingConfig) -> DesiredModel:
    if isinstance(model, ModelDeployment):
        return _deployment(model, config)
    return _ml_model(model, config)


def _deployment(model: ModelDeployment, config: ServingConfig) -> DesiredModel:
    spec, names = model.spec, naming.of_deployment(model.metadata.name)
    service, alias = names.services
    return DesiredModel(
        kind=MODEL_DEPLOYMENT,
        object=model,
        want=RevisionSpec(
            uri=spec.model_uri,
            version=spec.version,
            runtime=spec.runtime,
            image=spec.runtime_image or config.image(spec.runtime),
            resources=_resources(spec.resources),
            env=msgspec.to_builtins(list(spec.env)),
            script=spec.validate_script,
            sha256=_hexadecimal(spec.sha256),
            credentials=spec.credentials_secret or "",
            ready=_annotation(model, Annotation.READY_PATH),
            offload=_offload(model),
        ),
        scale=_scale(model),
        names=names,
        services=(ServiceRef(service, 8000), ServiceRef(alias, 80)),
        address=f"http://{service}.{model.metadata.namespace}.svc:8000",
        rollback_to=spec.rollback_to,
    )


def _ml_model(model: MLModel, config: ServingConfig) -> DesiredModel:
    spec, names = model.spec, naming.of_ml_model(model.metadata.name)
    runtime = runtimes.of_framework(spec.framework)
    service = ServiceRef(names.services[0], 8501)
    return DesiredModel(
        kind=ML_MODEL,
        object=model,
        want=RevisionSpec(
            uri=spec.model_url,
            version=_NO_VERSION,
            runtime=runtime,
            image=_annotation(model, Annotation.RUNTIME_IMAGE) or config.image(runtime),
            resources=_resources(spec.resources),
            env=msgspec.to_builtins(list(spec.env)),
            sha256=_hexadecimal(spec.sha256),
            credentials=spec.credentials_secret or "",
            ready=_annotation(model, Annotation.READY_PATH),
            offload=_offload(model),
        ),
        scale=FixedScale(spec.replicas),
        names=names,
        storage=ModelStorage(spec.storage_size, _annotation(model, Annotation.ACCESS_MODE) == _SHARED),
        services=(service,) if spec.expose else (),
        address=f"{service.name}.{model.metadata.namespace}.svc.cluster.local:{service.port}" if spec.expose else "",
        rollback_to=spec.rollback_to,
    )


def _scale(model: ModelDeployment) -> FixedScale | Autoscaling:
    spec = model.spec
    fewest = spec.min_replicas
    if not spec.autoscale:
        return FixedScale(fewest)
    most = spec.max_replicas or max(fewest, _MAX_REPLICAS)
    return Autoscaling(min(fewest, most), most, spec.target_cpu_utilization_percentage or _CPU_PERCENT)


def _resources(resources: ResourceRequirements | None) -> dict[str, Any]:
    return {} if resources is None else msgspec.to_builtins(resources)


def _hexadecimal(sha256: str | None) -> str:
    return (sha256 or "").removeprefix("sha256:")


def _offload(model: Object) -> dict[str, str]:
    return of_servers(model.metadata.annotations or {}, model.metadata.labels or {})


def _annotation(model: Object, name: Annotation) -> str:
    return (model.metadata.annotations or {}).get(name, "").strip()
