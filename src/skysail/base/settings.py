"""All settings of the operator, from flags, environment, file and defaults, in this order of precedence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from skysail.base.errors import UserError

_PREFIX = "SKYSAIL_"
# Environment variables of the replaced operators that mean the same setting.
_ALIASES = {
    "mock_clouds": ("MODAL_MOCK",),
    "modal_environment": ("MODAL_ENVIRONMENT",),
    "runpod_api_base_url": ("RUNPOD_API_BASE_URL",),
    "katib_adapter": ("ENABLE_KATIB_ADAPTER",),
    "training_operator_adapter": ("ENABLE_TRAINING_OPERATOR_ADAPTER",),
    "kserve_adapter": ("ENABLE_KSERVE_ADAPTER",),
}

Namespace = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
Port = Annotated[int, Meta(ge=0, le=65535)]
_HOST = r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\])(:[0-9]{1,5})?"
_REGISTRY = re.compile(_HOST)
_MIRROR = re.compile(rf"https?://{_HOST}(/[a-z0-9]+([._-]+[a-z0-9]+)*)*/?")
RuntimeName = Literal["fastapi-onnx", "fastapi-pytorch", "tensorflow", "torchserve", "triton"]


class SettingsError(UserError):
    """Invalid value of a setting. The message names the setting and its source."""


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A virtual node of a cloud. It exists while there is an account at that cloud, real or simulated."""

    provider: Annotated[str, Meta(description="Name of the cloud.")]
    port: Annotated[Port, Meta(description="Port that serves logs, exec and port-forward.")]
    taint: Annotated[
        str, Meta(pattern=r"^[^=:]+(=[^=:]*)?:(NoSchedule|NoExecute|PreferNoSchedule)$", description="key=value:Effect")
    ]
    labels: Annotated[dict[str, str], Meta(description="Labels in addition to the default ones.")] = {}
    capacity: Annotated[dict[str, str], Meta(description="Capacity that the scheduler sees.")] = msgspec.field(
        default_factory=lambda: {
            "cpu": "10k",
            "memory": "100Ti",
            "ephemeral-storage": "100Ti",
            "nvidia.com/gpu": "1k",
            "pods": "10k",
        }
    )


