"""Credentials from a program that the kubeconfig names, as clusters of cloud vendors need it.

Speaks the protocol `client.authentication.k8s.io`, v1 and v1beta1. The program gets no input: a login that asks
questions must be done before.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from skysail.base.errors import UserError

_GROUP = "client.authentication.k8s.io"
_VERSIONS = (f"{_GROUP}/v1", f"{_GROUP}/v1beta1")
_SECONDS = 60.0
# Renew a little early: the API server's clock may be ahead.
_EARLY_SECONDS = 10.0
_MAX_ERROR_LENGTH = 500

LoadCertificate = Callable[[ssl.SSLContext, bytes, bytes], None]


class PluginError(UserError):
    """The plugin gave no credential. The message says why, and how to install or try the plugin."""


class Variable(msgspec.Struct, frozen=True):
    name: str
    value: str


class PluginConfig(msgspec.Struct, frozen=True, rename="camel"):
    """Field `exec` of a user in a kubeconfig."""

    command: str
    api_version: str = f"{_GROUP}/v1beta1"
    args: tuple[str, ...] | None = None
    env: tuple[Variable, ...] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = "IfAvailable"


class _Status(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _Credential(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    status: _Status | None = None


class ExecPlugin:
    """Runs the program when there is no credential, or when the last one has expired or was rejected.

    `cluster` is the information for the program, if the kubeconfig asks for it.
    """

    def __init__(
        self,
        config: PluginConfig,
        folder: Path,
        tls: ssl.SSLContext,
        load_certificate: LoadCertificate,
        *,
        cluster: Mapping[str, Any] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Check the configuration. Raises PluginError if this protocol version or mode is not supported."""
        if config.api_version not in _VERSIONS:
            raise PluginError(
                f"The kubeconfig's plugin {config.command} speaks {config.api_version}: update the kubeconfig, so that "
                f"it names {_VERSIONS[0]}."
            )
        if config.interactive_mode == "Always":
            raise PluginError(
                f"The kubeconfig's plugin {config.command} needs a terminal (interactiveMode Always). Log in first, "
                "and set interactiveMode to IfAvailable."
            )
        self._config = config
        self._folder = folder
        self._tls = tls
        self._load_certificate = load_certificate
        self._cluster = cluster
        self._now = now
        self._status: _Status | None = None
        self._lock: asyncio.Lock | None = None
        self.has_worked = False

    async def token(self) -> str:
        """Return a valid token, empty if the plugin gave a certificate. Raises PluginError."""
        self._lock = self._lock or asyncio.Lock()
        async with self._lock:
            if self._status is None or self._is_expired(self._status):
                self._status = await self._run()
                self.has_worked = True
            return self._status.token

    def reject(self, token: str) -> None:
        """Forget a credential that the API server has rejected. A newer one is kept."""
        if self._status is not None and self._status.token == token:
            self._status = None

    def _is_expired(self, status: _Status) -> bool:
        expiry = status.expiration_timestamp
        return expiry is not None and (expiry - self._now()).total_seconds() < _EARLY_SECONDS

    async def _run(self) -> _Status:
        config = self._config
        try:
            process = await asyncio.create_subprocess_exec(
                self._program(),
                *(config.args or ()),
                env=self._environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            hint = f" {config.install_hint.strip()}" if config.install_hint else ""
            raise PluginError(
                f"The kubeconfig's plugin {config.command} cannot be started: {reason}. Install it.{hint}"
            ) from error
        try:
            async with asyncio.timeout(_SECONDS):
                output, errors = await process.communicate()
        except TimeoutError as error:
            raise PluginError(
                f"The kubeconfig's plugin {config.command} did not answer within {_SECONDS:.0f} s. Run it at a "
                "terminal to see what it waits for."
            ) from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            message = " ".join(errors.decode(errors="replace").split())[-_MAX_ERROR_LENGTH:]
            raise PluginError(
                f"The kubeconfig's plugin {config.command} failed with exit code {process.returncode}: "
                f"{message or 'no message'}. Log in again with your cloud's own tool."
            )
        return self._parse(output)

    def _parse(self, output: bytes) -> _Status:
        try:
            credential = msgspec.json.decode(output, type=_Credential)
        except msgspec.DecodeError as error:
            raise self._unusable(f"its output is not an ExecCredential ({error})") from error
        status = credential.status
        if credential.kind != "ExecCredential" or credential.api_version != self._config.api_version:
            raise self._unusable(f"it answered {credential.kind} of {credential.api_version}")
        if status is None or not (status.token or status.client_certificate_data):
            raise self._unusable("its answer holds no token and no certificate")
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise self._unusable("its answer holds a certificate without key, or a key without certificate")
        if status.client_certificate_data:
            try:
                self._load_certificate(
                    self._tls, status.client_certificate_data.encode(), status.client_key_data.encode()
                )
            except (ssl.SSLError, ValueError) as error:
                raise self._unusable(f"its certificate cannot be read ({error})") from error
        return status

    def _unusable(self, reason: str) -> PluginError:
        return PluginError(
            f"The kubeconfig's plugin {self._config.command} gave no usable credential: {reason}. Update the plugin or "
            "the kubeconfig."
        )

    def _program(self) -> str:
        """Return the path of the program: a path is relative to the kubeconfig's folder, a plain name is searched."""
        command = self._config.command
        return str(self._folder / command) if "/" in command else command

    def _environment(self) -> dict[str, str]:
        spec: dict[str, Any] = {"interactive": False}
        if self._config.provide_cluster_info and self._cluster is not None:
            spec["cluster"] = self._cluster
        info = {"apiVersion": self._config.api_version, "kind": "ExecCredential", "spec": spec}
        own = {variable.name: variable.value for variable in self._config.env or ()}
        return {**os.environ, **own, "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}
