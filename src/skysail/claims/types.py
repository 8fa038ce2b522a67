"""CloudInstance: the claim for one billed instance at a cloud.

The claim is written before the cloud is called, and deleted only after the cloud has confirmed the termination. It has
no owner reference: a cluster-scoped object cannot have an owner in a namespace, and the claim must outlive its owner.
Tenants have no access to claims.
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


PortNumber = Annotated[int, Meta(ge=1, le=65535)]
MAX_BRIDGE_PORTS = 256


class OwnerRef(fields.ApiStruct, frozen=True):
    """The object that the instance runs for."""

    kind: Annotated[
        fields.ShortText, Meta(description="Kind of the owner: Pod, or the kind of a gang, such as Job or PyTorchJob.")
    ]
    name: Annotated[fields.Name, Meta(description="Name of the owner.")]
    uid: Annotated[
        fields.Uid,
        Meta(description="UID of the owner. An object with the same name and another UID is not the owner."),
    ]
    namespace: Annotated[fields.ShortText, Meta(description="Namespace of the owner.")] = ""
    api_version: Annotated[fields.ShortText, Meta(description="API version of a gang; empty for a pod.")] = ""
    container: Annotated[fields.ShortText, Meta(description="Container of the pod that the instance runs.")] = ""
    work_key: Annotated[
        fields.ShortText,
        Meta(description="Key of the work, such as one index of a Job. The same work is never done twice at once."),
    ] = ""
    job_uid: Annotated[
        str,
        Meta(
            max_length=63,
            description="UID of the Job of the pod. A replacement pod waits until the previous instance is terminated.",
        ),
    ] = field(name="jobUID", default="")
    controller_uid: Annotated[
        str,
        Meta(
            max_length=63,
            description="UID of the controller of the pod. Its other pods avoid a cloud without capacity for this one.",
        ),
    ] = field(name="controllerUID", default="")

    @property
    def identity(self) -> IndexKey:
        """Namespace and UID: a UID counts only in the namespace that the claim names."""
        return IndexKey(self.namespace, self.uid)


class Gpu(fields.ApiStruct, frozen=True):
    """GPUs of the instance."""

    type: Annotated[
        fields.ShortText, Meta(description="GPU type by the cloud's name, or `any` if the cloud chooses the type.")
    ]
    count: Annotated[int, Meta(ge=1, le=1024, description="Number of GPUs of each member.")] = 1


class MemberPod(fields.ApiStruct, frozen=True, kw_only=True):
    """One rank of a gang: a container of a pod of its own."""

    name: Annotated[fields.Name, Meta(description="Name of the pod.")]
    uid: Annotated[fields.Uid, Meta(description="UID of the pod.")]
    container: Annotated[fields.ShortText, Meta(description="Container of the pod that the instance runs.")]
    run: Annotated[fields.Count, Meta(description="Number of the start of this container, from 0.")] = 0


class Candidate(fields.ApiStruct, frozen=True, kw_only=True):
    """One offer of the provider that fits, in the order in which they are tried."""

    gpu_type: Annotated[fields.ShortText, Meta(description="GPU type by the cloud's name; empty without GPU.")] = ""
    region: Annotated[fields.ShortText, Meta(description="Region; empty if the cloud chooses.")] = ""
    cloud_type: Annotated[fields.ShortText, Meta(description="Tier, such as SECURE; empty if there is only one.")] = ""
    usd_per_hour: Annotated[fields.Usd, Meta(description="Price of all members in US dollars per hour.")]


class RefusedCandidate(fields.ApiStruct, frozen=True, kw_only=True):
    """A candidate that was tried in vain: the cloud has no capacity, rejects the request or bills more than the cap."""

    candidate: Annotated[fields.Count, Meta(description="Index in spec.candidates.")]
    reason: Annotated[
        Literal["NoCapacity", "PriceAboveCap", "Rejected"], Meta(description="Why the candidate was refused.")
    ]
    message: Annotated[fields.Text, Meta(description="Answer of the cloud.")]
    at: Annotated[fields.Time, Meta(description="When the cloud answered.")]


class EarlierInstance(fields.ApiStruct, frozen=True, kw_only=True):
    """An instance of this claim that was terminated: its price was above the cap, or its App could not serve."""

    id: Annotated[fields.ShortText, Meta(description="Instance ID at the cloud.")]
    usd: Annotated[fields.Usd, Meta(description="Cost in US dollars. Part of usdTotal.")]


class CloudInstanceSpec(fields.ApiStruct, frozen=True, kw_only=True):
    """Launch request to the cloud. Immutable."""

    provider: Annotated[
        str,
        Meta(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", description="Name of the cloud."),
    ]
    account: Annotated[
        fields.ShortText,
        Meta(description="Account at the cloud, as Skysail names it. Other accounts cannot see the instance."),
    ] = ""
    owner: Annotated[OwnerRef, Meta(description="The object that the instance runs for.")]
    launch: Annotated[
        fields.Count, Meta(description="Number of the launch for this object, from 0. Each restart is a new launch.")
    ] = 0
    members: Annotated[int, Meta(ge=1, le=10000, description="Number of containers that are launched together.")] = 1
    instances: Annotated[
        int,
        Meta(
            ge=1,
            le=10000,
            description="Instances that policies count: the members, or 1 for an App, which the cloud scales.",
        ),
    ] = 1
    member_pods: Annotated[
        tuple[MemberPod, ...],
        Meta(max_length=1024, description="Pods of a gang in the order of their ranks. Empty for a single pod."),
    ] = ()
    ends_together: Annotated[
        bool,
        Meta(
            description="Whether a rank that exits with 0 ends only with its gang, because the owner would restart the"
            " other ranks without it."
        ),
    ] = False
    gpu: Annotated[Gpu | None, Meta(description="GPUs of each member.")] = None
    candidates: Annotated[
        tuple[Candidate, ...],
        Meta(
            max_length=64,
            description="Offers of the provider that fit, best first. Empty: the cloud chooses; with mayLeave, no"
            " offer fits.",
        ),
    ] = ()
    nearest_miss: Annotated[
        fields.Text, Meta(description="The cheapest offer that does not fit because of its price alone.")
    ] = ""
    may_leave: Annotated[
        bool,
        Meta(
            description="Whether the claim ends when no candidate has capacity, because another provider is allowed"
            " for a replacement of the pod."
        ),
    ] = False
    max_usd_per_hour: Annotated[
        fields.Usd | None, Meta(description="Cap on the price of all members in US dollars per hour.")
    ] = None
    max_cost_usd: Annotated[
        fields.Usd | None, Meta(description="Cap on the cost of all launches for this object in US dollars.")
    ] = None
    max_cost_uid: Annotated[
        str,
        Meta(
            max_length=63,
            description="UID of the object whose launches share maxCostUsd, such as a TrainingJob with all of its"
            " attempts. Empty: the Job of the pod, or the owner.",
        ),
    ] = field(name="maxCostUID", default="")
    max_lifetime_seconds: Annotated[
        fields.Seconds | None, Meta(description="Requested maximum lifetime in seconds. Absent: the cloud's maximum.")
    ] = None
    image: Annotated[str, Meta(max_length=1024, description="Image of the first member.")] = ""
    uses_secrets: Annotated[bool, Meta(description="Whether the launch spec contains values of Secrets.")] = False
    is_automatic: Annotated[
        bool, Meta(description="Whether the pod was offloaded because no node could take it, without being asked.")
    ] = False
    account_objects: Annotated[
        tuple[fields.ShortText, ...],
        Meta(max_length=8, description="Objects of the shared account that the pod names, such as a template."),
    ] = ()
    grace_seconds: Annotated[fields.Seconds, Meta(description="Grace period of the program in seconds.")] = 30

    @property
    def pod_uids(self) -> tuple[str, ...]:
        """Return the UIDs of the pods: those of a gang by rank, or that of the owner."""
        return tuple(member.uid for member in self.member_pods) or (self.owner.uid,)


class Launching(fields.ApiStruct, frozen=True, kw_only=True):
    """The call to the cloud. Written before the call, so that two operators never both call."""

    by: Annotated[fields.ShortText, Meta(description="Identity of the operator that calls.")]
    nonce: Annotated[fields.ShortText, Meta(description="Random value that identifies this call.")]
    at: Annotated[fields.Time, Meta(description="When this entry was written.")]


class Exit(fields.ApiStruct, frozen=True, kw_only=True):
    """Exit of the program."""

    code: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1, description="Exit code; 128 + n for signal n.")]
    reason: Annotated[fields.ShortText, Meta(description="Completed, Error, or the cloud's own reason.")] = ""
    message: Annotated[fields.Text, Meta(description="Termination message of the program.")] = ""


class RankStatus(fields.ApiStruct, frozen=True, kw_only=True):
    """Observed state of one rank of a gang."""

    finish_time: Annotated[fields.Time | None, Meta(description="When the program of the rank exited.")] = None
    exit: Annotated[Exit | None, Meta(description="Exit of the program of the rank.")] = None


class BridgePort(fields.ApiStruct, frozen=True, kw_only=True):
    """A port of the bridge that leads to one port of this instance, and to nothing else."""

    target_port: Annotated[PortNumber, Meta(description="Port of the instance.")]
    port: Annotated[PortNumber, Meta(description="Port of the bridge. Unique in the cluster.")]
    rank: Annotated[int, Meta(ge=0, le=1023, description="Rank of the gang that the port leads to.")] = 0
    protocol: Annotated[
        Literal["tcp", "http"],
        Meta(
            description="`http` if every Service that leads here has `appProtocol: http`. Then the bridge may use the"
            " cloud's own way for HTTP."
        ),
    ] = "tcp"


class CloudInstanceStatus(fields.ApiStruct, frozen=True, kw_only=True):
    """Observed state of the instance."""

    state: Annotated[
        State | None,
        Meta(
            description="State of the instance. Unknown means that the cloud's answer was lost; no second call is made"
            " until inventories show whether an instance exists."
        ),
    ] = None
    launching: Annotated[Launching | None, Meta(description="The call to the cloud that is in progress.")] = None
    candidate: Annotated[fields.Count, Meta(description="Index in spec.candidates of the offer that is tried.")] = 0
    refused_candidates: Annotated[
        tuple[RefusedCandidate, ...],
        Meta(max_length=64, description="Candidates that were refused since the first one was last tried."),
    ] = ()
    earlier_instances: Annotated[
        tuple[EarlierInstance, ...],
        Meta(max_length=64, description="Terminated instances of refused candidates whose price was above the cap."),
    ] = ()
    reserved_usd: Annotated[
        fields.Usd | None, Meta(description="US dollars reserved in the SpendAccount of the namespace.")
    ] = None
    reserve_time: Annotated[
        fields.Time | None,
        Meta(description="When the money was reserved. A reservation of another time does not belong to the launch."),
    ] = None
    instance_id: Annotated[fields.ShortText, Meta(description="Instance ID at the cloud.")] = ""
    app_id: Annotated[
        fields.ShortText, Meta(description="Group of the instance at the cloud, such as an App of Modal.")
    ] = ""
    url: Annotated[fields.Url, Meta(description="Address of an App at the cloud.")] = ""
    usd_per_hour: Annotated[fields.Usd | None, Meta(description="Price of all members in US dollars per hour.")] = None
    region: Annotated[fields.ShortText, Meta(description="Region, by the cloud's name.")] = ""
    deadline_time: Annotated[
        fields.Time | None, Meta(description="When the cloud terminates the instance on its own.")
    ] = None
    lifetime_limit: Annotated[
        fields.Text, Meta(description="Budget, cap or policy that made the lifetime shorter, empty if none did.")
    ] = ""
    start_time: Annotated[fields.Time | None, Meta(description="When billing started.")] = None
    ready_time: Annotated[fields.Time | None, Meta(description="When the program started.")] = None
    finish_time: Annotated[fields.Time | None, Meta(description="When the program exited.")] = None
    exit: Annotated[Exit | None, Meta(description="Exit of the program.")] = None
    ranks: Annotated[
        tuple[RankStatus, ...],
        Meta(max_length=1024, description="Ranks of a gang, in their order. `exit` is that of the first that failed."),
    ] = ()
    end_time: Annotated[fields.Time | None, Meta(description="When the cloud confirmed the termination.")] = None
    usd_total: Annotated[fields.Usd | None, Meta(description="Final cost in US dollars. Written once.")] = None
    bridge_ports: Annotated[
        tuple[BridgePort, ...],
        Meta(
            max_length=MAX_BRIDGE_PORTS,
            description="Ports of the bridge that lead to the instance. The only source of routes.",
        ),
    ] = ()
    conditions: fields.Conditions = ()
    observed_generation: fields.ObservedGeneration = 0


class CloudInstance(Object, frozen=True, gc=False, rename="camel"):
    """One billed instance at a cloud: its provider, owner, state and price. Only Skysail creates claims."""

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
        Column("Namespace", ".spec.owner.namespace"),
        Column("Owner", ".spec.owner.name"),
        Column("GPUs", ".spec.gpu.count", "integer", priority=1),
        Column("Id", ".status.instanceId", priority=1),
        Column("Region", ".status.region", priority=1),
        Column("USD", ".status.usdTotal", "number", priority=1),
    ),
    rules=(Rule("self == oldSelf", "a claim is immutable: Skysail creates a new CloudInstance for each launch"),),
    exempt_names=frozenset({"at"}),
    initial_status=CloudInstanceStatus(state="Claimed"),
)

KINDS = (CLOUD_INSTANCE,)