_NODES = {
    "modal.com": NodeSettings(provider="modal", port=10260, taint="modal-operator.io/virtual=true:NoSchedule"),
    "runpod-virtual-node": NodeSettings(
        provider="runpod",
        port=10261,
        taint="runpod.io/virtual=true:NoSchedule",
        labels={"runpod.io/virtual": "true"},
    ),
}


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the operator. Each field is a key of the settings file and `SKYSAIL_` + NAME in the environment."""

    kubeconfig: Annotated[str | None, Meta(description="Path of the kubeconfig; by default as kubectl finds it.")] = (
        None
    )
    context: Annotated[str | None, Meta(description="Context in the kubeconfig; by default the current one.")] = None
    namespaces: Annotated[tuple[Namespace, ...], Meta(description="Namespaces to watch; by default all.")] = ()
    operator_namespace: Annotated[str, Meta(description="Namespace of the operator's Lease and Secret.")] = (
        "skysail-system"
    )
    identity: Annotated[
        str | None, Meta(description="Name of this replica, to which a suffix is added; by default the hostname.")
    ] = None
    single_replica: Annotated[
        bool, Meta(description="Only one replica runs: take over the lease at once, even if it seems to be held.")
    ] = False
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Lowest level that is logged.")
    ] = "info"
    log_format: Annotated[
        Literal["auto", "json", "text"], Meta(description="auto: text on a terminal, JSON elsewhere.")
    ] = "auto"
    health_ports: Annotated[
        tuple[Port, ...], Meta(description="Ports of /healthz, /readyz and /metrics; all serve the same pages.")
    ] = (8080, 8081)
    health_host: Annotated[
        str | None, Meta(description="Address on which `health_ports` listen; by default all addresses.")
    ] = None
    metrics: Annotated[bool, Meta(description="Serve /metrics.")] = True
    webhook_port: Annotated[Port, Meta(description="Port of the admission server.")] = 9443
    webhook_host: Annotated[
        str | None, Meta(description="Address of this process for the API server and pods, where there is no Service.")
    ] = None
    webhook_service: Annotated[str, Meta(description="Service in front of the admission server, in a cluster.")] = (
        "skysail-webhook"
    )
    progress_port: Annotated[
        Port, Meta(description="Port that receives progress reports of TrainingJobs; 0 switches reports off.")
    ] = 8082
    progress_service: Annotated[str, Meta(description="Service in front of the progress server, in a cluster.")] = (
        "skysail-progress"
    )
    stall_timeout_seconds: Annotated[
        float, Meta(gt=0, description="Seconds without a progress report after which a training is Stalled.")
    ] = 900.0
    resync_seconds: Annotated[
        float,
        Meta(gt=0, description="Seconds between two resyncs of all objects and audits of all caches."),
    ] = 600.0
    audit_token: Annotated[
        str | None,
        Meta(description="File with the token that POST /audit requires; without it audits are switched off."),
    ] = None
    drain_seconds: Annotated[
        float, Meta(ge=0, description="Seconds for which admission is still served after SIGTERM.")
    ] = 3.0
    webhooks: Annotated[bool, Meta(description="Serve admission webhooks.")] = True
    nodes: Annotated[dict[str, NodeSettings], Meta(description="Virtual nodes of the clouds, by name.")] = (
        msgspec.field(default_factory=_NODES.copy)
    )
    node_address: Annotated[
        str | None, Meta(description="Address at which the API server reaches this process for logs and exec.")
    ] = None
    node_certificate: Annotated[
        str | None, Meta(description="Certificate of the node servers, used with `node_key`; by default self-signed.")
    ] = None
    node_key: Annotated[str | None, Meta(description="Private key of the node certificate.")] = None
    data_dir: Annotated[str, Meta(description="Folder for logs of cloud pods, kept until the pod is deleted.")] = (
        "/var/lib/skysail"
    )
    simulated_cloud_url: Annotated[
        str | None, Meta(description="Unix socket of the simulated clouds, used for clouds without credentials.")
    ] = None
    simulated_cloud_token_file: Annotated[
        str | None, Meta(description="File with the token for the simulated clouds.")
    ] = None
    mock_clouds: Annotated[
        bool, Meta(description="Pretend to run cloud pods: no cloud is called, and nothing is paid.")
    ] = False
    bridge_address: Annotated[
        str | None,
        Meta(
            description="Address of the bridge for Services, or several, separated by commas; by default those of its"
            " pods in `operator_namespace`."
        ),
    ] = None
    bridge_host: Annotated[
        str | None, Meta(description="Address on which the bridge listens; by default all addresses.")
    ] = None
    bridge_health_port: Annotated[Port, Meta(description="Port of /healthz, /readyz and /metrics of the bridge.")] = (
        8083
    )
    bridge_max_connections: Annotated[
        int, Meta(ge=1, description="Maximum open connections of the bridge; further ones are reset.")
    ] = 4096
    bridge_max_connections_per_route: Annotated[
        int, Meta(ge=1, description="Maximum open connections to one port of one instance; further ones are reset.")
    ] = 1024
    bridge_idle_seconds: Annotated[
        float, Meta(gt=0, description="Seconds without a byte after which the bridge closes a connection.")
    ] = 3600.0
    bridge_max_request_bytes: Annotated[
        int, Meta(ge=1, description="Maximum body of one request, where the cloud forwards only HTTP.")
    ] = 4 * 2**30
    modal_token_secret: Annotated[
        str, Meta(description="Secret in the operator's namespace with the token of Modal: `token-id`, `token-secret`.")
    ] = "modal-token"  # noqa: S105 (the name of a Secret)
    modal_environment: Annotated[
        str, Meta(description="Environment at Modal; empty: the default one of the workspace.")
    ] = ""
    modal_default_gpu_type: Annotated[
        str, Meta(description="GPU type of pods at Modal that name none; empty: the cheapest that fits.")
    ] = ""
    modal_capacity_timeout_seconds: Annotated[
        float, Meta(gt=0, le=1200, description="Seconds that a launch at Modal waits for GPUs.")
    ] = 600.0
    modal_shared_volumes: Annotated[
        tuple[str, ...], Meta(description="Volumes of Modal that pods of every namespace may mount by their own name.")
    ] = ()
    modal_prices: Annotated[
        dict[str, Annotated[float, Meta(gt=0)]],
        Meta(description="Prices of Modal in US dollars per hour, by GPU type, `cpu` (a core) and `memory` (a GiB)."),
    ] = {}
    modal_regions: Annotated[
        tuple[str, ...], Meta(description="Regions of Modal with offers of their own, for policies that name regions.")
    ] = ()
    modal_region_multipliers: Annotated[
        dict[str, Annotated[float, Meta(gt=0)]], Meta(description="Price multipliers of Modal's regions.")
    ] = {}
    runpod_key_secret: Annotated[
        str, Meta(description="Secret in the operator's namespace with the API key of RunPod: `RUNPOD_KEY`.")
    ] = "runpod-controller-secrets"  # noqa: S105 (the name of a Secret)
    runpod_api_base_url: Annotated[str, Meta(description="Address of RunPod's API, or `unix:/path` of a stand-in.")] = (
        "https://api.runpod.io"
    )
    orphan_grace_seconds: Annotated[
        float, Meta(ge=0, description="Seconds before an instance without a claim is terminated.")
    ] = 600.0
    launches_per_object: Annotated[
        int, Meta(ge=1, description="Maximum launches of one pod, or of one index of a Job, in 10 minutes.")
    ] = 5
    launches_per_namespace: Annotated[int, Meta(ge=1, description="Maximum launches of one namespace in an hour.")] = 60
    launches_per_cloud: Annotated[
        int, Meta(ge=1, description="Maximum launches of this cluster at one cloud in an hour.")
    ] = 300
    offload_auto: Annotated[
        Literal["WhenUnschedulable", "Always", "Off"],
        Meta(description="When GPU pods that ask for no cloud are offloaded; a policy must allow it, too."),
    ] = "WhenUnschedulable"
    max_gpu_price: Annotated[
        float,
        Meta(gt=0, description="Cap in US dollars per hour and GPU on RunPod, and on pods that ask for `cheapest`."),
    ] = 0.5
    max_pending_seconds: Annotated[
        float, Meta(ge=0, description="Seconds that a Job with `runpod.io/managed` waits before it is offloaded.")
    ] = 0.0
    pending_job_threshold: Annotated[
        int, Meta(ge=0, description="If more Jobs with `runpod.io/managed` wait, they are offloaded at once.")
    ] = 1
    autoscaler_wait_seconds: Annotated[
        float, Meta(ge=0, description="Seconds that a cluster autoscaler has before a GPU pod is offloaded.")
    ] = 20.0
    scale_up_timeout_seconds: Annotated[
        float, Meta(ge=0, description="Seconds after which a scale-up that brought no node is no longer waited for.")
    ] = 900.0
    offload_schedulers: Annotated[tuple[str, ...], Meta(description="Schedulers whose pods may be offloaded.")] = (
        "default-scheduler",
    )
    katib_adapter: Annotated[bool, Meta(description="Offload pods of Katib.")] = True
    training_operator_adapter: Annotated[
        bool, Meta(description="Offload pods of the Kubeflow training operator, such as those of a PyTorchJob.")
    ] = True
    kserve_adapter: Annotated[bool, Meta(description="Offload pods of KServe.")] = True
    allowed_registries: Annotated[
        tuple[str, ...],
        Meta(
            description="Private registries that image configs may be read from: CIDRs, host patterns, and "
            "http://HOST:PORT for a registry without TLS."
        ),
    ] = ()
    registry_mirrors: Annotated[
        dict[str, str],
        Meta(
            description="Mirrors that image configs are read from in place of a registry: its host to "
            "http(s)://HOST[:PORT][/PREFIX]."
        ),
    ] = {}
    runtime_images: Annotated[
        dict[RuntimeName, str], Meta(description="Container images that replace those of serving runtimes, by runtime.")
    ] = {}
    fetch_image: Annotated[str, Meta(description="Image that downloads models in their pods.")] = (
        "localhost/skysail-fetch:dev"
    )
    allowed_model_hosts: Annotated[
        tuple[str, ...],
        Meta(description="Private hosts that models may be downloaded from: CIDRs and host patterns."),
    ] = ()
    max_model_bytes: Annotated[int, Meta(ge=1, description="Maximum size of an unpacked model in bytes.")] = 2**40
    prepare_deadline_seconds: Annotated[
        int, Meta(ge=1, description="Maximum seconds for the download and the validation of a model.")
    ] = 21600
    progress_deadline_seconds: Annotated[
        int,
        Meta(ge=1, description="progressDeadlineSeconds of model servers: maximum seconds without rollout progress."),
    ] = 1800
    min_ready_seconds: Annotated[
        int, Meta(ge=0, description="minReadySeconds of model servers: seconds ready before the next one starts.")
    ] = 10

    def __post_init__(self) -> None:
        for registry, url in self.registry_mirrors.items():
            if not _REGISTRY.fullmatch(registry):
                raise ValueError(
                    f"registry_mirrors: {registry!r} is not the host of a registry, such as docker.io or quay.io:443"
                )
            # The URL is not shown: it may contain a password, which is one of the mistakes.
            if not _MIRROR.fullmatch(url) or not _has_valid_port(url):
                raise ValueError(
                    f"registry_mirrors: the mirror of {registry} must be http(s)://HOST[:PORT][/PREFIX], without a user"
                )


def _has_valid_port(url: str) -> bool:
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


def load(flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None = None) -> Settings:
    """Merge the sources: flags before environment before file. A flag that is None was not given."""
    merged: dict[str, Any] = {}
    for source, values in (
        (str(file), _from_file(file) if file else {}),
        ("the environment", _from_environment(environment)),
        ("the command line", {name: value for name, value in flags.items() if value not in (None, (), [])}),
    ):
        merged.update(_checked(source, values))
    return msgspec.convert(merged, Settings, strict=False)


def is_mock_mode(environment: Mapping[str, str]) -> bool:
    """Return whether the environment asks for mock clouds."""
    names = _names("mock_clouds")
    return load({}, {name: value for name, value in environment.items() if name in names}).mock_clouds


def _checked(source: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"A setting from {source} is invalid: {error}. See `skysail run --help`.") from error
    return values


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(Settings):
        value = next((environment[name] for name in _names(field.name) if name in environment), None)
        if value is not None:
            found[field.name] = _parsed(field, value)
    return found


def _parsed(field: msgspec.structs.FieldInfo, value: str) -> Any:
    """Return the value of an environment variable: lists as `a,b`, maps as `a=b,c=d`."""
    if isinstance(field.default, tuple):
        return [part.strip() for part in value.split(",")]
    if field.default_factory is dict:
        pairs = [part.partition("=") for part in value.split(",") if part.strip()]
        return {name.strip(): text.strip() for name, _, text in pairs}
    return value


def _names(setting: str) -> tuple[str, ...]:
    """Return the environment variables of a setting."""
    return (_PREFIX + setting.upper(), *_ALIASES.get(setting, ()))


def _from_file(file: Path) -> dict[str, Any]:
    try:
        values = msgspec.yaml.decode(file.read_bytes())
    except OSError as error:
        raise SettingsError(f"Cannot read the settings file {file}: {error.strerror}.") from error
    except msgspec.MsgspecError as error:
        raise SettingsError(f"{file} is not valid YAML: {error}.") from error
    if not isinstance(values, dict):
        raise SettingsError(f"{file} must hold a mapping of `name: value` lines.")
    return values
