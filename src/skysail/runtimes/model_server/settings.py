"""Settings of the server: environment variables with the upper-case names of these fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from skysail.runtimes.model_server.errors import InvalidSetting

Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
# Any text, except invalid UTF-8, which Python reads as surrogates.
Version = Annotated[str, Meta(pattern=r"^[^\ud800-\udfff]*$")]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the server. An empty variable counts as not set."""

    model_path: Annotated[str, Meta(description="Model file, or folder with one model.")] = "/mnt/models"
    model_name: Annotated[Name, Meta(description="Model name in paths of the protocol.")] = "model"
    model_version: Annotated[
        Version,
        Meta(description="Model version in these paths, percent-encoded. If empty, the paths have no version."),
    ] = ""
    host: Annotated[str, Meta(description="Address to listen on.")] = "0.0.0.0"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on; 0 picks a free one.")] = 8000
    max_body_bytes: Annotated[Count, Meta(description="Maximum body size; checked before the body is read.")] = (
        16 * 2**20
    )
    receive_bytes: Annotated[
        Count,
        Meta(description="Maximum size of all incomplete requests, over all connections; else 503."),
    ] = 256 * 2**20
    receive_seconds: Annotated[
        Seconds, Meta(description="Maximum time to receive a request, from its first byte; else 408.")
    ] = 60.0
    max_rows: Annotated[Count, Meta(description="Maximum rows of one request.")] = 4096
    batch_rows: Annotated[Count, Meta(description="Maximum rows of one batch, over several requests.")] = 512
    queue_rows: Annotated[Count, Meta(description="Maximum rows in the queue; else 503.")] = 2048
    batch_bytes: Annotated[Count, Meta(description="Maximum bytes of one batch, as the model takes them.")] = 64 * 2**20
    batch_seconds: Annotated[
        Seconds,
        Meta(description="Target time of one batch, estimated from the last batch; slow models get smaller batches."),
    ] = 1.0
    queue_bytes: Annotated[Count, Meta(description="Maximum bytes in the queue.")] = 256 * 2**20
    queue_seconds: Annotated[
        Seconds, Meta(description="Maximum wait of a request, estimated from the last batch; else 503.")
    ] = 5.0
    batching: Annotated[bool, Meta(description="Join requests, if the model allows it.")] = True
    threads: Annotated[
        int, Meta(ge=0, description="Threads of one inference; 0: the number of CPUs of the container.")
    ] = 0
    device: Annotated[
        Literal["auto", "cpu", "cuda"], Meta(description="Device for PyTorch; auto: a GPU if there is one.")
    ] = "auto"
    allow_code: Annotated[bool, Meta(description="Run code that comes with the model: `model.py`, and any `.pt2`.")] = (
        False
    )
    allow_untried: Annotated[bool, Meta(description="Serve a model that failed with every tried input.")] = False
    stuck_unready_seconds: Annotated[
        float, Meta(ge=0, description="Time with one batch until the server is not ready; 0: never.")
    ] = 60.0
    stuck_restart_seconds: Annotated[
        float, Meta(ge=0, description="Time with one batch until the server is not live and is restarted; 0: never.")
    ] = 300.0
    drain_seconds: Annotated[
        float, Meta(ge=0, description="Time after SIGTERM in which requests are still accepted.")
    ] = 5.0

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Settings:
        """Read the settings from the environment. Raises InvalidSetting, which names the variable."""
        found = {
            field.name: _read(field, environment[field.name.upper()])
            for field in msgspec.structs.fields(cls)
            if environment.get(field.name.upper())
        }
        return msgspec.convert(found, cls)


def _read(field: msgspec.structs.FieldInfo, text: str) -> object:
    try:
        return msgspec.convert(text, field.type, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidSetting(f"{field.name.upper()}={text} is invalid: {error}.") from error
