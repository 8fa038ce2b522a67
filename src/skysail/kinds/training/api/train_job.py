"""TrainJob, for a cluster without Kubeflow Trainer: the same group, kind and fields, so that its manifests apply.

Where Trainer is installed its own CRD stays; this one is never put over it. All three spellings of pod overrides that
Trainer has had are taken, and kept as they come.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from skysail.kube.api import fields
from skysail.kube.api.crd import Column, CustomKind
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import Resource
from skysail.kube.api.schema import Rule

Overrides = Annotated[tuple[fields.FreeFormObject, ...], Meta(max_length=64)]


class RuntimeRef(fields.Part, frozen=True):
    """The runtime that the job builds on."""

    name: Annotated[fields.Name, Meta(description="Name of the runtime.")]
    api_group: Annotated[fields.ShortText, Meta(description="API group of the runtime.")] = "trainer.kubeflow.org"
    kind: Annotated[Literal["ClusterTrainingRuntime", "TrainingRuntime"], Meta(description="Kind of the runtime.")] = (
        "ClusterTrainingRuntime"
    )


class SecretRef(fields.Part, frozen=True):
    """A Secret of the same namespace."""

    name: Annotated[fields.Name, Meta(description="Name of the Secret.")]


class Source(fields.Part, frozen=True):
    """Something to fetch before training."""

    storage_uri: Annotated[fields.Url, Meta(description="Where it is: hf://, s3:// or cache://.")] = ""
    env: Annotated[fields.Env, Meta(description="Environment of the container that fetches it.")] = ()
    secret_ref: Annotated[SecretRef | None, Meta(description="Secret with the credentials.")] = None


class Initializer(fields.Part, frozen=True):
    """What is fetched before training."""

    dataset: Annotated[Source | None, Meta(description="The data set.")] = None
    model: Annotated[Source | None, Meta(description="The model to start from.")] = None


class Trainer(fields.Part, frozen=True):
    """The training containers, where they differ from the runtime's."""

    image: Annotated[fields.Image | None, Meta(description="Container image.")] = None
    command: Annotated[fields.Words, Meta(description="Command that replaces the image's entrypoint.")] = ()
    args: Annotated[fields.Words, Meta(description="Arguments of the command.")] = ()
    env: Annotated[fields.Env, Meta(description="Environment variables.")] = ()
    num_nodes: Annotated[Annotated[int, Meta(ge=1, le=10000)] | None, Meta(description="Number of training nodes.")] = (
        None
    )
    resources_per_node: Annotated[
        fields.ResourceRequirements | None, Meta(description="Compute resources of each node.")
    ] = None
    num_proc_per_node: Annotated[
        Annotated[str, Meta(max_length=16)] | int | None,
        Meta(description="Processes on each node: a number, auto, cpu or gpu."),
    ] = None


class TrainJobSpec(fields.Part, frozen=True):
    """What to train, on which runtime."""

    runtime_ref: Annotated[RuntimeRef, Meta(description="The runtime that the job builds on.")]
    initializer: Annotated[Initializer | None, Meta(description="What is fetched before training.")] = None
    trainer: Annotated[Trainer | None, Meta(description="What differs from the runtime.")] = None
    runtime_patches: Annotated[Overrides, Meta(description="Changes to the runtime's template (Trainer 2.2 on).")] = ()
    pod_template_overrides: Annotated[Overrides, Meta(description="Changes to the pods (Trainer 2.1).")] = ()
    pod_spec_overrides: Annotated[Overrides, Meta(description="Changes to the pods (Trainer 2.0).")] = ()
    suspend: Annotated[bool, Meta(description="Whether the job is held.")] = False
    active_deadline_seconds: Annotated[
        Annotated[int, Meta(ge=1, le=2**31 - 1)] | None,
        Meta(description="Seconds after which a running job is stopped and failed."),
    ] = None
    managed_by: Annotated[
        Literal["trainer.kubeflow.org/trainjob-controller", "kueue.x-k8s.io/multikueue"],
        Meta(description="The controller that works on this job. Immutable."),
    ] = "trainer.kubeflow.org/trainjob-controller"


class JobStatus(fields.Part, frozen=True, kw_only=True):
    """Pods of one part of the job."""

    name: Annotated[fields.ShortText, Meta(description="Name of the part.")]
    ready: Annotated[fields.Count, Meta(description="Jobs whose pods are ready.")] = 0
    succeeded: Annotated[fields.Count, Meta(description="Jobs that have succeeded.")] = 0
    failed: Annotated[fields.Count, Meta(description="Jobs that have failed.")] = 0
    active: Annotated[fields.Count, Meta(description="Jobs with pods.")] = 0
    suspended: Annotated[fields.Count, Meta(description="Jobs that are held.")] = 0


class TrainerMetric(fields.Part, frozen=True, kw_only=True):
    """One number that the training reported."""

    name: Annotated[fields.ShortText, Meta(description="Name, such as loss.")]
    value: Annotated[fields.ShortText, Meta(description="Value, as the training wrote it.")]


class TrainerStatus(fields.Part, frozen=True, kw_only=True):
    """How far the training is, as it reported itself."""

    progress_percentage: Annotated[
        Annotated[int, Meta(ge=0, le=100)] | None, Meta(description="Part that is done.")
    ] = None
    estimated_remaining_seconds: Annotated[fields.Seconds | None, Meta(description="Seconds to go.")] = None
    metrics: Annotated[tuple[TrainerMetric, ...], Meta(max_length=256, description="The newest metrics.")] = ()
    last_updated_time: Annotated[fields.Time | None, Meta(description="When the training last reported.")] = None


class TrainJobStatus(fields.Part, frozen=True, kw_only=True):
    """What has become of the job."""

    conditions: fields.Conditions = ()
    jobs_status: Annotated[
        tuple[JobStatus, ...], Meta(max_length=100, description="Pods of each part of the job.")
    ] = ()
    trainer_status: Annotated[TrainerStatus | None, Meta(description="How far the training is.")] = None
    observed_generation: fields.ObservedGeneration = 0


class TrainJob(Object, frozen=True, gc=False, rename="camel"):
    """A training run on a Kubeflow runtime."""

    spec: TrainJobSpec
    status: TrainJobStatus = field(default_factory=TrainJobStatus)


TRAIN_JOB = CustomKind(
    resource=Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob"),
    struct=TrainJob,
    columns=(Column("Runtime", ".spec.runtimeRef.name"),),
    rules=(
        Rule(
            "self.managedBy == oldSelf.managedBy",
            "managedBy cannot be changed: delete the TrainJob and create it with the other one",
            ".managedBy",
        ),
    ),
)
