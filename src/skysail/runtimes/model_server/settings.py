"""What the server can be told, all of it by environment variables: the upper-case names of these fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from skysail.runtimes.model_server.errors import WrongSetting

Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
# Whatever the user calls it; but not bytes that are no text, which Python reads as halves of characters.
Version = Annotated[str, Meta(pattern=r"^[^\ud800-\udfff]*$")]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """An empty variable is one that is not set."""

    model_path: Annotated[str, Meta(description="A model's file, or a folder with one in it.")] = "/mnt/models"
    model_name: Annotated[Name, Meta(description="The model's name in paths of the protocol.")] = "model"
    model_version: Annotated[
        Version, Meta(description="Its version in those paths, percent-encoded there; without it they have none.")
    ] = ""
    host: Annotated[str, Meta(description="The address to listen at.")] = "0.0.0.0"
    port: Annotated[int, Meta(ge=0, le=65535, description="The port; 0 takes any that is free.")] = 8000
    max_body_bytes: Annotated[Count, Meta(description="A longer body is refused before it is read.")] = 16 * 2**20
    receive_bytes: Annotated[
        Count,
        Meta(description="Bytes of requests that are not whole yet, of all connections; more is refused with 503."),
    ] = 256 * 2**20
    receive_seconds: Annotated[
        Seconds, Meta(description="How long a request may take to come in, from its first byte; else 408.")
    ] = 60.0
    max_rows: Annotated[Count, Meta(description="Rows that one request may have.")] = 4096
    batch_rows: Annotated[Count, Meta(description="Rows that the model is given at once, from several requests.")] = 512
    queue_rows: Annotated[Count, Meta(description="Rows that may wait; what comes on top is refused with 503.")] = 2048
    batch_bytes: Annotated[Count, Meta(description="Bytes of these rows at most, as the model takes them.")] = (
        64 * 2**20
    )
    batch_seconds: Annotated[
        Seconds, Meta(description="How long they may take, by the last batch; fewer go together where it was slow.")
    ] = 1.0
    queue_bytes: Annotated[Count, Meta(description="Bytes of the rows that wait.")] = 256 * 2**20
    queue_seconds: Annotated[
        Seconds, Meta(description="How long a request may have to wait, by the last batch; else it is refused.")
    ] = 5.0
    batching: Annotated[bool, Meta(description="Whether requests are joined, where the model allows it.")] = True
    threads: Annotated[
        int, Meta(ge=0, description="Threads of one inference; 0: as many as the container has processors.")
    ] = 0
    device: Annotated[
        Literal["auto", "cpu", "cuda"], Meta(description="Where PyTorch computes; auto: on a GPU if there is one.")
    ] = "auto"
    allow_code: Annotated[
        bool, Meta(description="Whether code that comes with the model may run: `model.py`, and any `.pt2`.")
    ] = False
    allow_untried: Annotated[
        bool, Meta(description="Whether a model is served although it failed with all that it was tried with.")
    ] = False
    hung_seconds: Annotated[
        float, Meta(ge=0, description="After so long with one batch the server is not ready; 0: it always is.")
    ] = 60.0
    dead_seconds: Annotated[
        float, Meta(ge=0, description="After so long with one batch it is not live, and is begun anew; 0: never.")
    ] = 300.0
    drain_seconds: Annotated[
        float, Meta(ge=0, description="How long requests are still taken after SIGTERM, while the cluster looks away.")
    ] = 5.0

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Settings:
        """Raises WrongSetting, which names the variable."""
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
        raise WrongSetting(f"{field.name.upper()}={text} cannot be: {error}.") from error
