"""Common Kubernetes types for the fields of our kinds, all of them bounded.

Bounds are generous: they exist so that the server can estimate the cost of CEL rules, not to restrict users. These
types decode everything that the generated schema accepts. So a free-form value is `Any`, and its reader validates it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from skysail.kube.api.schema import FREE_FORM, list_map_keys


class ApiStruct(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, rename="camel"):
    """Base of all parts of a custom object: camelCase on the wire, default values are omitted."""


_QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
_MAX_SAFE_INTEGER = 2**53 - 1  # the largest integer that every JSON parser represents exactly

Text = Annotated[str, Meta(max_length=4096)]
ShortText = Annotated[str, Meta(max_length=256)]
Message = Annotated[str, Meta(max_length=32768)]
Url = Annotated[str, Meta(max_length=8192)]
Image = Annotated[str, Meta(min_length=1, max_length=1024)]
Path = Annotated[str, Meta(max_length=4096)]
Name = Annotated[str, Meta(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
Key = Annotated[str, Meta(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
Uid = Annotated[str, Meta(min_length=1, max_length=128)]
Time = Annotated[str, Meta(max_length=64, extra_json_schema={"format": "date-time"})]
QuantityText = Annotated[str, Meta(max_length=64, pattern=_QUANTITY)]
Quantity = Annotated[str, Meta(max_length=64, pattern=_QUANTITY)] | int
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Generation = Annotated[int, Meta(ge=0, le=_MAX_SAFE_INTEGER, extra_json_schema={"format": "int64"})]
Seconds = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Usd = Annotated[float, Meta(ge=0, le=1_000_000_000)]
Words = Annotated[tuple[Message, ...], Meta(max_length=1024)]
TextMap = Annotated[dict[str, Message], Meta(max_length=1024)]
FreeForm = Annotated[Any, Meta(extra_json_schema=FREE_FORM)]
FreeFormObject = Annotated[dict[str, Any], Meta(extra_json_schema=FREE_FORM)]


class Condition(ApiStruct, frozen=True):
    """One aspect of the object's state."""

    type: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=316,
            pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
            description="Type of the condition, in CamelCase.",
        ),
    ]
    status: Annotated[Literal["True", "False", "Unknown"], Meta(description="Status of the condition.")]
    last_transition_time: Annotated[Time, Meta(description="When the status last changed.")]
    reason: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=1024,
            pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
            description="Machine-readable reason, as one CamelCase word.",
        ),
    ]
    message: Annotated[Message, Meta(description="Explanation for users, with the fix.")]
    observed_generation: Annotated[
        Generation, Meta(description="The metadata.generation that this condition describes.")
    ] = 0


Conditions = Annotated[
    tuple[Condition, ...],
    Meta(
        max_length=32,
        description="The latest observations of the object's state, one per type.",
        extra_json_schema=list_map_keys("type"),
    ),
]
ObservedGeneration = Annotated[
    Generation, Meta(description="The metadata.generation that the controller last acted on.")
]


class ResourceClaim(ApiStruct, frozen=True):
    """A device of Dynamic Resource Allocation."""

    name: Annotated[ShortText, Meta(description="Name of an entry in the pod's resourceClaims.")]
    request: Annotated[ShortText, Meta(description="Name of a request of the resource claim; empty means all.")] = ""


Quantities = Annotated[dict[str, Quantity], Meta(max_length=64)]


class ResourceRequirements(ApiStruct, frozen=True):
    """Compute resources of a container."""

    limits: Annotated[Quantities, Meta(description="Maximum amounts, by resource name.")] = {}
    requests: Annotated[Quantities, Meta(description="Reserved amounts, by resource name.")] = {}
    claims: Annotated[
        tuple[ResourceClaim, ...],
        Meta(max_length=64, description="Devices that the container uses.", extra_json_schema=list_map_keys("name")),
    ] = ()


