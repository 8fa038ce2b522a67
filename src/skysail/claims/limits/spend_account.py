"""SpendAccount: reservations and spend of one namespace.

The account is cluster-scoped and has the name of its namespace. Tenants have no access to accounts. A reservation is
written before its launch and removed together with the entry of its final cost, in one write. So a crash between two
writes reserves too much, never too little.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from skysail.kube.api import fields
from skysail.kube.api.crd import Column, CustomKind
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import Resource

# Days of which totals are kept.
KEPT_DAYS = 400
# Totals that are kept. If there are more, the GPU types of the oldest days are merged into MERGED_GPU.
MAX_TOTALS = 8_000
MERGED_GPU = "other"
# Reservations that launches may make. The rest of the list is for instances that already exist without a reservation.
MAX_LAUNCH_RESERVATIONS = 1_900
_MAX_RESERVATIONS = 2_000
# Objects with a cap of their own whose past cost is kept, newest first.
MAX_OBJECTS = 2_000


class SpendAccountSpec(fields.ApiStruct, frozen=True):
    """Namespace of the account."""

    namespace: Annotated[fields.Name, Meta(description="Namespace whose spend is recorded.")]


class Reservation(fields.ApiStruct, frozen=True, kw_only=True):
    """Money reserved for one claim: the most that its instance can cost until its deadline."""

    claim: Annotated[fields.Name, Meta(description="Name of the CloudInstance.")]
    usd: Annotated[fields.Usd, Meta(description="Reserved US dollars.")]
    at: Annotated[fields.Time, Meta(description="When the money was reserved.")]
    object: Annotated[
        str,
        Meta(max_length=128, description="UID of the object whose launches share one cap; empty without a cap."),
    ] = ""
    instances: Annotated[
        int, Meta(ge=1, le=10000, description="Number of instances: more than 1 for a gang or for replicas.")
    ] = 1


class DayTotal(fields.ApiStruct, frozen=True, kw_only=True):
    """Spend of one day, provider and GPU type."""

    day: Annotated[str, Meta(max_length=10, pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$", description="Day, in UTC.")]
    provider: Annotated[fields.ShortText, Meta(description="Name of the cloud.")]
    gpu: Annotated[
        fields.ShortText, Meta(description="GPU type by the cloud's name; empty without GPU; `other`: merged.")
    ] = ""
    usd: Annotated[fields.Usd, Meta(description="US dollars.")]


class ObjectTotal(fields.ApiStruct, frozen=True, kw_only=True):
    """Spend of the past launches of one object that has a cap."""

    uid: Annotated[fields.Uid, Meta(description="UID of the object, such as a Job.")]
    usd: Annotated[fields.Usd, Meta(description="US dollars.")]
    day: Annotated[
        str, Meta(max_length=10, pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$", description="Day of the last launch, in UTC.")
    ]


class SpendAccountStatus(fields.ApiStruct, frozen=True, kw_only=True):
    """Reservations of running claims, and the spend of the past."""

    reservations: Annotated[
        tuple[Reservation, ...],
        Meta(max_length=_MAX_RESERVATIONS, description="Reservations by claim."),
    ] = ()
    totals: Annotated[
        tuple[DayTotal, ...],
        Meta(max_length=MAX_TOTALS, description="Spend per day, provider and GPU type, of the last 400 days."),
    ] = ()
    objects: Annotated[
        tuple[ObjectTotal, ...],
        Meta(max_length=MAX_OBJECTS, description="Spend of objects with a cap of their own."),
    ] = ()
    conditions: fields.Conditions = ()
    observed_generation: fields.ObservedGeneration = 0


class SpendAccount(Object, frozen=True, gc=False, rename="camel"):
    """Reservations and spend of the namespace with the same name. Only Skysail writes accounts."""

    spec: SpendAccountSpec
    status: SpendAccountStatus = field(default_factory=SpendAccountStatus)


SPEND_ACCOUNT = CustomKind(
    resource=Resource("skysail.dev", "v1alpha1", "spendaccounts", "SpendAccount", namespaced=False),
    struct=SpendAccount,
    columns=(
        Column("Budget", '.status.conditions[?(@.type=="BudgetAvailable")].reason'),
        Column("Message", '.status.conditions[?(@.type=="BudgetAvailable")].message'),
    ),
    exempt_names=frozenset({"at"}),
)
