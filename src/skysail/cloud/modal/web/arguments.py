"""Arguments of a web App, from a launch spec. Pure."""

from __future__ import annotations

import hashlib
import posixpath

import msgspec

from skysail.cloud import web_app
from skysail.cloud.account import LaunchSpec
from skysail.cloud.errors import Rejected
from skysail.cloud.modal.prices import REGION, PriceTable, cores, memory_mib
from skysail.cloud.modal.web import tags
from skysail.cloud.provider import EmptyDir, ProjectedFiles
from skysail.cloud.web_app import WebApp

COMMAND_VARIABLE = "SKYSAIL_COMMAND"
PORT_VARIABLE = "SKYSAIL_PORT"
_REVISION_LENGTH = 16


class WebArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of a deploy. `files` have absolute paths. `usd_per_hour` is the highest price of one container.

    `cores` (physical ones) and `memory_mib` are the request and the upper bound.
    """

    app: str
    check_app: str
    web: WebApp
    image: str
    env: dict[str, str]
    files: tuple[tuple[str, bytes], ...]
    gpu: str
    cores: tuple[float, float]
    memory_mib: tuple[int, int]
    region: str
    usd_per_hour: float

    @property
    def revision(self) -> str:
        """Return a hash of everything that needs a deploy. The number of containers does not."""
        scale = msgspec.structs.replace(self.web, min_containers=0, max_containers=1)
        fixed = msgspec.structs.replace(self, web=scale, usd_per_hour=0.0)
        return hashlib.sha256(msgspec.json.encode(fixed, order="sorted")).hexdigest()[:_REVISION_LENGTH]


def web_arguments(spec: LaunchSpec, web: WebApp, prices: PriceTable) -> WebArguments:
    """Return the arguments. Raises Rejected if Modal cannot run the launch spec."""
    container, namespace = spec.container, spec.pod.namespace
    region = spec.region or dict(spec.options).get(REGION, "")
    usd = prices.function_usd_per_hour(spec.gpus, container.machine_size, region)
    _check_price(spec, usd * web.max_containers)
    env = dict(container.env)
    if web.port:
        words = (*container.command, *container.args)
        if not words:
            raise Rejected("EntrypointUnknown", "Modal needs a command line: set `command`.")
        env |= {COMMAND_VARIABLE: msgspec.json.encode(words).decode(), PORT_VARIABLE: str(web.port)}
    return WebArguments(
        app=tags.app_name(spec.cluster, namespace, web.name),
        check_app=tags.app_name(spec.cluster, namespace, web.name, is_check=True),
        web=web,
        image=container.image,
        env=env,
        files=_files(spec),
        gpu=_gpu(spec, prices),
        cores=cores(container.machine_size),
        memory_mib=memory_mib(container.machine_size),
        region=region,
        usd_per_hour=usd,
    )


def wants_web(options: tuple[tuple[str, str], ...]) -> bool:
    return web_app.OPTION in dict(options)


def _files(spec: LaunchSpec) -> tuple[tuple[str, bytes], ...]:
    """Return the files of the pod's ConfigMaps and Secrets. Raises Rejected for volumes that a web App cannot have."""
    sources = {volume.name: volume.source for volume in spec.pod.volumes}
    found: dict[str, bytes] = {}
    for mount in spec.container.mounts:
        source = sources.get(mount.volume)
        if isinstance(source, EmptyDir):
            continue
        if not isinstance(source, ProjectedFiles):
            raise Rejected(
                "UnsupportedVolume", f"Volume {mount.volume} cannot be mounted into an App of Modal: remove it."
            )
        wanted = mount.sub_path.strip("/")
        for file in source.files:
            if file.path == wanted:
                found[mount.path] = file.content
                continue
            inside = posixpath.relpath(file.path, wanted) if wanted else file.path
            if not inside.startswith("../"):
                found[posixpath.join(mount.path, inside)] = file.content
    return tuple(sorted(found.items()))


def _gpu(spec: LaunchSpec, prices: PriceTable) -> str:
    if spec.gpus is None:
        return ""
    gpu, count = prices.gpu(spec.gpus.type), spec.gpus.count
    if count > gpu.max_count:
        raise Rejected("TooManyGpus", f"Modal has at most {gpu.max_count} {gpu.type} in a container, not {count}.")
    exact = {"H100!", "B200+"} & {spec.gpus.type.upper()}
    return f"{next(iter(exact), gpu.type)}:{count}"


def _check_price(spec: LaunchSpec, usd_per_hour: float) -> None:
    """Reject an App above the cap before it is deployed."""
    cap = spec.max_usd_per_hour
    if cap is not None and usd_per_hour > cap + 1e-6:
        raise Rejected(
            "PriceAboveCap",
            f"All containers of the App cost {usd_per_hour:g} USD/h, above the cap of {cap:g}: lower max_replicas, or "
            "raise the cap.",
        )
