"""ModelDeployment and MLModel, as people write them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from skysail.kube import fields
from skysail.kube.crd import Column, CustomKind
from skysail.kube.objects import Object
from skysail.kube.resources import Resource
from skysail.kube.schema import Rule

Runtime = Literal["triton", "torchserve", "fastapi-pytorch"]
Replicas = Annotated[int, Meta(ge=1, le=10000)]
ModelUri = Annotated[str, Meta(min_length=1, max_length=8192)]


class ModelDeploymentSpec(fields.Part, frozen=True):
    """Which model to serve, and how."""

    model_uri: Annotated[ModelUri, Meta(description="Where the model is.")] = field(name="modelURI")
    runtime: Annotated[Runtime, Meta(description="The server that the model runs in.")]
    resources: Annotated[fields.ResourceRequirements, Meta(description="Compute resources of each server.")]
    autoscale: Annotated[bool, Meta(description="Whether a HorizontalPodAutoscaler sets the number of servers.")]
    version: Annotated[
        str, Meta(min_length=1, max_length=256, description="Version of the model. A new one is rolled out.")
    ]
    validate_script: Annotated[
        fields.Path,
        Meta(description="Script that must succeed with the model before it is served. Empty: none is run."),
    ] = ""
    runtime_image: Annotated[fields.Image | None, Meta(description="Image in place of the runtime's own.")] = None
    min_replicas: Annotated[Replicas | None, Meta(description="Fewest servers with autoscale.")] = None
    max_replicas: Annotated[Replicas | None, Meta(description="Most servers with autoscale.")] = None
    target_cpu_utilization_percentage: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        Meta(description="CPU use, in percent of the request, that autoscale keeps to."),
    ] = field(default=None, name="targetCPUUtilizationPercentage")


class ModelDeploymentStatus(fields.Part, frozen=True, kw_only=True):
    """What has become of the model."""

    phase: Annotated[
        Literal["Pending", "Validating", "Deploying", "Ready", "Failed"] | None,
        Meta(description="A summary of the conditions."),
    ] = None
    message: Annotated[fields.Message, Meta(description="The phase, as a sentence.")] = ""
    version: Annotated[fields.ShortText, Meta(description="The version that is served.")] = ""
    url: Annotated[fields.Url, Meta(description="Where the model answers inside the cluster.")] = ""
    conditions: fields.Conditions = ()
    observed_generation: fields.ObservedGeneration = 0


class ModelDeployment(Object, frozen=True, gc=False, rename="camel"):
    """A model that is downloaded, validated and served.

    A change is rolled out beside what is served, and takes over only when it answers.
    """

    spec: ModelDeploymentSpec
    status: ModelDeploymentStatus = field(default_factory=ModelDeploymentStatus)


MlPhase = Literal["Pending", "CreatingStorage", "Downloading", "Serving", "Ready", "Failed", "Terminating"]


class MLModelSpec(fields.Part, frozen=True, kw_only=True):
    """Which model to serve, and how."""

    model_url: Annotated[fields.Url, Meta(description="Where the model is.")] = field(default="", name="modelURL")
    storage_size: Annotated[fields.QuantityText, Meta(description="Size of the volume for the model, such as 5Gi.")]
    framework: Annotated[
        str, Meta(min_length=1, max_length=63, description="Framework of the model, such as tensorflow.")
    ]
    replicas: Annotated[int, Meta(ge=0, le=10000, description="Number of servers.")]
    expose: Annotated[bool, Meta(description="Whether a Service makes the model reachable.")]


class MLModelStatus(fields.Part, frozen=True, kw_only=True):
    """What has become of the model."""

    phase: Annotated[MlPhase, Meta(description="The step that the model is at.")]
    observed_generation: fields.ObservedGeneration
    message: Annotated[fields.Message, Meta(description="The phase, as a sentence.")] = ""
    service_endpoint: Annotated[fields.Url, Meta(description="Where the model answers inside the cluster.")] = ""
    conditions: fields.Conditions = ()


class MLModel(Object, frozen=True, gc=False, rename="camel"):
    """A model that is downloaded to a volume and served from there."""

    spec: MLModelSpec
    # A status needs both fields from its first write on.
    status: MLModelStatus = field(default_factory=lambda: MLModelStatus(phase="Pending", observed_generation=0))


MODEL_DEPLOYMENT = CustomKind(
    resource=Resource("mlops.sathvik.dev", "v1", "modeldeployments", "ModelDeployment"),
    struct=ModelDeployment,
    columns=(
        Column("Runtime", ".spec.runtime"),
        Column("Version", ".spec.version"),
        Column("Phase", ".status.phase"),
        Column("URL", ".status.url"),
    ),
    rules=(
        Rule(
            "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            "minReplicas is above maxReplicas: lower minReplicas or raise maxReplicas",
            ".minReplicas",
        ),
    ),
)
ML_MODEL = CustomKind(
    # The group looks doubled and is right: it is what people have in their manifests.
    resource=Resource("oda.tmforum.org.oda.tmforum.org", "v1beta1", "mlmodels", "MLModel"),
    struct=MLModel,
    columns=(
        Column("Framework", ".spec.framework"),
        Column("Phase", ".status.phase"),
        Column("Endpoint", ".status.serviceEndpoint", priority=1),
    ),
)

KINDS = (MODEL_DEPLOYMENT, ML_MODEL)
