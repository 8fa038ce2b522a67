"""TrainingJob, as people write it; and the list of the kinds that this engine runs.

People have manifests: a field may be added here, but none is renamed, and a bound only widens.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from skysail.kinds.training.api.modal_job import MODAL_JOB
from skysail.kinds.training.api.train_job import TRAIN_JOB
from skysail.kube.api import fields
from skysail.kube.api.crd import Column, CustomKind, Scale
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import Resource
from skysail.kube.api.schema import Rule, cel

Framework = Literal["pytorch", "tensorflow", "xgboost", "jax"]
Phase = Literal["Pending", "Running", "Succeeded", "Failed", "Suspended", "Restarting"]
Cause = Literal[
    "Succeeded",
    "Failed",
    "Preempted",
    "NodeLost",
    "Evicted",
    "Suspended",
    "WorldSizeChanged",
    "SpecChanged",
    "Deleted",
    "DeadlineExceeded",
]
Workers = Annotated[int, Meta(ge=1, le=100)]


class RunPolicy(fields.Part, frozen=True):
    """How long a job may run, how often it may fail, and what is left of it."""

    backoff_limit: Annotated[
        int, Meta(ge=0, le=100, description="How many failed attempts are started anew. Preemption costs none.")
    ] = 3
    active_deadline_seconds: Annotated[
        Annotated[int, Meta(ge=1, le=2**31 - 1)] | None,
        Meta(description="Seconds after which a running job is stopped and failed."),
    ] = None
    ttl_seconds_after_finished: Annotated[
        fields.Seconds | None, Meta(description="Seconds after which a finished job is deleted. Absent: never.")
    ] = None
    clean_pod_policy: Annotated[
        Literal["All", "Running", "None"], Meta(description="Which pods are deleted when the job ends.")
    ] = "Running"


class Role(fields.Part, frozen=True):
    """A pod beside the workers. What it does not say is as for a worker."""

    image: Annotated[fields.Image | None, Meta(description="Container image.")] = None
    command: Annotated[fields.Words, Meta(description="Command that replaces the image's entrypoint.")] = ()
    args: Annotated[fields.Words, Meta(description="Arguments of the command.")] = ()
    resources: Annotated[fields.ResourceRequirements | None, Meta(description="Compute resources of each pod.")] = None


class ParameterServers(Role, frozen=True):
    """The pods that hold the parameters."""

    replicas: Annotated[int, Meta(ge=1, le=100, description="Number of parameter servers.")] = 1


class Roles(fields.Part, frozen=True):
    """Pods beside the workers."""

    parameter_servers: Annotated[
        ParameterServers | None, Meta(description="Parameter servers, for asynchronous training with TensorFlow.")
    ] = None
    chief: Annotated[Role | None, Meta(description="The one that coordinates. Absent: worker 0.")] = None
    evaluator: Annotated[Role | None, Meta(description="The one that evaluates checkpoints while others train.")] = None


class Scheduling(fields.Part, frozen=True):
    """How the pods of an attempt get their places."""

    gang: Annotated[
        Literal["none", "kueue", "volcano"],
        Meta(
            description="Who starts all pods or none. One that is not installed is reported, never left out silently."
        ),
    ] = "none"
    queue: Annotated[fields.Name | None, Meta(description="Queue of the gang scheduler.")] = None
    priority_class: Annotated[fields.Name | None, Meta(description="Name of a PriorityClass.")] = None


class Elastic(fields.Part, frozen=True):
    """Bounds for a job that goes on with more or fewer workers."""

    min: Annotated[Workers, Meta(description="Fewest workers to train with.")]
    max: Annotated[Workers, Meta(description="Most workers to train with.")]


class Checkpoint(fields.Part, frozen=True):
    """The volume behind checkpointDir."""

    claim_name: Annotated[
        fields.Name | None, Meta(description="An existing PersistentVolumeClaim. Absent: one is made for the job.")
    ] = None
    size: Annotated[fields.Quantity | None, Meta(description="Size of the claim that is made.")] = None
    storage_class_name: Annotated[
        fields.Name | None, Meta(description="StorageClass of the claim that is made. Absent: the default one.")
    ] = None
    access_mode: Annotated[
        Literal["ReadWriteOnce", "ReadWriteMany"] | None,
        Meta(description="Access mode of the claim that is made. Absent: ReadWriteMany with more than one worker."),
    ] = None
    grace_period_seconds: Annotated[
        Annotated[int, Meta(ge=0, le=86400)] | None,
        Meta(description="Seconds between the signal to save and the end, when a job is stopped on purpose."),
    ] = None


_CHECKPOINT_RULES = cel(
    Rule(
        "!has(self.claimName) || !(has(self.size) || has(self.storageClassName) || has(self.accessMode))",
        "claimName names a claim that exists: remove size, storageClassName and accessMode, or remove claimName",
        ".claimName",
    )
)
_ELASTIC_RULES = cel(Rule("self.min <= self.max", "min is above max: lower min or raise max", ".min"))
_FRAMEWORK_RULES = cel(
    Rule("self == oldSelf", "framework cannot be changed: delete the TrainingJob and create it with the other one")
)


class TrainingJobSpec(fields.Part, frozen=True):
    """What to train, with how many workers."""

    framework: Annotated[
        Framework, Meta(description="The machine-learning framework. Immutable.", extra_json_schema=_FRAMEWORK_RULES)
    ]
    image: Annotated[fields.Image, Meta(description="Container image for training.")]
    command: Annotated[fields.Words, Meta(min_length=1, description="The training command.")]
    args: Annotated[fields.Words, Meta(description="Arguments for the command.")] = ()
    workers: Annotated[Workers, Meta(description="Number of worker pods. May be changed while the job runs.")] = 1
    gpu_per_worker: Annotated[int, Meta(ge=0, le=8, description="GPUs for each worker.")] = 0
    resources: Annotated[fields.ResourceRequirements | None, Meta(description="Compute resources of each worker.")] = (
        None
    )
    data_volume: Annotated[
        fields.PersistentVolumeClaimVolumeSource | None, Meta(description="Training data, mounted at /data.")
    ] = None
    checkpoint_dir: Annotated[
        fields.Path, Meta(description="Where checkpoints are saved. A volume is mounted there.")
    ] = ""
    checkpoint_interval: Annotated[int, Meta(ge=1, le=2**31 - 1, description="Epochs between two checkpoints.")] = 1
    hyperparameters: Annotated[
        dict[str, fields.FreeForm],
        Meta(
            max_length=1024,
            description="Strings, numbers or booleans. Each worker finds learningRate as HYPERPARAM_LEARNINGRATE in "
            "its environment, and all of them in /etc/skysail/hyperparameters.json.",
        ),
    ] = field(default_factory=dict)
    restart_policy: Annotated[
        Literal["OnFailure", "Never"], Meta(description="Whether a failed attempt is started anew.")
    ] = "OnFailure"
    suspend: Annotated[bool, Meta(description="Whether the job is held: its pods end, its checkpoints stay.")] = False
    managed_by: Annotated[
        Annotated[str, Meta(min_length=1, max_length=63, pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")] | None,
        Meta(description="The controller that works on this job, as domain/name. Absent: Skysail. Immutable."),
    ] = None
    run_policy: Annotated[
        RunPolicy, Meta(description="How long the job may run, how often it may fail, and what is left of it.")
    ] = RunPolicy()
    scheduling: Annotated[Scheduling | None, Meta(description="Gang scheduling, queue and priority.")] = None
    roles: Annotated[Roles | None, Meta(description="Pods beside the workers.")] = None
    elastic: Annotated[
        Elastic | None,
        Meta(
            description="Lets the number of workers change while the job runs, between these bounds.",
            extra_json_schema=_ELASTIC_RULES,
        ),
    ] = None
    checkpoint: Annotated[
        Checkpoint | None, Meta(description="The volume behind checkpointDir.", extra_json_schema=_CHECKPOINT_RULES)
    ] = None
    pod_template: Annotated[
        fields.PodTemplate | None, Meta(description="Labels, annotations and pod fields that are laid over ours.")
    ] = None


class WorkerStatus(fields.Part, frozen=True, kw_only=True):
    """State of one worker."""

    worker_id: Annotated[fields.Count, Meta(description="Index of the worker.")]
    pod_name: Annotated[fields.ShortText, Meta(description="Name of its pod.")]
    phase: Annotated[
        Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"], Meta(description="Phase of its pod.")
    ]
    restart_count: Annotated[
        fields.Count, Meta(description="Restarts of its container, those of earlier attempts included.")
    ]


class Failure(fields.Part, frozen=True, kw_only=True):
    """The pod that made an attempt fail."""

    role: Annotated[fields.ShortText, Meta(description="Role of the pod.")]
    index: Annotated[fields.Count | None, Meta(description="Index of the pod in its role. Absent: unknown.")] = None
    pod: Annotated[fields.ShortText, Meta(description="Name of the pod. Empty: it was gone before it was seen.")] = ""
    node: Annotated[fields.ShortText, Meta(description="Node that it ran on.")] = ""
    exit_code: Annotated[
        Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None, Meta(description="Exit code of its container.")
    ] = None
    reason: Annotated[fields.ShortText, Meta(description="Why, as one word.")] = ""
    message: Annotated[fields.Message, Meta(description="The last lines of its log.")] = ""


class NewestCheckpoint(fields.Part, frozen=True, kw_only=True):
    """The newest complete checkpoint."""

    path: Annotated[fields.Path, Meta(description="Where it is.")]
    step: Annotated[fields.Generation | None, Meta(description="Step that it was made at.")] = None
    save_time: Annotated[fields.Time | None, Meta(description="When it was complete.")] = None
    claim_name: Annotated[
        fields.Name | None, Meta(description="PersistentVolumeClaim that it is on. Absent: unknown.")
    ] = None


class Attempt(fields.Part, frozen=True, kw_only=True):
    """One run of all workers."""

    number: Annotated[fields.Count, Meta(description="Counts from 0.")]
    start_time: Annotated[fields.Time | None, Meta(description="When it began.")] = None
    run_time: Annotated[fields.Time | None, Meta(description="When as many of its pods ran as it needs.")] = None
    end_time: Annotated[fields.Time | None, Meta(description="When it was over, and its pods were told to end.")] = None
    cause: Annotated[Cause | None, Meta(description="What ended it. Only Failed costs a retry.")] = None
    failure: Annotated[Failure | None, Meta(description="The pod that made it fail.")] = None
    resumed_from: Annotated[NewestCheckpoint | None, Meta(description="The checkpoint that it began at.")] = None
    spec_hash: Annotated[
        fields.ShortText, Meta(description="Stands for what it was made from, the number of workers aside.")
    ] = ""


class Metric(fields.Part, frozen=True, kw_only=True):
    """One number that the training reported."""

    name: Annotated[fields.ShortText, Meta(description="Name, such as loss.")]
    value: Annotated[fields.ShortText, Meta(description="Value, as the training wrote it.")]


class Progress(fields.Part, frozen=True, kw_only=True):
    """How far the training is, as it reported itself."""

    percent: Annotated[Annotated[int, Meta(ge=0, le=100)] | None, Meta(description="Part that is done.")] = None
    epoch: Annotated[fields.Count | None, Meta(description="Epoch under way.")] = None
    step: Annotated[fields.Generation | None, Meta(description="Step under way.")] = None
    estimated_remaining_seconds: Annotated[fields.Seconds | None, Meta(description="Seconds to go.")] = None
    metrics: Annotated[tuple[Metric, ...], Meta(max_length=64, description="The newest metrics.")] = ()
    last_updated_time: Annotated[fields.Time | None, Meta(description="When the training last reported.")] = None


class TrainingJobStatus(fields.Part, frozen=True, kw_only=True):
    """What has become of the job."""

    phase: Annotated[Phase | None, Meta(description="A summary of the conditions.")] = None
    start_time: Annotated[fields.Time | None, Meta(description="When training began.")] = None
    completion_time: Annotated[fields.Time | None, Meta(description="When training ended.")] = None
    worker_statuses: Annotated[tuple[WorkerStatus, ...], Meta(max_length=100, description="State of each worker.")] = ()
    conditions: fields.Conditions = ()
    observed_generation: fields.ObservedGeneration = 0
    replicas: Annotated[fields.Count, Meta(description="Workers that are there, for the scale subresource.")] = 0
    selector: Annotated[fields.Text, Meta(description="Label selector of the workers, for the scale subresource.")] = ""
    attempts: Annotated[tuple[Attempt, ...], Meta(max_length=10, description="The newest attempts, oldest first.")] = ()
    retries: Annotated[
        fields.Count, Meta(description="Failed attempts of what is trained now; each one costs a retry.")
    ] = 0
    failure: Annotated[Failure | None, Meta(description="The pod that failed last.")] = None
    progress: Annotated[Progress | None, Meta(description="How far the training is.")] = None
    checkpoint: Annotated[NewestCheckpoint | None, Meta(description="The newest complete checkpoint.")] = None


class TrainingJob(Object, frozen=True, gc=False, rename="camel"):
    """A training run of one or more workers with PyTorch, TensorFlow, XGBoost or JAX.

    Skysail makes the pods, tells each worker its rank and the address of the first one, starts a failed attempt anew
    from the newest checkpoint, and says in the status why a job is where it is.
    """

    spec: TrainingJobSpec
    status: TrainingJobStatus = field(default_factory=TrainingJobStatus)


TRAINING_JOB = CustomKind(
    resource=Resource("ml.example.com", "v1alpha1", "trainingjobs", "TrainingJob"),
    struct=TrainingJob,
    short_names=("tj", "trainingjob"),
    columns=(
        Column("Framework", ".spec.framework"),
        Column("Workers", ".spec.workers", "integer"),
        Column("Phase", ".status.phase"),
        Column("%", ".status.progress.percent", "integer", "Part that is done.", priority=1),
        Column("Checkpoint", ".status.checkpoint.step", "integer", "Step of the newest checkpoint.", priority=1),
        Column("Retries", ".status.retries", "integer", priority=1),
        Column("Why", '.status.conditions[?(@.type=="Running")].message', priority=1),
    ),
    scale=Scale(".spec.workers", ".status.replicas", ".status.selector"),
    rules=(
        Rule(
            "!has(self.elastic) || (self.workers >= self.elastic.min && self.workers <= self.elastic.max)",
            "workers is outside elastic.min and elastic.max: change workers, or widen elastic",
            ".workers",
        ),
        Rule(
            "has(self.managedBy) == has(oldSelf.managedBy) "
            "&& (!has(self.managedBy) || self.managedBy == oldSelf.managedBy)",
            "managedBy cannot be changed: delete the TrainingJob and create it with the other one",
            ".managedBy",
        ),
        Rule(
            "!has(self.scheduling) || !has(self.scheduling.queue) || self.scheduling.gang != 'none'",
            "a queue needs a gang scheduler: set scheduling.gang to kueue or volcano, or remove the queue",
            ".scheduling.queue",
        ),
        Rule(
            "!has(self.roles) || self.framework == 'tensorflow' "
            "|| !(has(self.roles.chief) || has(self.roles.parameterServers))",
            "only TensorFlow has a chief and parameter servers: remove them from roles, worker 0 coordinates",
            ".roles",
        ),
    ),
    kept_names=frozenset({"checkpointInterval"}),
)

KINDS = (TRAINING_JOB, MODAL_JOB)
COMPATIBLE_KINDS = (TRAIN_JOB,)
