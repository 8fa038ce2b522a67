"""Web Apps: servers whose containers the cloud itself starts with requests and ends without them. Pure.

A launch asks for a web App by the option `modal-app`. A cloud that has no web Apps ignores the option and runs one
container.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from skysail.cloud.errors import Rejected

OPTION = "modal-app"
# Ids of instances that are web Apps begin with this.
INSTANCE_PREFIX = "web."
_NAME = r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?"
_NUMBER = r"(?:0|[1-9][0-9]{0,5})"
PATTERN = rf"{_NAME}(?:,(?:min|max|inputs|timeout|port)={_NUMBER}){{0,5}}"


class WebApp(msgspec.Struct, frozen=True, kw_only=True):
    """A web App of a namespace by its name.

    `min_containers` run without requests. `inputs`: concurrent requests of one container. `timeout`: maximum seconds
    of one request. `port` is that of the image's own server; 0 if the handler server answers.
    """

    name: str
    min_containers: int = 0
    max_containers: int = 1
    inputs: int = 1
    timeout: int = 300
    port: int = 0

    @property
    def text(self) -> str:
        """Return the value of the option."""
        numbers = {
            "min": self.min_containers,
            "max": self.max_containers,
            "inputs": self.inputs,
            "timeout": self.timeout,
            "port": self.port,
        }
        return ",".join((self.name, *(f"{key}={value}" for key, value in numbers.items())))


def is_instance(instance: str) -> bool:
    """Return whether the id of an instance is that of a web App, which goes on when another claim takes it over."""
    return instance.startswith(INSTANCE_PREFIX)


def parse(text: str) -> WebApp:
    """Return the web App of an option. Raises Rejected."""
    if not re.fullmatch(PATTERN, text):
        raise Rejected("InvalidApp", f"{text!r} describes no App: write a name and numbers, such as web,min=0,max=3.")
    name, *parts = text.split(",")
    given = {key: int(value) for key, _, value in (part.partition("=") for part in parts)}
    found = WebApp(
        name=name,
        min_containers=given.get("min", 0),
        max_containers=max(1, given.get("max", 1)),
        inputs=max(1, given.get("inputs", 1)),
        timeout=max(1, given.get("timeout", 300)),
        port=given.get("port", 0),
    )
    if found.min_containers > found.max_containers:
        raise Rejected("InvalidApp", f"{text!r} has a minimum above its maximum: lower min or raise max.")
    return found


def find(options: Iterable[tuple[str, str]]) -> WebApp | None:
    """Return the web App that the options ask for, or None. Raises Rejected."""
    text = dict(options).get(OPTION)
    return None if text is None else parse(text)


def container_count(options: Iterable[tuple[str, str]]) -> int:
    """Return the most containers that are billed at once. Raises Rejected."""
    app = find(options)
    return 1 if app is None else app.max_containers
