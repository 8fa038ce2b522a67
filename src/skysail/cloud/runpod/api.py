"""Messages of RunPod's REST API v2, as far as Skysail uses them. Unknown fields of answers are ignored.

Values of answers are not trusted: `pod_problem` names a value that Skysail cannot use.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Literal

import msgspec

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_MAX_PRICE = 1e6
# Later times are no times of the service, and calculations with them would fail.
_MAX_SECONDS = datetime(2100, 1, 1, tzinfo=UTC).timestamp()
_FRACTION = re.compile(r"(\.\d{6})\d+")

PodStatus = Literal["PROVISIONING", "STARTING", "RUNNING", "EXITED", "ERROR", "TERMINATED"]


class _Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of all messages."""


class _Body(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Base of all request bodies. The service rejects unknown fields, and so does the stand-in."""


class GpuOrder(_Body, frozen=True):
    id: str
    # Always sent: without it, the service answers with a misleading capacity error.
    count: int = msgspec.field(default_factory=lambda: 1)
    allowed_cuda_versions: tuple[str, ...] = ()
    min_cuda_version: str = ""
    min_ram_per_gpu: int = 0
    min_vcpu_count_per_gpu: int = 0


class CpuOrder(_Body, frozen=True):
    id: str
    vcpu_count: int


class PersistentMount(_Body, frozen=True):
    size: int
    path: str


class NetworkMount(_Body, frozen=True):
    volume_id: str
    path: str


class Mounts(_Body, frozen=True):
    persistent: PersistentMount | None = None
    network: tuple[NetworkMount, ...] = ()


class CreatePod(_Body, frozen=True):
    """Body of `POST /v2/pods`."""

    name: str
    image: str = ""
    cloud: str = "SECURE"
    gpu: GpuOrder | None = None
    cpu: CpuOrder | None = None
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    args: str = ""
    env: dict[str, str] = msgspec.field(default_factory=dict)
    ports: tuple[str, ...] = ()
    disk: int = 0
    mounts: Mounts | None = None
    data_center_ids: tuple[str, ...] = ()
    registry: str | None = None
    template_id: str = ""
    global_networking: bool = False
    start_ssh: bool = False
    start_jupyter: bool = False


class CreateRegistry(_Body, frozen=True):
    """Body of `POST /v2/registries`. The password never appears in a repr."""

    name: str
    username: str
    password: str

    def __repr__(self) -> str:
        return f"CreateRegistry(name={self.name!r})"


class CreateVolume(_Body, frozen=True, kw_only=True):
    """Body of `POST /v2/network-volumes`."""

    name: str
    size: int
    data_center: str
    type: str = ""


class ExecCommand(_Body, frozen=True):
    """Body of `POST /v2/pods/{id}/exec`."""

    command: tuple[str, ...]
    timeout_seconds: int = msgspec.field(default_factory=lambda: 20)
    cwd: str = ""


class ExecResult(_Message, frozen=True):
    """Result of an exec. Only the request and `timedOut` are documented."""

    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    timed_out: bool = False

    @property
    def is_complete(self) -> bool:
        """Return whether the answer says how the command ended. Otherwise its form is another one than expected."""
        return self.timed_out or self.exit_code is not None


class PodAction(_Body, frozen=True):
    action: Literal["stop", "start", "restart", "terminate"]


class PortMapping(_Message, frozen=True):
    private: int = 0
    public: int | None = None
    type: str = ""
    ip: str | None = None


class PodRuntime(_Message, frozen=True):
    uptime: int | None = None
    ports: tuple[PortMapping, ...] | None = None


class Pod(_Message, frozen=True, kw_only=True):
    """A pod. `cost` is in US dollars per hour, 0 if it is stopped.

    A pod whose `status` is none of `PodStatus` exists: the service may add one.
    """

    id: str
    name: str = ""
    status: str
    cost: float = 0.0
    env: dict[str, str] | None = None
    ports: tuple[str, ...] = ()
    data_center_id: str | None = None
    runtime: PodRuntime | None = None
    created_at: str = ""
    started_at: str | None = None
    registry: str | None = None

    @property
    def created(self) -> float:
        """Seconds since 1970; 0 if the service does not say."""
        return seconds(self.created_at) or 0.0

    @property
    def started(self) -> float | None:
        return seconds(self.started_at or "")


class Pagination(_Message, frozen=True):
    has_next_page: bool = False
    next_cursor: str | None = None


class PodPage(_Message, frozen=True):
    """One page of pods. Each pod is decoded on its own, so that one malformed pod does not hide the others."""

    pods: tuple[msgspec.Raw, ...]
    pagination: Pagination | None = None


class TierPrice(_Message, frozen=True):
    secure: float | None = None
    community: float | None = None


class TierCount(_Message, frozen=True):
    secure: int | None = None
    community: int | None = None


class DataCenterStock(_Message, frozen=True):
    id: str
    availability: str = ""


class CudaStock(_Message, frozen=True):
    version: str
    available: bool = True


class GpuType(_Message, frozen=True):
    id: str
    name: str = ""
    manufacturer: str = ""
    memory: int = 0
    secure: bool = False
    community: bool = False
    price: TierPrice = TierPrice()
    max_count: TierCount = TierCount()
    availability: str = ""
    data_centers: tuple[DataCenterStock, ...] | None = None
    cuda_versions: tuple[CudaStock, ...] | None = None


class GpuTypes(_Message, frozen=True):
    gpus: tuple[GpuType, ...]


class VcpuRange(_Message, frozen=True):
    min: int = 2
    max: int = 32


class VcpuPrice(_Message, frozen=True):
    secure_per_vcpu: float | None = None


class CpuType(_Message, frozen=True):
    id: str
    vcpu: VcpuRange = VcpuRange()
    ram_gb_per_vcpu: float = 0.0
    price: VcpuPrice = VcpuPrice()
    availability: str = ""
    data_centers: tuple[DataCenterStock, ...] | None = None


class CpuTypes(_Message, frozen=True):
    cpus: tuple[CpuType, ...]


class Registry(_Message, frozen=True):
    id: str
    name: str = ""


class Registries(_Message, frozen=True):
    registries: tuple[Registry, ...]


class NetworkVolume(_Message, frozen=True):
    id: str
    name: str = ""
    size: int = 0
    data_center: str = ""


class NetworkVolumes(_Message, frozen=True):
    network_volumes: tuple[NetworkVolume, ...]


class BillingRecord(_Message, frozen=True):
    pod_id: str = ""
    total_amount: float = 0.0


class Billing(_Message, frozen=True):
    records: tuple[BillingRecord, ...]


class Problem(_Message, frozen=True):
    """Body of an error, of type `application/problem+json`."""

    title: str = ""
    status: int = 0
    detail: str = ""
    errors: tuple[str, ...] | None = None


class LogLine(_Message, frozen=True):
    """Payload of one event of a log stream."""

    source: str = "container"
    line: str = ""
    ts: str = ""


class LogEvent(msgspec.Struct, frozen=True):
    """One event of a log stream. `id` is the cursor to continue after it. `at` is 0 if the service does not say."""

    id: str
    source: str
    line: str
    at: float


def is_id(text: str) -> bool:
    """Return whether the text can be an id. Ids become parts of paths and host names."""
    return _ID.fullmatch(text) is not None


def pod_problem(pod: Pod) -> str:
    """Return why the pod cannot be used, as a clause, or an empty string."""
    if not is_id(pod.id):
        return "its id has characters that no id has"
    if not math.isfinite(pod.cost) or not 0 <= pod.cost <= _MAX_PRICE:
        return "its price is no amount of US dollars"
    return ""


def seconds(timestamp: str) -> float | None:
    """Convert an RFC 3339 timestamp to seconds since 1970. Returns None if it is malformed or in another epoch."""
    try:
        parsed = datetime.fromisoformat(_FRACTION.sub(r"\1", timestamp))
        found = parsed.replace(tzinfo=parsed.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        return None
    return found if 0 <= found < _MAX_SECONDS else None


def timestamp(at: float) -> str:
    """Convert seconds since 1970 to RFC 3339 with microseconds."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
