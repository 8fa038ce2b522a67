"""Address and credentials of an API server, from a kubeconfig file or from inside a pod."""

from __future__ import annotations

import base64
import binascii
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from skysail.base.errors import UserError
from skysail.kube.client.exec_plugin import ExecPlugin, PluginConfig

_POD_SECRETS = Path("/var/run/secrets/kubernetes.io/serviceaccount")

Row = TypeVar("Row")
TokenSource = Callable[[], str | None]


class ConfigError(UserError):
    """Unusable configuration. The message names the part and the fix."""


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Address and credentials for a transport. `token` is called for each request, because tokens rotate."""

    server: str
    tls: ssl.SSLContext
    token: TokenSource
    plugin: ExecPlugin | None = None  # gives tokens in place of `token`


class _Extension(msgspec.Struct):
    """Extra data of a cluster. The one with this name is meant for plugins."""

    name: str
    extension: Any = None


class _Cluster(msgspec.Struct, rename="kebab"):
    server: str = ""
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False
    proxy_url: str | None = None
    tls_server_name: str | None = None
    extensions: list[_Extension] | None = None


class _User(msgspec.Struct, rename="kebab"):
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    username: str | None = None
    exec: PluginConfig | None = None
    auth_provider: dict[str, object] | None = None


class _Context(msgspec.Struct):
    cluster: str
    user: str


class _NamedCluster(msgspec.Struct):
    name: str
    cluster: _Cluster


class _NamedUser(msgspec.Struct):
    name: str
    user: _User | None = None


class _NamedContext(msgspec.Struct):
    name: str
    context: _Context


class _Config(msgspec.Struct, rename="kebab"):
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None
    current_context: str = ""


def find(path: Path | None = None, context: str | None = None) -> Access:
    """Use the given file, else the first in KUBECONFIG, else the pod's service account, else `~/.kube/config`."""
    if path is not None:
        return from_file(path, context)
    if named := os.environ.get("KUBECONFIG"):
        return from_file(Path(named.split(os.pathsep)[0]), context)
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return from_pod(os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443"))
    return from_file(Path.home() / ".kube" / "config", context)


def from_file(path: Path, context: str | None = None) -> Access:
    try:
        config = msgspec.yaml.decode(path.read_bytes(), type=_Config)
    except OSError as error:
        raise ConfigError(
            f"Cannot read the kubeconfig {path}: {error.strerror}. Set another with --kubeconfig, or start a local "
            "cluster with `skysail up`."
        ) from error
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} is not a kubeconfig: {error}.") from error
    chosen = _named(path, "context", context or config.current_context, config.contexts, lambda row: row.name).context
    cluster = _named(path, "cluster", chosen.cluster, config.clusters, lambda row: row.name).cluster
    user = _named(path, "user", chosen.user, config.users, lambda row: row.name).user or _User()
    _refuse_unsupported(path, cluster, user)
    tls = _tls(path, cluster, user)
    return Access(
        server=cluster.server.rstrip("/"),
        tls=tls,
        token=_token_source(path, user),
        plugin=_plugin(path, cluster, user, tls),
    )


def from_pod(host: str, port: str, secrets: Path = _POD_SECRETS) -> Access:
    """Use the service account that Kubernetes mounts into the pod. Its token file is reread when it changes."""
    try:
        tls = ssl.create_default_context(cafile=str(secrets / "ca.crt"))
    except OSError as error:
        raise ConfigError(
            f"This pod has no usable service account at {secrets}: {error.strerror}. Set "
            "`automountServiceAccountToken: true`, or set a kubeconfig with --kubeconfig."
        ) from error
    address = f"[{host}]" if ":" in host else host
    return Access(server=f"https://{address}:{port}", tls=tls, token=TokenFile(secrets / "token"))


class TokenFile:
    """Token from a file that is rotated externally. Reread only when the file has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._token = ""

    def __call__(self) -> str:
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_ino)
            if stamp != self._stamp:
                self._token = self._path.read_text().strip()
                self._stamp = stamp
        except OSError as error:
            # Keep the old token if a rotation is incomplete: it stays valid for minutes.
            if not self._token:
                raise ConfigError(f"Cannot read the token file {self._path}: {error.strerror}.") from error
        return self._token


def _named(path: Path, what: str, name: str, rows: list[Row] | None, name_of: Callable[[Row], str]) -> Row:
    for row in rows or ():
        if name_of(row) == name:
            return row
    known = ", ".join(sorted(name_of(row) for row in rows or ())) or "none"
    raise ConfigError(f"The kubeconfig {path} has no {what} {name!r}. Choose one of: {known}.")


def _refuse_unsupported(path: Path, cluster: _Cluster, user: _User) -> None:
    if not cluster.server.startswith("https://"):
        raise ConfigError(f"{path} has the server {cluster.server!r}: use an https URL.")
    if cluster.insecure_skip_tls_verify:
        raise ConfigError(
            f"{path} sets insecure-skip-tls-verify, which Skysail does not support. Put the cluster's CA into "
            "certificate-authority-data instead."
        )
    if cluster.proxy_url or cluster.tls_server_name:
        raise ConfigError(f"{path} sets proxy-url or tls-server-name, which Skysail does not support: remove them.")
    if user.auth_provider or user.username:
        raise ConfigError(
            f"{path} uses an auth-provider or a password, which Skysail does not support. Create a token with `kubectl "
            "create token skysail -n skysail-system`, and put it into `users[].user.token`."
        )


def _token_source(path: Path, user: _User) -> TokenSource:
    if user.token_file:
        return TokenFile(path.parent / user.token_file)
    token = user.token
    return lambda: token


def _plugin(path: Path, cluster: _Cluster, user: _User, tls: ssl.SSLContext) -> ExecPlugin | None:
    """Return the user's plugin. A token or a certificate in the file comes first, as for kubectl."""
    if user.exec is None or user.token or user.token_file:
        return None
    info: dict[str, Any] = {"server": cluster.server}
    if authority := _material(path, cluster.certificate_authority_data, cluster.certificate_authority):
        info["certificate-authority-data"] = base64.b64encode(authority).decode()
    for extension in cluster.extensions or ():
        if extension.name == "client.authentication.k8s.io/exec":
            info["config"] = extension.extension
    return ExecPlugin(user.exec, path.parent, tls, load_certificate, cluster=info)


def _tls(path: Path, cluster: _Cluster, user: _User) -> ssl.SSLContext:
    authority = _material(path, cluster.certificate_authority_data, cluster.certificate_authority)
    certificate = _material(path, user.client_certificate_data, user.client_certificate)
    key = _material(path, user.client_key_data, user.client_key)
    try:
        tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
        if certificate and key:
            load_certificate(tls, certificate, key)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{path} contains a certificate or key that cannot be read: {error}.") from error
    return tls


def load_certificate(tls: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a certificate from memory: OpenSSL reads files only, and the key must not be written to a disk."""
    file = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(file, certificate.rstrip() + b"\n" + key)
        tls.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)


def _material(path: Path, data: str | None, file: str | None) -> bytes | None:
    try:
        if data:
            return base64.b64decode(data, validate=True)
        return (path.parent / file).read_bytes() if file else None
    except binascii.Error as error:
        raise ConfigError(f"{path} contains data that is not base64: {error}.") from error
    except OSError as error:
        raise ConfigError(f"{path} refers to {file}, which cannot be read: {error.strerror}.") from error
