"""ModelDeployment and MLModel, as people write them.

People have manifests: a field may be added here, but none is renamed, and a bound only widens.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from skysail.kube.api import fields
from skysail.kube.api.crd import Column, CustomKind
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import Resource
from skysail.kube.api.schema import Rule

Runtime = Literal["triton", "torchserve", "fastapi-pytorch"]
Replicas = Annotated[int, Meta(ge=1, le=10000)]
ModelUri = Annotated[str, Meta(min_length=1, max_length=8192)]
Step = Literal["Storage", "Download", "Layout", "Validate", "Deploy", "Ready"]
Sha256 = Annotated[
    Annotated[str, Meta(max_length=71, pattern=r"^(sha256:)?[0-9a-f]{64}$")] | None,
    Meta(description="SHA-256 that the model must have, as status.digest shows it. Another content is refused."),
]
CredentialsSecret = Annotated[
    fields.Name | None,
    Meta(description="Secret of the namespace that the download logs in with. Its keys are those of the source."),
]
ServerEnv = Annotated[
    fields.Env, Meta(description="Environment variables of the server and of its validation, beside ours.")
]
RollbackTo = Annotated[
    Annotated[int, Meta(ge=1, le=2**31 - 1)] | None,
    Meta(description="Revision to serve in place of what the spec says, as status.revision had it."),
]


class Download(fields.Part, frozen=True, kw_only=True):
    """How far the download is."""

    bytes: Annotated[fields.Generation, Meta(description="Bytes that are there.")] = 0
    total: Annotated[fields.Generation | None, Meta(description="Bytes in all. Absent: the source does not tell.")] = (
        None
    )
    percent: Annotated[Annotated[int, Meta(ge=0, le=100)] | None, Meta(description="Part that is there.")] = None
    remaining_seconds: Annotated[fields.Seconds | None, Meta(description="Seconds to go.")] = None
    last_updated_time: Annotated[fields.Time | None, Meta(description="When this was read.")] = None


class Failure(fields.Part, frozen=True, kw_only=True):
    """What went wrong with a revision. The one that is served goes on."""

    step: Annotated[Step, Meta(description="The step that failed.")]
    reason: Annotated[fields.ShortText, Meta(description="Why, as one word.")]
    message: Annotated[fields.Message, Meta(description="Why, as a sentence with the fix in it.")] = ""
    revision: Annotated[fields.ShortText, Meta(description="The revision, by its hash.")] = ""
    exit_code: Annotated[
        Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None, Meta(description="Exit code of the container.")
    ] = None
    log: Annotated[fields.Message, Meta(description="The last lines of its log.")] = ""
    failure_time: Annotated[fields.Time | None, Meta(description="When it was seen.")] = None
    attempts: Annotated[
        fields.Count, Meta(description="How often it was tried and failed. Interruptions are not counted.")
    ] = 0


class ServingStatus(fields.Part, frozen=True, kw_only=True):
    """What the status of either kind tells of its revisions."""

    conditions: fields.Conditions = ()
    revision: Annotated[fields.Count, Meta(description="Number of the revision that is served.")] = 0
    candidate: Annotated[
        fields.ShortText, Meta(description="The revision that is on its way, by its hash. Empty: none is.")
    ] = ""
    digest: Annotated[fields.ShortText, Meta(description="Digest of the content that is served.")] = ""
    replicas: Annotated[fields.Count, Meta(description="Servers that are there.")] = 0
    ready_replicas: Annotated[fields.Count, Meta(description="Servers that answer.")] = 0
    download: Annotated[Download | None, Meta(description="How far the download is.")] = None
    failure: Annotated[Failure | None, Meta(description="What went wrong last.")] = None


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
    min_replicas: Annotated[
        Replicas | None, Meta(description="Fewest servers with autoscale, their number without. Absent: 1.")
    ] = None
    max_replicas: Annotated[
        Replicas | None, Meta(description="Most servers with autoscale. Absent: 10, or minReplicas where that is more.")
    ] = None
    target_cpu_utilization_percentage: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        Meta(description="CPU use, in percent of the request, that autoscale keeps to. Absent: 80."),
    ] = field(default=None, name="targetCPUUtilizationPercentage")
    sha256: Sha256 = None
    credentials_secret: CredentialsSecret = None
    env: ServerEnv = ()
    rollback_to: RollbackTo = None


class ModelDeploymentStatus(ServingStatus, frozen=True, kw_only=True):
    """What has become of the model."""

    phase: Annotated[
        Literal["Pending", "Validating", "Deploying", "Ready", "Failed"] | None,
        Meta(description="A summary of the conditions."),
    ] = None
    message: Annotated[fields.Message, Meta(description="The phase, as a sentence.")] = ""
    version: Annotated[fields.ShortText, Meta(description="The version that is served.")] = ""
    url: Annotated[fields.Url, Meta(description="Where the model answers inside the cluster.")] = ""
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
    resources: Annotated[fields.ResourceRequirements | None, Meta(description="Compute resources of each server.")] = (
        None
    )
    sha256: Sha256 = None
    credentials_secret: CredentialsSecret = None
    env: ServerEnv = ()
    rollback_to: RollbackTo = None


class MLModelStatus(ServingStatus, frozen=True, kw_only=True):
    """What has become of the model."""

    phase: Annotated[MlPhase, Meta(description="The step that the model is at.")]
    observed_generation: fields.ObservedGeneration
    message: Annotated[fields.Message, Meta(description="The phase, as a sentence.")] = ""
    service_endpoint: Annotated[fields.Url, Meta(description="Where the model answers inside the cluster.")] = ""


class MLModel(Object, frozen=True, gc=False, rename="camel"):
    """A model that is downloaded to a volume and served from there."""

    spec: MLModelSpec
    # A status needs both fields from its first write on.
    status: MLModelStatus = field(default_factory=lambda: MLModelStatus(phase="Pending", observed_generation=0))


Model = ModelDeployment | MLModel

_WIDE = (
    Column("Revision", ".status.revision", "integer", "Number of the revision that is served.", priority=1),
    Column("Ready", ".status.readyReplicas", "integer", "Servers that answer.", priority=1),
    Column("Why", ".status.message", priority=1),
)
MODEL_DEPLOYMENT = CustomKind(
    resource=Resource("mlops.sathvik.dev", "v1", "modeldeployments", "ModelDeployment"),
    struct=ModelDeployment,
    columns=(
        Column("Runtime", ".spec.runtime"),
        Column("Version", ".status.version", "string", "Version that is served."),
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
    # The group looks doubled and is right: it is what people have in their manifests.
    resource=Resource("oda.tmforum.org.oda.tmforum.org", "v1beta1", "mlmodels", "MLModel"),
    struct=MLModel,
    columns=(
        Column("Framework", ".spec.framework"),
        Column("Phase", ".status.phase"),
        Column("Endpoint", ".status.serviceEndpoint", priority=1),
        *_WIDE,
    ),
)

KINDS = (MODEL_DEPLOYMENT, ML_MODEL)
