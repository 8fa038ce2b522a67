"""API types ModelDeployment and MLModel.

They are compatible with existing manifests: fields may be added but not renamed, and bounds may only widen.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from skysail.kube.api import fields
from skysail.kube.api.crd import Column, CustomKind, Scale
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import Resource
from skysail.kube.api.schema import Rule

Runtime = Literal["triton", "torchserve", "fastapi-pytorch"]
Replicas = Annotated[int, Meta(ge=1, le=10000)]
ModelUri = Annotated[str, Meta(min_length=1, max_length=8192)]
Step = Literal["Storage", "Download", "Layout", "Validate", "Deploy", "Ready"]
Sha256 = Annotated[
    Annotated[str, Meta(max_length=71, pattern=r"^(sha256:)?[0-9a-f]{64}$")] | None,
    Meta(description="Expected SHA-256 of the model, as shown in status.digest. Other content is rejected."),
]
CredentialsSecret = Annotated[
    fields.Name | None,
    Meta(description="Secret of the namespace with credentials for the download. Its keys depend on the source."),
]
ServerEnv = Annotated[
    fields.Env, Meta(description="Additional environment variables of the server and of its validation.")
]
RollbackTo = Annotated[
    Annotated[int, Meta(ge=1, le=2**31 - 1)] | None,
    Meta(description="Number of an earlier revision to serve instead of the spec, from status.revision."),
]


class Download(fields.ApiStruct, frozen=True, kw_only=True):
    """Progress of the download."""

    bytes: Annotated[fields.Generation, Meta(description="Bytes downloaded so far.")] = 0
    total: Annotated[fields.Generation | None, Meta(description="Total bytes. Absent: unknown to the source.")] = None
    percent: Annotated[Annotated[int, Meta(ge=0, le=100)] | None, Meta(description="Percentage downloaded.")] = None
    remaining_seconds: Annotated[fields.Seconds | None, Meta(description="Estimated seconds left.")] = None
    last_updated_time: Annotated[fields.Time | None, Meta(description="Time of this progress.")] = None


class Failure(fields.ApiStruct, frozen=True, kw_only=True):
    """Last failure of a revision. The served revision is not affected."""

    step: Annotated[Step, Meta(description="The step that failed.")]
    reason: Annotated[fields.ShortText, Meta(description="Reason in one word.")]
    message: Annotated[fields.Message, Meta(description="Reason as a sentence with the fix.")] = ""
    revision: Annotated[fields.ShortText, Meta(description="Hash of the revision.")] = ""
    exit_code: Annotated[
        Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None, Meta(description="Exit code of the container.")
    ] = None
    log: Annotated[fields.Message, Meta(description="Last lines of the container's log.")] = ""
    failure_time: Annotated[fields.Time | None, Meta(description="Time of the failure.")] = None
    attempts: Annotated[fields.Count, Meta(description="Number of failed attempts. Interruptions are not counted.")] = 0


class ServingStatus(fields.ApiStruct, frozen=True, kw_only=True):
    """Status fields that both kinds share."""

    conditions: fields.Conditions = ()
    revision: Annotated[fields.Count, Meta(description="Number of the served revision.")] = 0
    candidate: Annotated[
        fields.ShortText, Meta(description="Hash of the revision in preparation or rollout. Empty: none.")
    ] = ""
    digest: Annotated[fields.ShortText, Meta(description="Digest of the served content.")] = ""
    replicas: Annotated[fields.Count, Meta(description="Number of servers.")] = 0
    ready_replicas: Annotated[fields.Count, Meta(description="Number of servers that are ready.")] = 0
    selector: Annotated[fields.Text, Meta(description="Label selector of the servers, for the scale subresource.")] = ""
    download: Annotated[Download | None, Meta(description="Progress of the download.")] = None
    failure: Annotated[Failure | None, Meta(description="Last failure.")] = None


class ModelDeploymentSpec(fields.ApiStruct, frozen=True):
    """Model to serve, and its servers."""

    model_uri: Annotated[ModelUri, Meta(description="Address of the model.")] = field(name="modelURI")
    runtime: Annotated[Runtime, Meta(description="Runtime that serves the model.")]
    resources: Annotated[fields.ResourceRequirements, Meta(description="Compute resources of each server.")] = (
        fields.ResourceRequirements()
    )
    autoscale: Annotated[bool, Meta(description="Whether a HorizontalPodAutoscaler sets the number of servers.")] = (
        False
    )
    version: Annotated[
        str, Meta(min_length=1, max_length=256, description="Version of the model. A new version is rolled out.")
    ] = "v1"
    validate_script: Annotated[
        fields.Path,
        Meta(description="Script that must succeed before the model is served. Empty: no validation."),
    ] = ""
    runtime_image: Annotated[fields.Image | None, Meta(description="Image that overrides the runtime's own.")] = None
    min_replicas: Annotated[
        Replicas, Meta(description="Minimum with autoscale, number of servers without. `kubectl scale` sets it.")
    ] = 1
    max_replicas: Annotated[
        Replicas | None, Meta(description="Maximum with autoscale. Absent: 10, or minReplicas if that is more.")
    ] = None
    target_cpu_utilization_percentage: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        Meta(description="Target CPU use of autoscale, in percent of the request. Absent: 80."),
    ] = field(default=None, name="targetCPUUtilizationPercentage")
    sha256: Sha256 = None
    credentials_secret: CredentialsSecret = None
    env: ServerEnv = ()
    rollback_to: RollbackTo = None


class ModelDeploymentStatus(ServingStatus, frozen=True, kw_only=True):
    """Observed state of the model."""

    phase: Annotated[
        Literal["Pending", "Validating", "Deploying", "Ready", "Failed"] | None,
        Meta(description="Summary of the conditions."),
    ] = None
    message: Annotated[fields.Message, Meta(description="Explanation of the phase.")] = ""
    version: Annotated[fields.ShortText, Meta(description="Served version.")] = ""
    url: Annotated[fields.Url, Meta(description="Address of the model inside the cluster.")] = ""
    observed_generation: fields.ObservedGeneration = 0


class ModelDeployment(Object, frozen=True, gc=False, rename="camel"):
    """A model that is downloaded, validated and served.

    A change is rolled out beside the served revision and replaces it only when its servers are ready.
    """

    spec: ModelDeploymentSpec
    status: ModelDeploymentStatus = field(default_factory=ModelDeploymentStatus)


MlPhase = Literal["Pending", "CreatingStorage", "Downloading", "Serving", "Ready", "Failed", "Terminating"]


class MLModelSpec(fields.ApiStruct, frozen=True, kw_only=True):
    """Model to serve, and its servers."""

    model_url: Annotated[fields.Url, Meta(description="Address of the model.")] = field(default="", name="modelURL")
    storage_size: Annotated[fields.QuantityText, Meta(description="Size of the PVC for the model, such as 5Gi.")]
    framework: Annotated[
        str, Meta(min_length=1, max_length=63, description="Framework of the model, such as tensorflow.")
    ]
    replicas: Annotated[int, Meta(ge=0, le=10000, description="Number of servers.")] = 1
    expose: Annotated[bool, Meta(description="Whether to create a Service for the model.")]
    resources: Annotated[fields.ResourceRequirements | None, Meta(description="Compute resources of each server.")] = (
        None
    )
    sha256: Sha256 = None
    credentials_secret: CredentialsSecret = None
    env: ServerEnv = ()
    rollback_to: RollbackTo = None


class MLModelStatus(ServingStatus, frozen=True, kw_only=True):
    """Observed state of the model."""

    phase: Annotated[MlPhase, Meta(description="Current step of the model.")]
    observed_generation: fields.ObservedGeneration
    message: Annotated[fields.Message, Meta(description="Explanation of the phase.")] = ""
    service_endpoint: Annotated[fields.Url, Meta(description="Address of the model inside the cluster.")] = ""


class MLModel(Object, frozen=True, gc=False, rename="camel"):
    """A model that is downloaded to a PVC and served from there."""

    spec: MLModelSpec
    # The CRD requires both fields from the first status write on.
    status: MLModelStatus = field(default_factory=lambda: MLModelStatus(phase="Pending", observed_generation=0))


Model = ModelDeployment | MLModel

_WIDE = (
    Column("Revision", ".status.revision", "integer", "Number of the served revision.", priority=1),
    Column("Ready", ".status.readyReplicas", "integer", "Number of servers that are ready.", priority=1),
    Column("Why", ".status.message", priority=1),
)
MODEL_DEPLOYMENT = CustomKind(
    resource=Resource("mlops.sathvik.dev", "v1", "modeldeployments", "ModelDeployment"),
    struct=ModelDeployment,
    short_names=("md",),
    scale=Scale(".spec.minReplicas", ".status.replicas", ".status.selector"),
    columns=(
        Column("Runtime", ".spec.runtime"),
        Column("Version", ".status.version", "string", "Served version."),
        Column("Phase", ".status.phase"),
        Column("URL", ".status.url"),
        *_WIDE,
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
    # The group looks doubled, but existing manifests have it.
    resource=Resource("oda.tmforum.org.oda.tmforum.org", "v1beta1", "mlmodels", "MLModel"),
    struct=MLModel,
    short_names=("mlm",),
    scale=Scale(".spec.replicas", ".status.replicas", ".status.selector"),
    columns=(
        Column("Framework", ".spec.framework"),
        Column("Phase", ".status.phase"),
        Column("Endpoint", ".status.serviceEndpoint", priority=1),
        *_WIDE,
    ),
)

KINDS = (MODEL_DEPLOYMENT, ML_MODEL)
