"""Every setting of the operator, once. Filled by flags, environment, file and defaults, in this order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from skysail.base.errors import UserError

_PREFIX = "SKYSAIL_"
# Names that the operators which Skysail replaces gave to a setting of ours.
_OTHER_NAMES = {"mock_clouds": ("MODAL_MOCK",)}

Namespace = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
Port = Annotated[int, Meta(ge=0, le=65535)]
RuntimeName = Literal["fastapi-onnx", "fastapi-pytorch", "tensorflow", "torchserve", "triton"]


class SettingsError(UserError):
    """A setting has a value that cannot be used; the message names it and where it came from."""


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node that stands for a cloud. It is there while there is an account at that cloud, real or simulated."""

    provider: Annotated[str, Meta(description="The cloud.")]
    port: Annotated[Port, Meta(description="Port of its logs, exec and port-forward.")]
    taint: Annotated[
        str, Meta(pattern=r"^[^=:]+(=[^=:]*)?:(NoSchedule|NoExecute|PreferNoSchedule)$", description="key=value:Effect")
    ]
    labels: Annotated[dict[str, str], Meta(description="Labels beside those that every such node has.")] = {}
    capacity: Annotated[dict[str, str], Meta(description="What the scheduler may place there.")] = msgspec.field(
        default_factory=lambda: {
            "cpu": "10k",
            "memory": "100Ti",
            "ephemeral-storage": "100Ti",
            "nvidia.com/gpu": "1k",
            "pods": "10k",
        }
    )


