"""Desired state of an endpoint or function, the same for both kinds. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from decimal import Decimal
from typing import Literal

import msgspec

from skysail.cloud.web_app import WebApp
from skysail.kinds.modal_endpoints.types import Code, ModalEndpoint, ModalEndpointSpec, ModalFunction
from skysail.kube.api import quantities

# Handler of an endpoint whose image has a server of its own.
SERVE = "serve"
_DEFAULT_PORT = 8000
# An endpoint has no fields for these.
_ENDPOINT_TIMEOUT = 86400
_ENDPOINT_CONCURRENCY = 50
# A function has no field for it.
_FUNCTION_MAX_CONTAINERS = 10
_SHIM = "handler_server.py"
_REVISION_LENGTH = 10
_INLINE_KEY = "inline.py"


class CodeFile(msgspec.Struct, frozen=True):
    """One file of the handler's code: its key in the ConfigMap, its path in the container, its content."""

    key: str
    path: str
    content: str


class Desired(msgspec.Struct, frozen=True, kw_only=True):
    """Program to run, with its resources.

    `cpu` is in cores of Kubernetes; a physical core of Modal is two of them. `returns` is what a handler may return.
    `command` is empty if the handler server runs the handler.
    `app` is the App that the cloud scales; None if pods run the containers. Then `replicas` of them run.
    """

    image: str
    handler: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    cpu: str
    memory: str
    gpu: str = ""
    gpu_count: int = 0
    replicas: int = 1
    port: int = _DEFAULT_PORT
    timeout: int
    concurrency: int
    returns: Literal["json", "any"]
    files: tuple[CodeFile, ...] = ()
    app: WebApp | None = None

    @property
    def is_own_server(self) -> bool:
        return self.handler == SERVE

    @property
    def revision(self) -> str:
        """Return a hash of everything that needs new containers. The number of replicas does not."""
        fixed = msgspec.structs.replace(self, replicas=0, app=None)
        return hashlib.sha256(msgspec.json.encode(fixed, order="sorted")).hexdigest()[:_REVISION_LENGTH]


def of_endpoint(endpoint: ModalEndpoint, code: Mapping[str, str], shim: str) -> Desired:
    spec = endpoint.spec
    gpu, count = _gpu(spec.gpu)
    is_own_server = spec.handler == SERVE
    return Desired(
        image=spec.image,
        handler=spec.handler,
        command=spec.command if is_own_server else (),
        args=spec.args if is_own_server else (),
        env=tuple(sorted(spec.env.items())),
        cpu=_cores(spec.cpu),
        memory=spec.memory,
        gpu=gpu,
        gpu_count=count,
        replicas=min(max(spec.min_replicas, 1), spec.max_replicas),
        port=spec.port,
        timeout=_ENDPOINT_TIMEOUT,
        concurrency=_ENDPOINT_CONCURRENCY,
        returns="any",
        files=() if is_own_server else _files(spec.handler, spec.code, code, shim),
    )


def of_function(function: ModalFunction, code: Mapping[str, str], shim: str) -> Desired:
    spec = function.spec
    gpu, count = _gpu(spec.gpu)
    return Desired(
        image=spec.image,
        handler=spec.handler,
        env=tuple(sorted(spec.env.items())),
        cpu=_cores(spec.cpu),
        memory=spec.memory,
        gpu=gpu,
        gpu_count=count,
        timeout=spec.timeout,
        concurrency=spec.concurrency,
        returns="json",
        files=_files(spec.handler, spec.code, code, shim),
    )


def as_app(desired: Desired, owner: ModalEndpoint | ModalFunction) -> Desired:
    """Return the desired state as an App: one pod stands for all of its containers."""
    spec = owner.spec
    is_endpoint = isinstance(spec, ModalEndpointSpec)
    app = WebApp(
        # Endpoints and functions may have the same name.
        name=f"{'endpoint' if is_endpoint else 'function'}.{owner.metadata.name}",
        min_containers=spec.min_replicas if isinstance(spec, ModalEndpointSpec) else 0,
        max_containers=spec.max_replicas if isinstance(spec, ModalEndpointSpec) else _FUNCTION_MAX_CONTAINERS,
        inputs=desired.concurrency,
        timeout=desired.timeout,
        port=desired.port if desired.is_own_server else 0,
    )
    return msgspec.structs.replace(desired, app=app, replicas=1)


def shim_path(files: tuple[CodeFile, ...]) -> str:
    """Return the path of the handler server among the files."""
    return next(file.path for file in files if file.key == _SHIM)


def _files(handler: str, code: Code | None, found: Mapping[str, str], shim: str) -> tuple[CodeFile, ...]:
    """Return the handler server and the code. Inline code is the module of the handler."""
    server = CodeFile(_SHIM, f".skysail/{_SHIM}", shim)
    if code is None:
        return (server,)
    if code.inline is not None:
        module = handler.rpartition(".")[0] or handler
        return server, CodeFile(_INLINE_KEY, f"{module.replace('.', '/')}.py", code.inline)
    return server, *(CodeFile(f"user.{key}", key, found[key]) for key in sorted(found))


def _cores(cpu: str) -> str:
    """Return physical cores of Modal as cores of Kubernetes, in thousandths."""
    return f"{int(quantities.parse(cpu) * Decimal(2000))}m"


def _gpu(written: str | None) -> tuple[str, int]:
    if not written:
        return "", 0
    name, _, count = written.partition(":")
    return name, int(count or "1")
