"""API types ModalEndpoint and ModalFunction."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from skysail.kinds import modal_fields
from skysail.kube.api import fields
from skysail.kube.api.crd import Column, CustomKind
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import Resource
from skysail.kube.api.schema import Rule, cel_rules

Replicas = Annotated[int, Meta(ge=0, le=10000)]


class ConfigMapRef(fields.ApiStruct, frozen=True):
    """ConfigMap in the same namespace."""

    name: Annotated[fields.Name, Meta(description="Name of the ConfigMap. Each key is a file.")]


class Code(fields.ApiStruct, frozen=True):
    """Source of the handler's code."""

    config_map_ref: Annotated[ConfigMapRef | None, Meta(description="ConfigMap whose keys are Python files.")] = None
    inline: Annotated[
        Annotated[str, Meta(max_length=262144)] | None, Meta(description="Source of the Python module.")
    ] = None


_CODE_RULES = cel_rules(
    Rule(
        "has(self.configMapRef) != has(self.inline)",
        "code has exactly one source: set either configMapRef or inline",
        ".inline",
    )
)
CodeField = Annotated[
    Code | None,
    Meta(description="Source of the handler's code. Absent: the image contains it.", extra_json_schema=_CODE_RULES),
]


class ModalEndpointSpec(modal_fields.ModalPart, frozen=True):
    """Container that answers requests, with its resources."""

    image: modal_fields.Image
    handler: modal_fields.EndpointHandler
    command: Annotated[fields.Words, Meta(description="Command that replaces the image's entrypoint.")] = ()
    args: Annotated[fields.Words, Meta(description="Arguments of the command.")] = ()
    cpu: modal_fields.Cpu = "1.0"
    memory: modal_fields.Memory = "512Mi"
    gpu: modal_fields.Gpu = None
    min_replicas: Annotated[
        Replicas, Meta(description="Containers that run even without requests. Each is billed.")
    ] = 0
    max_replicas: Annotated[Annotated[int, Meta(ge=1, le=10000)], Meta(description="Maximum number of containers.")] = (
        10
    )
    env: modal_fields.Env = field(default_factory=dict)
    code: CodeField = None
    port: Annotated[
        int, Meta(ge=1, le=65535, description="Port of the server in the image, if the handler is `serve`.")
    ] = 8000


class ModalEndpointStatus(modal_fields.ModalPart, frozen=True, kw_only=True):
    """Observed state of the endpoint."""

    phase: Annotated[Literal["Pending", "Ready", "Failed"] | None, Meta(description="Summary of the conditions.")] = (
        None
    )
    modal_app_id: modal_fields.AppId = ""
    endpoint_url: Annotated[fields.Url, Meta(description="URL of the endpoint.")] = ""
    ready_replicas: Annotated[
        fields.Count, Meta(description="Pods that are ready. An App has one pod for all of its containers.")
    ] = 0
    simulated: modal_fields.Simulated = False
    conditions: fields.Conditions = ()
    observed_generation: fields.ObservedGeneration = field(default=0, name="observedGeneration")


class ModalEndpoint(Object, frozen=True, gc=False, rename="camel"):
    """An HTTP service that runs at Modal and is reached through a Service of the same name."""

    spec: ModalEndpointSpec
    status: ModalEndpointStatus = field(default_factory=ModalEndpointStatus)


class ModalFunctionSpec(modal_fields.ModalPart, frozen=True):
    """Function to call, with its resources."""

    image: modal_fields.Image
    handler: modal_fields.FunctionHandler
    cpu: modal_fields.Cpu = "1.0"
    memory: modal_fields.Memory = "512Mi"
    gpu: modal_fields.Gpu = None
    env: modal_fields.Env = field(default_factory=dict)
    timeout: Annotated[int, Meta(ge=1, le=86400, description="Maximum seconds of one call.")] = 300
    concurrency: Annotated[int, Meta(ge=1, le=1000, description="Concurrent calls of one container.")] = 1
    code: CodeField = None


class ModalFunctionStatus(modal_fields.ModalPart, frozen=True, kw_only=True):
    """Observed state of the function."""

    phase: Annotated[
        Literal["Pending", "Deployed", "Failed"] | None, Meta(description="Summary of the conditions.")
    ] = None
    modal_app_id: modal_fields.AppId = ""
    function_url: Annotated[fields.Url, Meta(description="URL of the function.")] = ""
    message: Annotated[fields.Message, Meta(description="Phase, as a sentence.")] = ""
    created_at: Annotated[
        modal_fields.WrittenTime, Meta(description="Time when the function was submitted to Modal.")
    ] = ""
    deployed_at: Annotated[modal_fields.WrittenTime, Meta(description="Time when the function was deployed.")] = ""
    simulated: modal_fields.Simulated = False
    conditions: fields.Conditions = ()
    observed_generation: fields.ObservedGeneration = field(default=0, name="observedGeneration")


class ModalFunction(Object, frozen=True, gc=False, rename="camel"):
    """A function that runs at Modal and is called through a Service of the same name.

    GET passes the query as keyword arguments, POST a JSON object. The answer is JSON.
    """

    spec: ModalFunctionSpec
    status: ModalFunctionStatus = field(default_factory=ModalFunctionStatus)


MODAL_ENDPOINT = CustomKind(
    resource=Resource(modal_fields.GROUP, modal_fields.VERSION, "modalendpoints", "ModalEndpoint"),
    struct=ModalEndpoint,
    columns=(Column("GPU", ".spec.gpu"), Column("Phase", ".status.phase"), Column("URL", ".status.endpoint_url")),
    rules=(
        Rule(
            "self.min_replicas <= self.max_replicas",
            "min_replicas is above max_replicas: lower min_replicas or raise max_replicas",
            ".min_replicas",
        ),
    ),
    exempt_names=modal_fields.KEPT_NAMES,
)
MODAL_FUNCTION = CustomKind(
    resource=Resource(modal_fields.GROUP, modal_fields.VERSION, "modalfunctions", "ModalFunction"),
    struct=ModalFunction,
    columns=(Column("GPU", ".spec.gpu"), Column("Phase", ".status.phase"), Column("URL", ".status.function_url")),
    exempt_names=modal_fields.KEPT_NAMES,
)

KINDS = (MODAL_ENDPOINT, MODAL_FUNCTION)