_NODES = {
    "modal.com": NodeSettings(provider="modal", port=10260, taint="virtual-kubelet.io/provider=modal:NoSchedule"),
    "runpod-virtual-node": NodeSettings(
        provider="runpod",
        port=10261,
        taint="runpod.io/virtual=true:NoSchedule",
        labels={"runpod.io/virtual": "true"},
    ),
}


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the operator can be told. A name here is a key of the file, and `SKYSAIL_` + NAME in the environment."""

    kubeconfig: Annotated[str | None, Meta(description="The kubeconfig to use; by default as kubectl finds it.")] = None
    context: Annotated[str | None, Meta(description="The context in it; by default the current one.")] = None
    namespaces: Annotated[
        tuple[Namespace, ...], Meta(description="Work on objects of these namespaces only; by default on all.")
    ] = ()
    operator_namespace: Annotated[str, Meta(description="Where the operator's own Lease and Secret are.")] = (
        "skysail-system"
    )
    identity: Annotated[
        str | None, Meta(description="Name of this replica, to which a suffix is added; by default the host's name.")
    ] = None
    sole: Annotated[
        bool, Meta(description="No other replica runs: take the lease over at once, whoever seems to hold it.")
    ] = False
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="What is logged.")] = "info"
    log_format: Annotated[
        Literal["auto", "json", "text"], Meta(description="auto: text on a terminal, JSON elsewhere.")
    ] = "auto"
    health_ports: Annotated[
        tuple[Port, ...], Meta(description="Ports of /healthz, /readyz and /metrics; all serve the same.")
    ] = (8080, 8081)
    webhook_port: Annotated[Port, Meta(description="Port of the admission server.")] = 9443
    webhook_host: Annotated[
        str | None, Meta(description="Address at which the API server and pods reach this process without a Service.")
    ] = None
    webhook_service: Annotated[str, Meta(description="Service in front of the admission server, in a cluster.")] = (
        "skysail-webhook"
    )
    progress_port: Annotated[
        Port, Meta(description="Port that pods of TrainingJobs report to; with 0 nobody is asked to report.")
    ] = 8082
    progress_service: Annotated[str, Meta(description="Service in front of it, in a cluster.")] = "skysail-progress"
    stall_seconds: Annotated[
        float, Meta(gt=0, description="How long a training may be silent that has reported its progress.")
    ] = 900.0
    resync_seconds: Annotated[
        float,
        Meta(gt=0, description="How often everything is looked at again, and every cache audited, without a change."),
    ] = 600.0
    audit_token: Annotated[
        str | None, Meta(description="File with the token that POST /audit asks for; without it nobody may ask.")
    ] = None
    drain_seconds: Annotated[
        float, Meta(ge=0, description="How long admission is still served after a stop was asked for.")
    ] = 3.0
    webhooks: Annotated[bool, Meta(description="Whether to serve admission at all.")] = True
    nodes: Annotated[dict[str, NodeSettings], Meta(description="The nodes that stand for clouds, by name.")] = (
        msgspec.field(default_factory=_NODES.copy)
    )
    node_address: Annotated[
        str | None, Meta(description="Address at which the API server reaches this process for logs and exec.")
    ] = None
    node_certificate: Annotated[
        str | None, Meta(description="Certificate of the nodes' servers, with `node_key`; by default self-signed.")
    ] = None
    node_key: Annotated[str | None, Meta(description="Its private key.")] = None
    data_folder: Annotated[str, Meta(description="Where logs of pods at clouds are kept until the pod is deleted.")] = (
        "/var/lib/skysail"
    )
    simulated_clouds: Annotated[
        str | None, Meta(description="Unix socket of simulated clouds that stand in for all real ones.")
    ] = None
    simulated_token: Annotated[str | None, Meta(description="File with the token for them.")] = None
    mock_clouds: Annotated[
        bool, Meta(description="Pretend to run pods at clouds: nothing is called, and nothing is paid.")
    ] = False
    sweep_seconds: Annotated[
        float, Meta(ge=0, description="How long an instance of ours without a claim is left alone before it is ended.")
    ] = 600.0
    launches_per_object: Annotated[
        int, Meta(ge=1, description="How often one pod, or one index of a Job, is launched within 10 minutes.")
    ] = 5
    launches_per_namespace: Annotated[
        int, Meta(ge=1, description="How many launches one namespace may have within an hour.")
    ] = 60
    launches_per_cloud: Annotated[
        int, Meta(ge=1, description="How many launches this cluster may ask of one cloud within an hour.")
    ] = 300
    runtime_images: Annotated[
        dict[RuntimeName, str], Meta(description="Images of model servers in place of their own, by runtime.")
    ] = {}
    fetch_image: Annotated[str, Meta(description="Image that downloads models in their pods.")] = (
        "localhost/skysail-fetch:dev"
    )
    model_sources: Annotated[
        tuple[str, ...],
        Meta(description="Private places that models may come from beside public ones: CIDRs and host patterns."),
    ] = ()
    model_limit_bytes: Annotated[int, Meta(ge=1, description="Most bytes that a model may have, unpacked.")] = 2**40
    prepare_seconds: Annotated[
        int, Meta(ge=1, description="How long the download and the validation of a model may run.")
    ] = 21600
    rollout_seconds: Annotated[
        int, Meta(ge=1, description="How long servers of a new revision may take until one more of them is ready.")
    ] = 1800
    soak_seconds: Annotated[
        int, Meta(ge=0, description="How long a server of a new revision must have been ready before the next starts.")
    ] = 10


def load(flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None = None) -> Settings:
    """Flags win over the environment, which wins over the file. A flag that is None was not given."""
    merged: dict[str, Any] = {}
    for source, values in (
        (str(file), _from_file(file) if file else {}),
        ("the environment", _from_environment(environment)),
        ("the command line", {name: value for name, value in flags.items() if value not in (None, (), [])}),
    ):
        merged.update(_checked(source, values))
    return msgspec.convert(merged, Settings, strict=False)


def mocks_clouds(environment: Mapping[str, str]) -> bool:
    """Whether the environment asks to pretend; for who starts an operator without the rest of that environment."""
    names = _names("mock_clouds")
    return load({}, {name: value for name, value in environment.items() if name in names}).mock_clouds


def _checked(source: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"A setting from {source} cannot be used: {error}. See `skysail run --help`.") from error
    return values


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(Settings):
        value = next((environment[name] for name in _names(field.name) if name in environment), None)
        if value is not None:
            found[field.name] = (
                [part.strip() for part in value.split(",")] if isinstance(field.default, tuple) else value
            )
    return found


def _names(setting: str) -> tuple[str, ...]:
    """In the environment."""
    return (_PREFIX + setting.upper(), *_OTHER_NAMES.get(setting, ()))


def _from_file(file: Path) -> dict[str, Any]:
    try:
        values = msgspec.yaml.decode(file.read_bytes())
    except OSError as error:
        raise SettingsError(f"Cannot read the settings file {file}: {error.strerror}.") from error
    except msgspec.MsgspecError as error:
        raise SettingsError(f"{file} is no YAML: {error}.") from error
    if not isinstance(values, dict):
        raise SettingsError(f"{file} must hold `name: value` lines.")
    return values
