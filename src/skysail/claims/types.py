"""CloudInstance: one paid thing at a cloud. Written before the cloud is called, gone only after the end is confirmed.

It has no owner reference: an owner in a namespace cannot be named from a cluster-scoped object, and the claim must
outlive what it is for. Tenants have no rights on it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from skysail.kube.api import fields
from skysail.kube.api.crd import Column, CustomKind
from skysail.kube.api.objects import IndexKey, Object
from skysail.kube.api.resources import Resource
from skysail.kube.api.schema import Rule

State = Literal["Claimed", "Launching", "Unknown", "Starting", "Running", "Terminating", "Terminated"]


class Beneficiary(fields.Part, frozen=True):
    """The object that the instance works for."""

    kind: Annotated[fields.ShortText, Meta(description="Its kind.")]
    name: Annotated[fields.Name, Meta(description="Its name.")]
    uid: Annotated[fields.Uid, Meta(description="Its UID. An object of the same name with another one is a stranger.")]
    namespace: Annotated[fields.ShortText, Meta(description="Its namespace.")] = ""
    container: Annotated[fields.ShortText, Meta(description="The container of a pod that the instance runs.")] = ""
    work: Annotated[
        fields.ShortText,
        Meta(description="What the object does for its owner, such as one index of a Job; never done twice at once."),
    ] = ""
    job: Annotated[
        str,
        Meta(max_length=63, description="UID of the Job of a pod. Its next pod waits for the end of one that goes."),
    ] = ""

    @property
    def identity(self) -> IndexKey:
        """Namespace and UID: a UID counts only in the namespace that the claim names."""
        return IndexKey(self.namespace, self.uid)


class Gpu(fields.Part, frozen=True):
    """GPUs of the instance."""

    type: Annotated[
        fields.ShortText, Meta(description="Type, as the cloud names it; `any` where it is the cloud's choice.")
    ]
    count: Annotated[int, Meta(ge=1, le=1024, description="How many, for each member.")] = 1


class CloudInstanceSpec(fields.Part, frozen=True, kw_only=True):
    """What was asked of the cloud. Never changes."""

    provider: Annotated[
        str,
        Meta(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", description="The cloud."),
    ]
    account: Annotated[
        fields.ShortText,
        Meta(description="The account at the cloud, as Skysail names it. Other accounts know nothing of the instance."),
    ] = ""
    for_: Annotated[Beneficiary, Meta(description="The object that the instance works for.")] = field(name="for")
    launch: Annotated[
        fields.Count, Meta(description="Counts the launches for that object from 0. Each restart is a new one.")
    ] = 0
    members: Annotated[int, Meta(ge=1, le=10000, description="Containers that are launched together.")] = 1
    gpu: Annotated[Gpu | None, Meta(description="GPUs of each member.")] = None
    grace_seconds: Annotated[fields.Seconds, Meta(description="How long its program may take to end.")] = 30
    port: Annotated[
        Annotated[int, Meta(ge=1, le=65535)] | None,
        Meta(description="Port of the bridge that leads to this instance and to no other."),
    ] = None


class Launching(fields.Part, frozen=True, kw_only=True):
    """Who is calling the cloud. Written before the call, so that two operators never both call."""

    by: Annotated[fields.ShortText, Meta(description="The operator that calls.")]
    nonce: Annotated[fields.ShortText, Meta(description="Marks this call.")]
    at: Annotated[fields.Time, Meta(description="When it was written.")]


class Exit(fields.Part, frozen=True, kw_only=True):
    """How a program ended."""

    code: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1, description="Its exit code; 128 + n for a signal.")]
    reason: Annotated[fields.ShortText, Meta(description="Completed, Error, or why the cloud ended it.")] = ""
    message: Annotated[fields.Text, Meta(description="What the program left as its last word.")] = ""


class CloudInstanceStatus(fields.Part, frozen=True, kw_only=True):
    """What is known about the instance."""

    state: Annotated[
        State | None,
        Meta(description="Unknown means that the cloud's answer was lost, and that nothing is done about it."),
    ] = None
    launching: Annotated[Launching | None, Meta(description="Who is calling the cloud.")] = None
    instance_id: Annotated[fields.ShortText, Meta(description="Id at the cloud.")] = ""
    usd_per_hour: Annotated[fields.Usd | None, Meta(description="Price of all members, in US dollars an hour.")] = None
    region: Annotated[fields.ShortText, Meta(description="Where it is, as the cloud names it.")] = ""
    deadline_time: Annotated[
        fields.Time | None, Meta(description="When the cloud itself ends the instance, whatever happens here.")
    ] = None
    start_time: Annotated[fields.Time | None, Meta(description="When the cloud began to charge.")] = None
    ready_time: Annotated[fields.Time | None, Meta(description="When its program began.")] = None
    finish_time: Annotated[fields.Time | None, Meta(description="When its program ended.")] = None
    exit: Annotated[Exit | None, Meta(description="How its program ended.")] = None
    end_time: Annotated[fields.Time | None, Meta(description="When its end was confirmed.")] = None
    usd_total: Annotated[fields.Usd | None, Meta(description="What it has cost in all. Written once, at the end.")] = (
        None
    )
    conditions: fields.Conditions = ()
    observed_generation: fields.ObservedGeneration = 0


class CloudInstance(Object, frozen=True, gc=False, rename="camel"):
    """One paid thing at a cloud: where, for whom, in which state, at which price. Made by Skysail only."""

    spec: CloudInstanceSpec
    status: CloudInstanceStatus = field(default_factory=CloudInstanceStatus)


CLOUD_INSTANCE = CustomKind(
    resource=Resource("skysail.dev", "v1alpha1", "cloudinstances", "CloudInstance", namespaced=False),
    struct=CloudInstance,
    short_names=("ci",),
    columns=(
        Column("Provider", ".spec.provider"),
        Column("GPU", ".spec.gpu.type"),
        Column("State", ".status.state"),
        Column("USD/h", ".status.usdPerHour", "number"),
        Column("Namespace", ".spec.for.namespace"),
        Column("For", ".spec.for.name"),
        Column("GPUs", ".spec.gpu.count", "integer", priority=1),
        Column("Id", ".status.instanceId", priority=1),
        Column("Region", ".status.region", priority=1),
        Column("USD", ".status.usdTotal", "number", priority=1),
    ),
    rules=(Rule("self == oldSelf", "a claim cannot be changed: Skysail makes a new CloudInstance for each launch"),),
    kept_names=frozenset({"at"}),
    first_status=CloudInstanceStatus(state="Claimed"),
)

KINDS = (CLOUD_INSTANCE,)
