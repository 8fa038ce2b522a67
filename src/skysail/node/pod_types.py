"""A pod as its node reads it: the full spec, and the status, which only the node writes."""

from __future__ import annotations

from typing import Any

import msgspec

from skysail.claims.requirements.types import Affinity
from skysail.kube.api.objects import Object


class _Read(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Base of parts that are only read: unknown fields are ignored, absent fields have their default."""


class KeySelector(_Read, frozen=True):
    key: str
    name: str = ""
    optional: bool = False


class FieldSelector(_Read, frozen=True):
    field_path: str


class ResourceSelector(_Read, frozen=True):
    resource: str
    container_name: str = ""
    divisor: str | int = "0"


class ValueSource(_Read, frozen=True):
    config_map_key_ref: KeySelector | None = None
    secret_key_ref: KeySelector | None = None
    field_ref: FieldSelector | None = None
    resource_field_ref: ResourceSelector | None = None
    file_key_ref: dict[str, Any] | None = None


class EnvVar(_Read, frozen=True):
    name: str
    value: str = ""
    value_from: ValueSource | None = None


class NameSelector(_Read, frozen=True):
    name: str = ""
    optional: bool = False


class EnvFrom(_Read, frozen=True):
    prefix: str = ""
    config_map_ref: NameSelector | None = None
    secret_ref: NameSelector | None = None


class Port(_Read, frozen=True):
    container_port: int
    name: str = ""
    protocol: str = "TCP"
    host_port: int = 0


class Resources(_Read, frozen=True):
    limits: dict[str, str | int] = msgspec.field(default_factory=dict)
    requests: dict[str, str | int] = msgspec.field(default_factory=dict)
    claims: tuple[dict[str, Any], ...] = ()


class VolumeMount(_Read, frozen=True):
    name: str
    mount_path: str
    sub_path: str = ""
    sub_path_expr: str = ""
    read_only: bool = False
    mount_propagation: str = "None"
    recursive_read_only: str = "Disabled"


class VolumeDevice(_Read, frozen=True):
    name: str
    device_path: str


class ExecAction(_Read, frozen=True):
    command: tuple[str, ...] = ()


class HttpHeader(_Read, frozen=True):
    name: str
    value: str


class HttpAction(_Read, frozen=True):
    port: int | str
    path: str = "/"
    host: str = ""
    scheme: str = "HTTP"
    http_headers: tuple[HttpHeader, ...] = ()


class TcpAction(_Read, frozen=True):
    port: int | str
    host: str = ""


class GrpcAction(_Read, frozen=True):
    port: int
    service: str | None = None


class SleepAction(_Read, frozen=True):
    seconds: int = 0


class Probe(_Read, frozen=True):
    exec: ExecAction | None = None
    http_get: HttpAction | None = None
    tcp_socket: TcpAction | None = None
    grpc: GrpcAction | None = None
    initial_delay_seconds: int = 0
    period_seconds: int = 10
    timeout_seconds: int = 1
    success_threshold: int = 1
    failure_threshold: int = 3
    termination_grace_period_seconds: int | None = None


class Handler(_Read, frozen=True):
    exec: ExecAction | None = None
    http_get: HttpAction | None = None
    tcp_socket: TcpAction | None = None
    sleep: SleepAction | None = None


class Lifecycle(_Read, frozen=True):
    post_start: Handler | None = None
    pre_stop: Handler | None = None
    stop_signal: str | None = None


class Capabilities(_Read, frozen=True):
    """Linux capabilities, in any spelling: `net_raw` and `CAP_NET_RAW` are both NET_RAW."""

    add: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()

    @property
    def added(self) -> frozenset[str]:
        return frozenset(name.upper().removeprefix("CAP_") for name in self.add)

    @property
    def dropped(self) -> frozenset[str]:
        return frozenset(name.upper().removeprefix("CAP_") for name in self.drop)


class Profile(_Read, frozen=True):
    type: str


class SecurityContext(_Read, frozen=True):
    """Security context of a container, or of a pod for all of its containers."""

    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    capabilities: Capabilities = Capabilities()
    privileged: bool = False
    read_only_root_filesystem: bool = False
    proc_mount: str = "Default"
    seccomp_profile: Profile | None = None
    app_armor_profile: Profile | None = None
    se_linux_options: dict[str, Any] | None = None
    windows_options: dict[str, Any] | None = None
    supplemental_groups: tuple[int, ...] = ()
    fs_group: int | None = None
    fs_group_change_policy: str = "Always"
    sysctls: tuple[dict[str, Any], ...] = ()


class Container(_Read, frozen=True):
    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    env: tuple[EnvVar, ...] = ()
    env_from: tuple[EnvFrom, ...] = ()
    ports: tuple[Port, ...] = ()
    resources: Resources = Resources()
    volume_mounts: tuple[VolumeMount, ...] = ()
    volume_devices: tuple[VolumeDevice, ...] = ()
    startup_probe: Probe | None = None
    readiness_probe: Probe | None = None
    liveness_probe: Probe | None = None
    lifecycle: Lifecycle = Lifecycle()
    restart_policy: str | None = None
    restart_policy_rules: tuple[dict[str, Any], ...] = ()
    security_context: SecurityContext = SecurityContext()
    termination_message_path: str = "/dev/termination-log"
    termination_message_policy: str = "File"
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False


class KeyToPath(_Read, frozen=True):
    key: str
    path: str
    mode: int | None = None


class ConfigMapSource(_Read, frozen=True):
    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    default_mode: int = 0o644
    optional: bool = False


class SecretSource(_Read, frozen=True):
    secret_name: str = ""
    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    default_mode: int = 0o644
    optional: bool = False


class DownwardItem(_Read, frozen=True):
    path: str
    field_ref: FieldSelector | None = None
    resource_field_ref: ResourceSelector | None = None
    mode: int | None = None


class DownwardSource(_Read, frozen=True):
    items: tuple[DownwardItem, ...] = ()
    default_mode: int = 0o644


class TokenSource(_Read, frozen=True):
    path: str
    audience: str = ""
    expiration_seconds: int = 3600


class ProjectedPart(_Read, frozen=True):
    config_map: ConfigMapSource | None = None
    secret: SecretSource | None = None
    downward_api: DownwardSource | None = msgspec.field(default=None, name="downwardAPI")
    service_account_token: TokenSource | None = None
    cluster_trust_bundle: dict[str, Any] | None = None
    pod_certificate: dict[str, Any] | None = None


class ProjectedSource(_Read, frozen=True):
    sources: tuple[ProjectedPart, ...] = ()
    default_mode: int = 0o644


class EmptyDir(_Read, frozen=True):
    medium: str = ""
    size_limit: str | int | None = None


class HostPath(_Read, frozen=True):
    path: str
    type: str = ""


class ClaimSource(_Read, frozen=True):
    claim_name: str
    read_only: bool = False


class Volume(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A volume. One source is set; if none is, the node does not support this type of volume.

    `cloud_volume` is set by a node that stands for a cloud; the API has no such field.
    """

    name: str
    empty_dir: EmptyDir | None = None
    host_path: HostPath | None = None
    config_map: ConfigMapSource | None = None
    secret: SecretSource | None = None
    downward_api: DownwardSource | None = msgspec.field(default=None, name="downwardAPI")
    projected: ProjectedSource | None = None
    persistent_volume_claim: ClaimSource | None = None
    cloud_volume: str | None = None


class HostAlias(_Read, frozen=True):
    ip: str
    hostnames: tuple[str, ...] = ()


class ReadinessGate(_Read, frozen=True):
    condition_type: str


class Os(_Read, frozen=True):
    name: str


class PodSpec(_Read, frozen=True):
    containers: tuple[Container, ...]
    init_containers: tuple[Container, ...] = ()
    ephemeral_containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()
    node_name: str = ""
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    affinity: Affinity | None = None
    tolerations: tuple[dict[str, Any], ...] = ()
    restart_policy: str = "Always"
    hostname: str = ""
    hostname_override: str | None = None
    subdomain: str = ""
    set_hostname_as_fqdn: bool = msgspec.field(default=False, name="setHostnameAsFQDN")
    host_aliases: tuple[HostAlias, ...] = ()
    dns_policy: str = "ClusterFirst"
    dns_config: dict[str, Any] | None = None
    host_network: bool = False
    host_pid: bool = msgspec.field(default=False, name="hostPID")
    host_ipc: bool = msgspec.field(default=False, name="hostIPC")
    host_users: bool = True
    share_process_namespace: bool = False
    os: Os | None = None
    runtime_class_name: str | None = None
    resources: Resources | None = None
    resource_claims: tuple[dict[str, Any], ...] = ()
    service_account_name: str = "default"
    image_pull_secrets: tuple[NameSelector, ...] = ()
    enable_service_links: bool = True
    active_deadline_seconds: int | None = None
    termination_grace_period_seconds: int | None = None
    security_context: SecurityContext = SecurityContext()
    readiness_gates: tuple[ReadinessGate, ...] = ()


class PodStatus(_Read, frozen=True):
    """Status as it was last written. The node reads its own status back after a restart."""

    phase: str = "Pending"
    reason: str | None = None
    message: str | None = None
    observed_generation: int | None = None
    start_time: str | None = None
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    pod_ips: tuple[dict[str, str], ...] | None = msgspec.field(default=None, name="podIPs")
    host_ip: str | None = msgspec.field(default=None, name="hostIP")
    host_ips: tuple[dict[str, str], ...] | None = msgspec.field(default=None, name="hostIPs")
    conditions: tuple[dict[str, Any], ...] = ()
    container_statuses: tuple[dict[str, Any], ...] = ()
    init_container_statuses: tuple[dict[str, Any], ...] = ()
    ephemeral_container_statuses: tuple[dict[str, Any], ...] = ()


class Pod(Object, frozen=True, gc=False):
    """A pod that is bound to a node of ours."""

    spec: PodSpec
    status: PodStatus = PodStatus()

    @property
    def is_finished(self) -> bool:
        return self.status.phase in {"Succeeded", "Failed"}

    @property
    def hostname(self) -> str:
        return self.spec.hostname_override or self.spec.hostname or self.metadata.name[:63].rstrip("-.")
