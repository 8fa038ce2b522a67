"""API type ModalJob: a batch job that runs at Modal."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from skysail.kinds import modal_fields
from skysail.kube.api import fields
from skysail.kube.api.crd import Column, CustomKind
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import Resource
from skysail.kube.api.schema import Rule


class ModalJobSpec(modal_fields.ModalPart, frozen=True):
    """Container to run at Modal, with its resources."""

    image: modal_fields.Image
    command: Annotated[fields.Words, Meta(description="Command that replaces the image's entrypoint.")] = ()
    args: Annotated[fields.Words, Meta(description="Arguments of the command.")] = ()
    cpu: modal_fields.Cpu = "1.0"
    memory: modal_fields.Memory = "512Mi"
    gpu: modal_fields.Gpu = None
    env: modal_fields.Env = field(default_factory=dict)
    timeout: Annotated[
        int,
        Meta(ge=1, le=86400, description="Seconds after which Modal terminates the job. Modal allows at most one day."),
    ] = 86400
    retries: Annotated[int, Meta(ge=0, le=100, description="Number of retries of a failed job.")] = 0
    tunnel_enabled: Annotated[
        bool, Meta(description="Make a port of the job reachable from the cluster, by a Service of its pod.")
    ] = False
    tunnel_port: Annotated[int, Meta(ge=1, le=65535, description="Port that the tunnel leads to.")] = 8000
    replicas: Annotated[
        int, Meta(ge=1, le=100, description="Containers that run together. Each gets RANK and WORLD_SIZE.")
    ] = 1
    enable_i6pn: Annotated[
        bool, Meta(description="Give the containers a private network. Required for more than one replica.")
    ] = False


class ModalJobStatus(modal_fields.ModalPart, frozen=True, kw_only=True):
    """Observed state of the job."""

    phase: Annotated[
        Literal["Pending", "Running", "Succeeded", "Failed"] | None, Meta(description="Summary of the conditions.")
    ] = None
    modal_app_id: modal_fields.AppId = ""
    modal_function_id: Annotated[fields.ShortText, Meta(description="Id of the function or sandbox at Modal.")] = ""
    tunnel_url: Annotated[
        fields.Url,
        Meta(description="URL of the tunnel, inside the cluster. With several replicas, that of the first one."),
    ] = ""
    log_url: Annotated[fields.Url, Meta(description="URL of the log at Modal.")] = ""
    created_at: Annotated[modal_fields.WrittenTime, Meta(description="Time when the job was submitted to Modal.")] = ""
    started_at: Annotated[modal_fields.WrittenTime, Meta(description="Time when the job started.")] = ""
    finished_at: Annotated[modal_fields.WrittenTime, Meta(description="Time when the job finished.")] = ""
    simulated: modal_fields.Simulated = False
    conditions: fields.Conditions = ()
    observed_generation: fields.ObservedGeneration = field(default=0, name="observedGeneration")


class ModalJob(Object, frozen=True, gc=False, rename="camel"):
    """A batch job that runs at Modal, on serverless GPUs."""

    spec: ModalJobSpec
    status: ModalJobStatus = field(default_factory=ModalJobStatus)


MODAL_JOB = CustomKind(
    resource=Resource(modal_fields.GROUP, modal_fields.VERSION, "modaljobs", "ModalJob"),
    struct=ModalJob,
    columns=(Column("GPU", ".spec.gpu"), Column("Phase", ".status.phase")),
    rules=(
        Rule(
            "self.replicas == 1 || self.enable_i6pn",
            "several replicas need a private network: set enable_i6pn to true, or replicas to 1",
            ".replicas",
        ),
    ),
    exempt_names=modal_fields.KEPT_NAMES,
)
