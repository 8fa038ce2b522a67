"""Container that downloads a model, lays it out for its server and reports its digest. Pure.

Only this container gets the credentials. So it has no privileges, no service account, and writes only to its volumes.
A pod at a cloud has one container. There the server's own container downloads the model, and then becomes the server.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from skysail.core.actions import Manifest
from skysail.kinds.serving.spec import model_uri
from skysail.kinds.serving.spec.config import ServingConfig
from skysail.kinds.serving.spec.desired import DesiredModel, RevisionSpec
from skysail.kinds.serving.spec.revisions import Revision
from skysail.kinds.serving.spec.runtimes import MODELS, RUNTIMES
from skysail.kube.api.env_escape import literal
from skysail.runtimes.fetch.network import credentials

NAME = "fetch"
USER = 65532
# For validation: the folder with the launcher program and the downloaded script.
LAUNCHER_PATH = "/mnt/launcher"

# Layouts of our own servers, which reject models that these cannot load.
_OWN_FORMATS = ("file", "onnx")
_MODELS = "models"
# In images of ours, which keep the programs for pods there, and in others that have Skysail among their packages.
_PROGRAM = ("env", "PYTHONPATH=/opt/skysail", "python", "-m", "skysail.runtimes.fetch")
_STORE = "/mnt/store"
_SOURCE = "/mnt/source"
_LAUNCHER_VOLUME = "launcher"
_SCRATCH = "scratch"
# These hold little: the model has its own volume, and a script has at most 10 MiB.
_SCRATCH_SIZE = "256Mi"
_LAUNCHER_SIZE = "32Mi"


def container(
    desired: DesiredModel,
    revision: Revision,
    config: ServingConfig,
    *,
    keep: Iterable[str] = (),
    validates: bool = False,
) -> Manifest:
    """Return the fetch container. `keep` lists revisions whose folders stay; `validates` adds the launcher."""
    spec = revision.want
    mounts: list[Manifest] = [{"name": _SCRATCH, "mountPath": "/tmp"}]  # noqa: S108 (a volume of its own)
    if not model_uri.image_path(spec.uri):
        mounts.append({"name": _MODELS, "mountPath": _STORE})
    if model_uri.pvc_name(spec.uri):
        mounts.append({"name": "source", "mountPath": _SOURCE, "readOnly": True})
    if validates:
        mounts.append({"name": _LAUNCHER_VOLUME, "mountPath": LAUNCHER_PATH})
    found: Manifest = {
        "name": NAME,
        "image": config.fetch_image,
        "imagePullPolicy": "IfNotPresent",
        "args": _arguments(desired, revision, config, keep=keep, validates=validates),
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 (as above)
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "2", "memory": "1Gi"}},
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    return found | _credentials(spec)


def before_server(desired: DesiredModel, revision: Revision, config: ServingConfig) -> Manifest:
    """Return command, mount and credentials with which the container of a server downloads the model first.

    Its arguments are the words of the server.
    """
    found: Manifest = {
        "command": [*_PROGRAM, *_words(desired, revision, config, MODELS), *_allowed(config), "--"],
        "volumeMounts": [{"name": _MODELS, "mountPath": posixpath.dirname(MODELS)}],
    }
    return found | _credentials(revision.want)


def volumes(spec: RevisionSpec, *, validates: bool = False) -> list[Manifest]:
    """Return the volumes of the container, except the model's own."""
    found: list[Manifest] = [{"name": _SCRATCH, "emptyDir": {"sizeLimit": _SCRATCH_SIZE}}]
    if claim := model_uri.pvc_name(spec.uri):
        found.append({"name": "source", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
    if validates:
        found.append({"name": _LAUNCHER_VOLUME, "emptyDir": {"sizeLimit": _LAUNCHER_SIZE}})
    return found


def model_volume(desired: DesiredModel, *, at_cloud: bool = False) -> Manifest:
    """Return the model's own volume: the PVC, or an emptyDir. A cloud has no access to the PVC."""
    if desired.storage is None or at_cloud:
        return {"name": _MODELS, "emptyDir": {}}
    return {"name": _MODELS, "persistentVolumeClaim": {"claimName": desired.names.claim}}


def model_mount(revision: Revision) -> Manifest:
    """Return the read-only mount of one revision's folder, for the server and the validation."""
    return {"name": _MODELS, "mountPath": MODELS, "subPath": revision.hash, "readOnly": True}


def launcher_mount() -> Manifest:
    return {"name": _LAUNCHER_VOLUME, "mountPath": LAUNCHER_PATH, "readOnly": True}


def _arguments(
    desired: DesiredModel, revision: Revision, config: ServingConfig, *, keep: Iterable[str], validates: bool
) -> list[str]:
    spec = revision.want
    found: list[str] = []
    if model_uri.pvc_name(spec.uri):
        found += ["--source", _SOURCE]
    if validates:
        found += ["--launcher", LAUNCHER_PATH]
    if validates and model_uri.is_downloaded_script(spec.script):
        found += ["--script", spec.script, "--script-into", f"{LAUNCHER_PATH}/script"]
    if desired.storage is None:
        found.append("--on-node")
    kept = [word for hash_ in keep for word in ("--keep", hash_)]
    words = _words(desired, revision, config, f"{_STORE}/{revision.hash}")
    return [*words, *(literal(word) for word in found), *_allowed(config), *kept]


def _words(desired: DesiredModel, revision: Revision, config: ServingConfig, into: str) -> list[str]:
    """Return the arguments that every download of a revision has."""
    spec = revision.want
    found = ["--uri", spec.uri, "--into", into]
    found += ["--layout", _layout(spec, config), "--name", desired.names.model, "--limit", str(config.limit_bytes)]
    # Serve the content that was validated: other content at the same address is rejected.
    if sha256 := revision.digest.removeprefix("sha256:") or spec.sha256:
        found += ["--sha256", sha256]
    return [literal(word) for word in found]


def _allowed(config: ServingConfig) -> list[str]:
    return [literal(word) for place in config.allowed for word in ("--allow", place)]


def _credentials(spec: RevisionSpec) -> Manifest:
    if not spec.credentials:
        return {}
    return {"envFrom": [{"prefix": credentials.PREFIX, "secretRef": {"name": spec.credentials}}]}


def _layout(spec: RevisionSpec, config: ServingConfig) -> str:
    """Return the layout. Only for our own server is it known which formats load; a custom image may load others."""
    known = config.matching_runtime(spec.image, spec.runtime)
    layout = RUNTIMES[known or spec.runtime].layout
    return "folder" if layout in _OWN_FORMATS and not known else layout
