"""API type OffloadPolicy, written by administrators. Without a policy nothing leaves the cluster."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from skysail.kube.api import fields
from skysail.kube.api.crd import Column, CustomKind
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import Resource
from skysail.kube.api.schema import UNIQUE

# Name of the policy by which `skysail drain` stops all launches.
DRAIN_POLICY = "skysail-drain"

Provider = Annotated[str, Meta(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
GpuType = Annotated[str, Meta(min_length=1, max_length=128)]
ImagePattern = Annotated[str, Meta(min_length=1, max_length=1024)]
Region = Annotated[str, Meta(min_length=1, max_length=128)]
AccountObject = Annotated[str, Meta(min_length=1, max_length=256)]


class Budget(fields.ApiStruct, frozen=True):
    """Money that one namespace may spend in a period."""

    amount: Annotated[fields.Usd, Meta(description="Amount in US dollars.")]
    period: Annotated[Literal["Day", "Week", "Month"], Meta(description="Calendar period, in UTC.")] = "Month"


class OffloadPolicySpec(fields.ApiStruct, frozen=True):
    """Namespaces, the clouds that they may use, and limits. If several policies match, each must allow a launch."""

    namespace_selector: Annotated[fields.LabelSelector, Meta(description="Namespaces of this policy. Empty: all.")]
    providers: Annotated[
        tuple[Provider, ...],
        Meta(min_length=1, max_length=32, description="Clouds that may be used.", extra_json_schema=UNIQUE),
    ]
    gpu_types: Annotated[
        tuple[GpuType, ...],
        Meta(max_length=256, description="GPU types that may be used. Empty: any.", extra_json_schema=UNIQUE),
    ] = ()
    images: Annotated[
        tuple[ImagePattern, ...],
        Meta(
            max_length=256,
            description="Images that may run at a cloud, as patterns with `*`. Empty: any.",
            extra_json_schema=UNIQUE,
        ),
    ] = ()
    regions: Annotated[
        tuple[Region, ...],
        Meta(max_length=256, description="Regions that may be used. Empty: any.", extra_json_schema=UNIQUE),
    ] = ()
    max_instances: Annotated[
        int, Meta(ge=0, le=100_000, description="Maximum number of paid instances per namespace.")
    ] = 10
    max_price: Annotated[fields.Usd | None, Meta(description="Maximum price in US dollars per hour and GPU.")] = None
    max_duration_seconds: Annotated[
        Annotated[int, Meta(ge=1, le=2**31 - 1)] | None,
        Meta(description="Seconds after which an instance is terminated, even if it is busy."),
    ] = None
    budget: Annotated[Budget | None, Meta(description="Budget of each namespace. Absent: no limit.")] = None
    on_budget_exhausted: Annotated[
        Literal["Stop", "Finish"],
        Meta(
            description="Stop: an instance may use what is left of the budget and ends when it is used up. Finish: an"
            " instance is launched only if the budget covers its whole maximum duration."
        ),
    ] = "Stop"
    allow_secrets: Annotated[
        bool, Meta(description="Whether pods that refer to Secrets may run at a cloud, which then sees the values.")
    ] = True
    account_objects: Annotated[
        tuple[AccountObject, ...],
        Meta(
            max_length=256,
            description="Objects of the shared account that pods may name, such as `runpod/template/ID`,"
            " `runpod/network-volume/ID` or `runpod/registry/ID`, as patterns with `*`. Empty: none.",
            extra_json_schema=UNIQUE,
        ),
    ] = ()
    automatic: Annotated[
        bool,
        Meta(description="Whether GPU pods that no node can take are offloaded although they do not ask for a cloud."),
    ] = False


class OffloadPolicyStatus(fields.ApiStruct, frozen=True, kw_only=True):
    """Observed state of the policy."""

    conditions: fields.Conditions = ()
    observed_generation: fields.ObservedGeneration = 0


class OffloadPolicy(Object, frozen=True, gc=False, rename="camel"):
    """Permission of namespaces to use clouds, with limits on GPU types, price and budget.

    Without a policy for its namespace no pod leaves the cluster.
    """

    spec: OffloadPolicySpec
    status: OffloadPolicyStatus = field(default_factory=OffloadPolicyStatus)


OFFLOAD_POLICY = CustomKind(
    resource=Resource("skysail.dev", "v1alpha1", "offloadpolicies", "OffloadPolicy", namespaced=False),
    struct=OffloadPolicy,
    columns=(
        Column("Providers", ".spec.providers"),
        Column("Instances", ".spec.maxInstances", "integer", "Maximum number of paid instances per namespace."),
        Column("Price", ".spec.maxPrice", "number", "Maximum price in US dollars per hour and GPU."),
        Column("Budget", ".spec.budget.amount", "number", "Budget of each namespace in US dollars."),
    ),
)
