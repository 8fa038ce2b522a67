"""Fields that the three Modal kinds share. They are snake_case on the wire, as in existing manifests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated

from msgspec import Meta

from skysail.kube.api import fields, resource_validation
from skysail.kube.api.schema import NULLABLE, Rule, cel_rules

GROUP = "modal-operator.io"
VERSION = "v1alpha1"
# Names that the API server accepts: printable ASCII without an equals sign.
_VARIABLE_NAME = re.compile(r"[ -<>-~]+")


class ModalPart(fields.ApiStruct, frozen=True, rename=None):
    """Part of a Modal object: wire names are the attribute names."""


Cpu = Annotated[
    fields.QuantityText,
    Meta(description="Physical cores at Modal: 1.0 equals 2 Kubernetes CPUs."),
]
Memory = Annotated[fields.QuantityText, Meta(description="Memory, such as 512Mi.")]
# A rule instead of a pattern, because the API server's message about a pattern names no fix.
_GPU_RULES = cel_rules(
    Rule(
        "self.matches('^$|^[A-Za-z0-9.+!_-]+(:[1-9][0-9]?)?$')",
        "gpu is a type, or a type and a count from 1 to 99: write T4, A100-80GB or H100:2",
    )
)
Gpu = Annotated[
    Annotated[str, Meta(max_length=64)] | None,
    Meta(
        description="GPU type and count, such as T4, A100-80GB or H100:2. Null or empty: none.",
        extra_json_schema={**NULLABLE, **_GPU_RULES},
    ),
]
Env = Annotated[fields.TextMap, Meta(description="Environment variables.")]
Image = Annotated[fields.Image, Meta(description="Container image. Modal pulls it, so Modal must be able to reach it.")]
_HANDLER_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
EndpointHandler = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=512,
        pattern=_HANDLER_PATTERN,
        description="Python function that handles requests, as module.function, or serve for the image's own server.",
        extra_json_schema=cel_rules(
            Rule(
                "self == 'serve' || self.contains('.')",
                "handler names no module: write module.function, or serve for the image's own server",
            )
        ),
    ),
]
FunctionHandler = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=512,
        pattern=_HANDLER_PATTERN,
        description="Python function that handles requests, as module.function.",
        extra_json_schema=cel_rules(
            Rule("self.contains('.')", "handler names no module: write module.function"),
        ),
    ),
]
AppId = Annotated[fields.ShortText, Meta(description="Id of the app at Modal.")]
# Not validated, so that values of an earlier operator stay readable.
WrittenTime = Annotated[str, Meta(max_length=64)]
Simulated = Annotated[bool, Meta(description="Whether the outcome is simulated: no cloud was called.")]

KEPT_NAMES = frozenset(
    {
        *("modal_app_id", "modal_function_id", "tunnel_url", "log_url", "endpoint_url", "function_url"),
        *("created_at", "started_at", "finished_at", "deployed_at", "ready_replicas"),
        *("timeout", "tunnel_enabled", "tunnel_port", "enable_i6pn", "min_replicas", "max_replicas"),
    }
)


def errors(cpu: str, memory: str, env: Mapping[str, str]) -> Iterator[str]:
    """Yield why containers with these fields cannot run, each as a sentence with the fix."""
    for field, amount, example in (("cpu", cpu, "0.5 or 2.0"), ("memory", memory, "512Mi or 4Gi")):
        number = resource_validation.parse_quantity(amount)
        if number is None or number <= 0:
            problem = "not a quantity" if number is None else "not above 0"
            yield f"spec.{field} is {amount}, which is {problem}: write {example}."
    for name in sorted(env):
        if not name:
            yield "spec.env has a variable without a name: give it a name, such as EPOCHS."
        elif _VARIABLE_NAME.fullmatch(name) is None:
            yield (
                f"spec.env has the variable {name!r}, whose name is not valid: use printable ASCII characters other "
                "than =."
            )
