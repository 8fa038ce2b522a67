"""Image builds: each layer is a list of Dockerfile commands, built when it is asked for the first time.

The bottom layer names an image of a registry, which the provider must have. Commands that only change the image's
configuration are honoured. `RUN` and `COPY` of the SDK's own preparations are accepted, because the provider's images
have Python already; any other command fails the build.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import msgspec
from modal_proto import api_pb2

from skysail.cloud.errors import ProviderError, Rejected
from skysail.cloud.modal.stand_in import ids
from skysail.cloud.modal.stand_in.dispatch import Call, Handler
from skysail.cloud.modal.stand_in.errors import invalid, not_found
from skysail.cloud.modal.stand_in.secret_store import SecretStore
from skysail.cloud.modal.stand_in.stream_log import STDOUT, Line, StreamLog

BUILDER_VERSION = "2026.10"
_PREPARATION = re.compile(
    r"RUN (apt-get update|apt-get install -y gcc gfortran build-essential|(python -m )?pip install --upgrade \S.*|"
    r"echo 'debconf debconf/frontend select Noninteractive' \| debconf-set-selections|"
    r"ln -s /usr/local/bin/python3 /usr/local/bin/python)|COPY /python/\. /usr/local|COPY \S+ \S+",
)
_REGISTRY_KEYS = (
    frozenset({"REGISTRY_USERNAME", "REGISTRY_PASSWORD"}),
    frozenset({"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"}),
    frozenset({"AWS_ROLE_ARN", "AWS_REGION"}),
    frozenset({"SERVICE_ACCOUNT_JSON"}),
)
_STREAM_SECONDS = 55.0

Report = Callable[[str], None]


class RegistryLogin(msgspec.Struct, frozen=True):
    """User and password from the registry secret of an image. Empty for other kinds of credentials."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"RegistryLogin(username={self.username!r})"


# Makes sure that the provider has an image. Raises Rejected if it cannot, with the reason for the build log.
FindImage = Callable[[str, RegistryLogin | None, Report], Awaitable[None]]


class ImageConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of a built image. `entrypoint` is None if the image of the registry has its own."""

    tag: str
    entrypoint: tuple[str, ...] | None = None
    default_args: tuple[str, ...] | None = None
    env: tuple[tuple[str, str], ...] = ()
    workdir: str = ""


class _Build:
    def __init__(self, image_id: str, app_id: str, layer: api_pb2.Image) -> None:
        self.id = image_id
        self.app_id = app_id
        self.task_id = ids.task_id(1)
        self.started = time.time()
        self.finished = 0.0
        self.layer = layer
        self.log = StreamLog()
        self.result: api_pb2.GenericResult | None = None
        self.config: ImageConfig | None = None
        self.task: asyncio.Task[None] | None = None


class ImageStore:
    """Images by the content of their layer, as a build cache."""

    def __init__(self, find_image: FindImage, secrets: SecretStore) -> None:
        self._find_image = find_image
        self._secrets = secrets
        self._builds: dict[str, _Build] = {}
        self._by_layer: dict[bytes, str] = {}

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "ImageGetOrCreate": self._get_or_create,
            "ImageJoinStreaming": self._join,
            "ImageFromId": self._from_id,
            "ImageBuildChainGet": self._chain,
        }

    def config(self, image_id: str) -> ImageConfig:
        """Return the configuration of a built image. Raises NOT_FOUND or INVALID_ARGUMENT."""
        build = self._find(image_id)
        if build.config is None:
            raise invalid(f"Image {image_id} is not built.")
        return build.config

    async def close(self) -> None:
        tasks = [build.task for build in self._builds.values() if build.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _get_or_create(
        self, request: api_pb2.ImageGetOrCreateRequest, _: Call
    ) -> api_pb2.ImageGetOrCreateResponse:
        key = request.image.SerializeToString(deterministic=True)
        build = self._builds.get(self._by_layer.get(key, ""))
        failed = build is not None and build.result is not None and build.config is None
        if build is None or failed or request.force_build:
            build = _Build(ids.identifier("im"), request.app_id, request.image)
            self._builds[build.id] = build
            self._by_layer[key] = build.id
            build.task = asyncio.create_task(self._build(build))
        # Without a result the SDK follows the build by ImageJoinStreaming.
        return api_pb2.ImageGetOrCreateResponse(image_id=build.id, result=build.result, metadata=_metadata())

    async def _join(
        self, request: api_pb2.ImageJoinStreamingRequest, _: Call
    ) -> AsyncIterator[api_pb2.ImageJoinStreamingResponse]:
        build = self._find(request.image_id)
        sent = int(request.last_entry_id.partition("-")[0] or 0)
        deadline = time.monotonic() + (request.timeout or _STREAM_SECONDS)
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            if not await build.log.until_lines(sent, left):
                return
            lines = list(build.log.lines)[sent:]
            if not lines:
                break
            sent += len(lines)
            yield api_pb2.ImageJoinStreamingResponse(
                entry_id=f"{sent}-0", task_logs=[_task_log(line) for line in lines]
            )
        yield api_pb2.ImageJoinStreamingResponse(
            entry_id=f"{sent}-1", eof=True, result=build.result, metadata=_metadata()
        )

    async def _from_id(self, request: api_pb2.ImageFromIdRequest, _: Call) -> api_pb2.ImageFromIdResponse:
        self.config(request.image_id)
        return api_pb2.ImageFromIdResponse(image_id=request.image_id, metadata=_metadata())

    async def _chain(self, request: api_pb2.ImageBuildChainGetRequest, _: Call) -> api_pb2.ImageBuildChainGetResponse:
        """Return the builds of an image and of the layers below it, lowest first. Their logs are those of tasks."""
        chain = [self._find(request.image_id)]
        while below := [base.image_id for base in chain[-1].layer.base_images]:
            chain.append(self._find(below[0]))
        reply = api_pb2.ImageBuildChainGetResponse()
        for each in reversed(chain):
            step = reply.build_steps.add(image_id=each.id, builder_app_id=each.app_id, builder_task_id=each.task_id)
            step.started_at.FromNanoseconds(int(each.started * 1e9))
            step.finished_at.FromNanoseconds(int((each.finished or time.time()) * 1e9))
        return reply

    def build_lines(self) -> Iterator[tuple[str, str, Line]]:
        """Yield App, task and line of all build logs."""
        for build in self._builds.values():
            yield from ((build.app_id, build.task_id, line) for line in list(build.log.lines))

    async def _build(self, build: _Build) -> None:
        result = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS)
        try:
            build.config = await self._configured(build)
        except ProviderError as error:
            build.log.add_line(Line(time.time(), STDOUT, f"{error}\n"))
            result = api_pb2.GenericResult(
                status=api_pb2.GenericResult.GENERIC_STATUS_FAILURE, exitcode=1, exception=str(error)
            )
        build.result = result
        build.finished = time.time()
        build.log.end(time.time())

    async def _configured(self, build: _Build) -> ImageConfig:
        config = await self._base(build)
        for command in build.layer.dockerfile_commands[1:]:
            build.log.add_line(Line(time.time(), STDOUT, f"=> {command}\n"))
            config = _after(config, command)
        return config

    async def _base(self, build: _Build) -> ImageConfig:
        """Return the configuration below this layer, which is another build or an image of a registry."""
        layer = build.layer
        first = layer.dockerfile_commands[0] if layer.dockerfile_commands else ""
        word, _, tag = first.partition(" ")
        if word.upper() != "FROM":
            raise Rejected("InvalidDockerfile", "A Dockerfile must begin with FROM.")
        for base in layer.base_images:
            if base.docker_tag == tag:
                below = self._find(base.image_id)
                await below.log.until_end()
                if below.config is None:
                    raise Rejected("BuildFailed", f"The layer {base.image_id} below was not built.")
                return below.config
        login = self._login(layer)
        build.log.add_line(Line(time.time(), STDOUT, f"=> {first}\n"))
        await self._find_image(tag, login, lambda text: build.log.add_line(Line(time.time(), STDOUT, f"{text}\n")))
        return ImageConfig(tag=tag)

    def _login(self, layer: api_pb2.Image) -> RegistryLogin | None:
        config = layer.image_registry_config
        if not config.secret_id:
            return None
        values = self._secrets.values(config.secret_id)
        if not any(keys <= set(values) for keys in _REGISTRY_KEYS):
            raise Rejected("InvalidRegistrySecret", "The registry secret has no set of keys that the service knows.")
        return RegistryLogin(values.get("REGISTRY_USERNAME", ""), values.get("REGISTRY_PASSWORD", ""))

    def _find(self, image_id: str) -> _Build:
        build = self._builds.get(image_id)
        if build is None:
            raise not_found(f"Image {image_id}")
        return build


def _after(config: ImageConfig, command: str) -> ImageConfig:
    """Return the configuration after one Dockerfile command."""
    word, _, rest = command.partition(" ")
    match word.upper():
        case "ENTRYPOINT":
            # As in Docker, a new entry point drops the default arguments of the image below.
            return msgspec.structs.replace(config, entrypoint=_argv(rest), default_args=())
        case "CMD":
            return msgspec.structs.replace(config, default_args=_argv(rest))
        case "WORKDIR":
            return msgspec.structs.replace(config, workdir=rest.strip())
        case "ENV":
            return msgspec.structs.replace(config, env=(*config.env, *_variables(rest)))
        case _ if _PREPARATION.fullmatch(command):
            return config
    raise Rejected("UnsupportedCommand", f"The stand-in cannot run the Dockerfile command `{command}`.")


def _argv(text: str) -> tuple[str, ...]:
    try:
        return msgspec.json.decode(text, type=tuple[str, ...])
    except msgspec.MsgspecError as error:
        raise Rejected("UnsupportedCommand", f"{text} is not a JSON list of strings.") from error


def _variables(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [word.partition("=") for word in shlex.split(text)]
    return tuple((name, value) for name, _, value in pairs)


def _task_log(line: Line) -> api_pb2.TaskLogs:
    return api_pb2.TaskLogs(data=line.text, timestamp=line.at, file_descriptor=api_pb2.FILE_DESCRIPTOR_STDOUT)


def _metadata() -> api_pb2.ImageMetadata:
    return api_pb2.ImageMetadata(image_builder_version=BUILDER_VERSION)
