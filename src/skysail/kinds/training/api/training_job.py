"""API type TrainingJob, and the list of kinds of this engine.

Users have manifests: fields may be added but never renamed, and a bound may only be widened.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import Meta, field

from skysail.kinds.training.api.modal_job import MODAL_JOB
from skysail.kinds.training.api.train_job import TRAIN_JOB
from skysail.kube.api import fields
from skysail.kube.api.crd import Column, CustomKind, Scale
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import Resource
from skysail.kube.api.schema import Rule, cel_rules

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
Retain = Literal["Always", "OnFailure", "Never"]
Workers = Annotated[int, Meta(ge=1, le=100)]
# Names under which frameworks report the epoch and the step.
EPOCH_METRICS = ("current_epoch", "epoch")
STEP_METRICS = ("current_step", "global_step", "step")


class RunPolicy(fields.ApiStruct, frozen=True):
    """Limits of duration and retries, and cleanup after the job finished."""

    backoff_limit: Annotated[
        int, Meta(ge=0, le=100, description="Number of retries of failed attempts. Preemption costs no retry.")
    ] = 3
    active_deadline_seconds: Annotated[
        Annotated[int, Meta(ge=1, le=2**31 - 1)] | None,
        Meta(description="Seconds after which a running job is stopped and fails."),
    ] = None
    ttl_seconds_after_finished: Annotated[
        fields.Seconds | None, Meta(description="Seconds after which a finished job is deleted. Absent: never.")
    ] = None
    clean_pod_policy: Annotated[
        Literal["All", "Running", "None"], Meta(description="Pods to delete when the job finishes.")
    ] = "Running"


class RoleSpec(fields.ApiStruct, frozen=True):
    """Pod beside the workers. Fields that are not set are those of a worker."""

    image: Annotated[fields.Image | None, Meta(description="Container image.")] = None
    command: Annotated[fields.Words, Meta(description="Command that replaces the image's entrypoint.")] = ()
    args: Annotated[fields.Words, Meta(description="Arguments of the command.")] = ()
    resources: Annotated[fields.ResourceRequirements | None, Meta(description="Compute resources of each pod.")] = None


class ParameterServers(RoleSpec, frozen=True):
    """Pods that hold the parameters."""

    replicas: Annotated[int, Meta(ge=1, le=100, description="Number of parameter servers.")] = 1


class ReplicaRoles(fields.ApiStruct, frozen=True):
    """Pods beside the workers."""

    parameter_servers: Annotated[
        ParameterServers | None, Meta(description="Parameter servers, for asynchronous training with TensorFlow.")
    ] = None
    chief: Annotated[RoleSpec | None, Meta(description="Pod that coordinates. Absent: worker 0.")] = None
    evaluator: Annotated[RoleSpec | None, Meta(description="Pod that evaluates checkpoints while others train.")] = None


class Scheduling(fields.ApiStruct, frozen=True):
    """Gang scheduler, queue and priority of the pods."""

    gang: Annotated[
        Literal["none", "kueue", "volcano"],
        Meta(description="Scheduler that starts all pods or none. If it is not installed, the job says so and waits."),
    ] = "none"
    queue: Annotated[fields.Name | None, Meta(description="Queue of the gang scheduler.")] = None
    priority_class: Annotated[fields.Name | None, Meta(description="Name of a PriorityClass.")] = None


class Elastic(fields.ApiStruct, frozen=True):
    """Bounds for a job whose number of workers may change while it runs."""

    min: Annotated[Workers, Meta(description="Minimum number of workers.")]
    max: Annotated[Workers, Meta(description="Maximum number of workers.")]


class Checkpoint(fields.ApiStruct, frozen=True):
    """Volume mounted at checkpointDir."""

    claim_name: Annotated[fields.Name | None, Meta(description="Existing PVC. Absent: one is created for the job.")] = (
        None
    )
    size: Annotated[fields.Quantity | None, Meta(description="Size of the created PVC.")] = None
    storage_class_name: Annotated[
        fields.Name | None, Meta(description="StorageClass of the created PVC. Absent: the default one.")
    ] = None
    access_mode: Annotated[
        Literal["ReadWriteOnce", "ReadWriteMany"] | None,
        Meta(
            description="Access mode of the created PVC. Absent: ReadWriteMany if the job can have more than one pod."
        ),
    ] = None
    grace_period_seconds: Annotated[
        Annotated[int, Meta(ge=0, le=86400)] | None,
        Meta(description="Seconds between SIGTERM and SIGKILL when a pod is stopped: time to save a checkpoint."),
    ] = None
    retain: Annotated[
        Retain,
        Meta(
            description="Whether the created PVC or volume at a cloud outlives the TrainingJob, once a checkpoint was "
            "reported. OnFailure: unless the job succeeded."
        ),
    ] = "Always"


_CHECKPOINT_RULES = cel_rules(
    Rule(
        "!has(self.claimName) || !(has(self.size) || has(self.storageClassName) || has(self.accessMode))",
        "claimName refers to an existing PVC: remove size, storageClassName and accessMode, or remove claimName",
        ".claimName",
    )
)
_ELASTIC_RULES = cel_rules(Rule("self.min <= self.max", "min is above max: lower min or raise max", ".min"))
_FRAMEWORK_RULES = cel_rules(
    Rule("self == oldSelf", "framework is immutable: delete the TrainingJob and create it with the new value")
)


class TrainingJobSpec(fields.ApiStruct, frozen=True):
    """Training program, and the number of workers that run it."""

    framework: Annotated[
        Framework, Meta(description="Machine-learning framework. Immutable.", extra_json_schema=_FRAMEWORK_RULES)
    ]
    image: Annotated[fields.Image, Meta(description="Container image for training.")]
    command: Annotated[fields.Words, Meta(description="Training command. Empty: the image's entrypoint.")]
    args: Annotated[fields.Words, Meta(description="Arguments of the command.")] = ()
    workers: Annotated[Workers, Meta(description="Number of worker pods. May be changed while the job runs.")] = 1
    gpu_per_worker: Annotated[int, Meta(ge=0, le=8, description="GPUs of each worker.")] = 0
    resources: Annotated[fields.ResourceRequirements | None, Meta(description="Compute resources of each worker.")] = (
        None
    )
    data_volume: Annotated[
        fields.PersistentVolumeClaimVolumeSource | None, Meta(description="Training data, mounted at /data.")
    ] = None
    checkpoint_dir: Annotated[
        fields.Path, Meta(description="Directory for checkpoints. A volume is mounted there.")
    ] = ""
    checkpoint_interval: Annotated[int, Meta(ge=1, le=2**31 - 1, description="Epochs between two checkpoints.")] = 1
    hyperparameters: Annotated[
        dict[str, fields.FreeForm],
        Meta(
            max_length=1024,
            description="Strings, numbers or booleans. Each pod gets learningRate as environment variable "
            "HYPERPARAM_LEARNINGRATE, and all of them in /etc/skysail/hyperparameters.json.",
        ),
    ] = field(default_factory=dict)
    restart_policy: Annotated[
        Literal["OnFailure", "Never"], Meta(description="Whether a failed attempt is retried.")
    ] = "OnFailure"
    suspend: Annotated[bool, Meta(description="Suspend the job: its pods terminate, its checkpoints stay.")] = False
    managed_by: Annotated[
        Annotated[str, Meta(min_length=1, max_length=63, pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")] | None,
        Meta(description="Controller of this job, as domain/name. Absent: Skysail. Immutable."),
    ] = None
    run_policy: Annotated[
        RunPolicy, Meta(description="Limits of duration and retries, and cleanup after the job finished.")
    ] = RunPolicy()
    scheduling: Annotated[Scheduling | None, Meta(description="Gang scheduling, queue and priority.")] = None
    roles: Annotated[ReplicaRoles | None, Meta(description="Pods beside the workers.")] = None
    elastic: Annotated[
        Elastic | None,
        Meta(
            description="Bounds between which the number of workers may change without a new attempt.",
            extra_json_schema=_ELASTIC_RULES,
        ),
    ] = None
    checkpoint: Annotated[
        Checkpoint | None, Meta(description="Volume mounted at checkpointDir.", extra_json_schema=_CHECKPOINT_RULES)
    ] = None
    pod_template: Annotated[
        fields.PodTemplate | None,
        Meta(description="Labels, annotations and pod fields that are merged over those of Skysail."),
    ] = None


class WorkerStatus(fields.ApiStruct, frozen=True, kw_only=True):
    """State of one worker."""

    worker_id: Annotated[fields.Count, Meta(description="Index of the worker.")]
    pod_name: Annotated[fields.ShortText, Meta(description="Name of the worker's pod.")]
    phase: Annotated[
        Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"], Meta(description="Phase of the worker's pod.")
    ]
    restart_count: Annotated[
        fields.Count, Meta(description="Restarts of the worker's container, including earlier attempts.")
    ]


class Failure(fields.ApiStruct, frozen=True, kw_only=True):
    """Pod that made an attempt fail."""

    role: Annotated[fields.ShortText, Meta(description="Role of the pod.")]
    index: Annotated[fields.Count | None, Meta(description="Index of the pod in its role. Absent: unknown.")] = None
    pod: Annotated[
        fields.ShortText, Meta(description="Name of the pod. Empty: unknown, because the pod was deleted.")
    ] = ""
    node: Annotated[fields.ShortText, Meta(description="Node of the pod.")] = ""
    exit_code: Annotated[
        Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None, Meta(description="Exit code of the container.")
    ] = None
    reason: Annotated[fields.ShortText, Meta(description="Reason, as one word.")] = ""
    message: Annotated[fields.Message, Meta(description="Last lines of the log.")] = ""


class LatestCheckpoint(fields.ApiStruct, frozen=True, kw_only=True):
    """Newest complete checkpoint."""

    path: Annotated[fields.Path, Meta(description="Path of the checkpoint in the pods.")]
    step: Annotated[fields.Generation | None, Meta(description="Training step of the checkpoint.")] = None
    save_time: Annotated[fields.Time | None, Meta(description="Time when the checkpoint was complete.")] = None
    claim_name: Annotated[
        fields.Name | None, Meta(description="PVC that contains the checkpoint. Absent: unknown.")
    ] = None
    provider: Annotated[
        fields.ShortText, Meta(description="Cloud whose volume contains the checkpoint. Empty: it is in the cluster.")
    ] = ""


class CheckpointVolume(fields.ApiStruct, frozen=True, kw_only=True):
    """Volume that Skysail created for the checkpoints."""

    claim_name: Annotated[fields.Name, Meta(description="Name of the PVC.")]
    retained: Annotated[bool, Meta(description="Whether the PVC outlives the TrainingJob.")] = False


class Attempt(fields.ApiStruct, frozen=True, kw_only=True):
    """One run of all workers."""

    number: Annotated[fields.Count, Meta(description="Number of the attempt, from 0.")]
    start_time: Annotated[fields.Time | None, Meta(description="Time when the attempt started.")] = None
    run_time: Annotated[fields.Time | None, Meta(description="Time when all required pods ran.")] = None
    end_time: Annotated[
        fields.Time | None, Meta(description="Time when the attempt ended and its pods began to terminate.")
    ] = None
    cause: Annotated[Cause | None, Meta(description="Cause of the end. Only Failed costs a retry.")] = None
    failure: Annotated[Failure | None, Meta(description="Pod that made the attempt fail.")] = None
    resumed_from: Annotated[LatestCheckpoint | None, Meta(description="Checkpoint that the attempt resumed from.")] = (
        None
    )
    spec_hash: Annotated[
        fields.ShortText, Meta(description="Hash of the spec of the attempt, without the number of workers.")
    ] = ""
    provider: Annotated[
        fields.ShortText | None,
        Meta(description="Cloud where the attempt runs, or `cluster`. Absent: no pod has a node yet."),
    ] = None
    usd_total: Annotated[
        fields.Usd | None, Meta(description="Cost of the attempt's ended instances in US dollars.")
    ] = None


class Metric(fields.ApiStruct, frozen=True, kw_only=True):
    """One number that the training reported."""

    name: Annotated[fields.ShortText, Meta(description="Name, such as loss.")]
    value: Annotated[fields.ShortText, Meta(description="Value, as the training wrote it.")]

    @property
    def number(self) -> float | None:
        """Return the value, or None if it is not a finite number."""
        try:
            value = float(self.value)
        except ValueError:
            return None
        return value if math.isfinite(value) else None


def first_number(metrics: Iterable[Metric], names: Iterable[str]) -> float | None:
    """Return the value of the first of these names that is reported as a number, or None."""
    values = {metric.name: metric.number for metric in metrics}
    return next((value for name in names if (value := values.get(name)) is not None), None)


class Progress(fields.ApiStruct, frozen=True, kw_only=True):
    """Progress that the training reported."""

    percent: Annotated[Annotated[int, Meta(ge=0, le=100)] | None, Meta(description="Progress in percent.")] = None
    epoch: Annotated[fields.Count | None, Meta(description="Current epoch.")] = None
    step: Annotated[fields.Generation | None, Meta(description="Current step.")] = None
    estimated_remaining_seconds: Annotated[
        fields.Seconds | None, Meta(description="Estimated seconds until the training finishes.")
    ] = None
    metrics: Annotated[tuple[Metric, ...], Meta(max_length=64, description="Newest metrics.")] = ()
    last_updated_time: Annotated[fields.Time | None, Meta(description="Time of the last report.")] = None


class CloudPlacement(fields.ApiStruct, frozen=True, kw_only=True):
    """Cloud where the job runs, and its cost."""

    provider: Annotated[fields.ShortText, Meta(description="Name of the cloud.")]
    node: Annotated[fields.ShortText, Meta(description="Node that stands for the cloud.")] = ""
    usd_per_hour: Annotated[
        fields.Usd | None, Meta(description="Price of all running instances in US dollars per hour.")
    ] = None
    usd_total: Annotated[
        fields.Usd | None, Meta(description="Cost of the ended instances of all attempts in the status in US dollars.")
    ] = None


class TrainingJobStatus(fields.ApiStruct, frozen=True, kw_only=True):
    """Observed state of the job."""

    phase: Annotated[Phase | None, Meta(description="Summary of the conditions.")] = None
    start_time: Annotated[fields.Time | None, Meta(description="Time when training started.")] = None
    completion_time: Annotated[fields.Time | None, Meta(description="Time when training finished.")] = None
    worker_statuses: Annotated[tuple[WorkerStatus, ...], Meta(max_length=100, description="State of each worker.")] = ()
    conditions: fields.Conditions = ()
    observed_generation: fields.ObservedGeneration = 0
    replicas: Annotated[fields.Count, Meta(description="Number of existing workers, for the scale subresource.")] = 0
    selector: Annotated[fields.Text, Meta(description="Label selector of the workers, for the scale subresource.")] = ""
    attempts: Annotated[tuple[Attempt, ...], Meta(max_length=10, description="Newest attempts, oldest first.")] = ()
    retries: Annotated[
        fields.Count, Meta(description="Failed attempts of the current spec; each one costs a retry.")
    ] = 0
    failure: Annotated[Failure | None, Meta(description="Pod that failed last.")] = None
    progress: Annotated[Progress | None, Meta(description="Progress that the training reported.")] = None
    checkpoint: Annotated[LatestCheckpoint | None, Meta(description="Newest complete checkpoint.")] = None
    checkpoint_volume: Annotated[
        CheckpointVolume | None,
        Meta(description="Created volume for checkpoints, once it is retained or has another name than usual."),
    ] = None
    cloud_volumes: Annotated[
        tuple[fields.ShortText, ...],
        Meta(max_length=16, description="Clouds that have a volume with checkpoints of this job."),
    ] = ()
    cloud: Annotated[CloudPlacement | None, Meta(description="Cloud where the job runs. Absent: in the cluster.")] = (
        None
    )


class TrainingJob(Object, frozen=True, gc=False, rename="camel"):
    """A training run of one or more workers with PyTorch, TensorFlow, XGBoost or JAX.

    Skysail creates the pods, gives each worker its rank and the address of worker 0, and restarts a failed attempt from
    the newest checkpoint. The status says why a job is in its phase.
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
        Column("%", ".status.progress.percent", "integer", "Progress in percent.", priority=1),
        Column("Checkpoint", ".status.checkpoint.step", "integer", "Step of the newest checkpoint.", priority=1),
        Column("Cloud", ".status.cloud.provider", priority=1),
        Column("USD/h", ".status.cloud.usdPerHour", "number", "Price of all running instances.", priority=1),
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
            "managedBy is immutable: delete the TrainingJob and create it with the new value",
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
    exempt_names=frozenset({"checkpointInterval"}),
)

KINDS = (TRAINING_JOB, MODAL_JOB)
COMPATIBLE_KINDS = (TRAIN_JOB,)