class PersistentVolumeClaimVolumeSource(ApiStruct, frozen=True):
    """A PersistentVolumeClaim (PVC) in the same namespace."""

    claim_name: Annotated[Name, Meta(description="Name of the PVC.")]
    read_only: Annotated[bool, Meta(description="Whether the PVC is mounted read-only.")] = False


class KeyRef(ApiStruct, frozen=True):
    """One key of a ConfigMap or Secret in the same namespace."""

    name: Annotated[Name, Meta(description="Name of the ConfigMap or Secret.")]
    key: Annotated[Key, Meta(description="Key in the ConfigMap or Secret.")]
    optional: Annotated[bool, Meta(description="Whether the ConfigMap, Secret or key may be missing.")] = False


class FieldRef(ApiStruct, frozen=True):
    """A field of the pod itself."""

    field_path: Annotated[Text, Meta(description="Path of the field, such as metadata.name.")]
    api_version: Annotated[ShortText, Meta(description="API version of the path.")] = ""


class ResourceFieldRef(ApiStruct, frozen=True):
    """A resource of a container."""

    resource: Annotated[ShortText, Meta(description="Name of the resource, such as limits.memory.")]
    container_name: Annotated[ShortText, Meta(description="Name of the container. Default: this container.")] = ""
    divisor: Annotated[Quantity | None, Meta(description="Unit of the value, such as 1Mi.")] = None


class EnvVarSource(ApiStruct, frozen=True):
    """Source of the value of an environment variable. Set exactly one field."""

    config_map_key_ref: Annotated[KeyRef | None, Meta(description="A key of a ConfigMap.")] = None
    secret_key_ref: Annotated[KeyRef | None, Meta(description="A key of a Secret.")] = None
    field_ref: Annotated[FieldRef | None, Meta(description="A field of the pod.")] = None
    resource_field_ref: Annotated[ResourceFieldRef | None, Meta(description="A resource of a container.")] = None


class EnvVar(ApiStruct, frozen=True):
    """One environment variable."""

    name: Annotated[str, Meta(min_length=1, max_length=253, description="Name of the variable.")]
    value: Annotated[Message, Meta(description="Value. `$(NAME)` expands to an earlier variable.")] = ""
    value_from: Annotated[EnvVarSource | None, Meta(description="Source of the value, instead of `value`.")] = None


Env = Annotated[tuple[EnvVar, ...], Meta(max_length=1024, extra_json_schema=list_map_keys("name"))]


class LabelSelectorRequirement(ApiStruct, frozen=True):
    """One requirement on a label."""

    key: Annotated[str, Meta(min_length=1, max_length=317, description="Key of the label.")]
    operator: Annotated[
        Literal["In", "NotIn", "Exists", "DoesNotExist"], Meta(description="Comparison of the label with the values.")
    ]
    values: Annotated[
        tuple[Annotated[str, Meta(max_length=63)], ...],
        Meta(max_length=256, description="Values, for In and NotIn only."),
    ] = ()


class LabelSelector(ApiStruct, frozen=True):
    """Selects objects by their labels. An empty selector matches everything."""

    match_labels: Annotated[
        dict[str, Annotated[str, Meta(max_length=63)]],
        Meta(max_length=64, description="Labels that objects must have with these values."),
    ] = {}
    match_expressions: Annotated[
        tuple[LabelSelectorRequirement, ...],
        Meta(max_length=64, description="Further requirements. Objects must meet all of them."),
    ] = ()


class PodTemplateMetadata(ApiStruct, frozen=True):
    """Labels and annotations for the pods."""

    labels: Annotated[TextMap, Meta(description="Labels to add.")] = {}
    annotations: Annotated[TextMap, Meta(description="Annotations to add.")] = {}


class PodTemplate(ApiStruct, frozen=True):
    """A pod template that is merged over the generated one. The API server validates its spec on pod creation."""

    metadata: Annotated[PodTemplateMetadata, Meta(description="Labels and annotations of the pods.")] = (
        PodTemplateMetadata()
    )
    spec: Annotated[FreeFormObject, Meta(description="Fields of a PodSpec, merged by container name.")] = {}
