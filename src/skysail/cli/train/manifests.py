"""Manifests of `skysail train`: the TrainingJob, and the ConfigMap with its code. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from skysail.cli.train import code as code_module
from skysail.cli.train.code import Code
from skysail.kinds.training.api.training_job import TRAINING_JOB
from skysail.kinds.training.children.pod_template import CONTAINER

_MOUNT = "/skysail/code"
_VOLUME = "skysail-code"
_MAX_NAME = 50
# Copies the code to a folder that can be written, and runs the script there in place of this program.
_LAUNCHER = f"""import os, shutil, sys
folder = os.path.join(os.environ.get("TMPDIR", "/tmp"), "code")
links = shutil.ignore_patterns("..*")
shutil.copytree("{_MOUNT}", folder, ignore=links, dirs_exist_ok=True)
os.chdir(folder)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
_FRAMEWORKS = ("tensorflow", "xgboost", "jax")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Wishes of the user about a job."""

    name: str
    namespace: str
    image: str
    framework: str
    workers: int = 1
    gpus: int = 0
    retries: int = 0
    env: Mapping[str, str] = msgspec.field(default_factory=dict)
    args: tuple[str, ...] = ()
    checkpoint_dir: str = ""


def training_job(settings: Settings, code: Code) -> dict[str, Any]:
    _, _, items = code_module.config_map_data(code)
    container: dict[str, Any] = {
        "name": CONTAINER,
        "volumeMounts": [{"name": _VOLUME, "mountPath": _MOUNT, "readOnly": True}],
    }
    if settings.env:
        container["env"] = [{"name": name, "value": value} for name, value in settings.env.items()]
    volume = {"name": _VOLUME, "configMap": {"name": code_name(settings.name), "items": items}}
    spec: dict[str, Any] = {
        "framework": settings.framework,
        "image": settings.image,
        "command": ["python", "-c", _LAUNCHER, code.script],
        "args": list(settings.args),
        "workers": settings.workers,
        "podTemplate": {"spec": {"containers": [container], "volumes": [volume]}},
    }
    if settings.gpus:
        spec["gpuPerWorker"] = settings.gpus
    if settings.checkpoint_dir:
        spec["checkpointDir"] = settings.checkpoint_dir
    if settings.retries:
        spec["runPolicy"] = {"backoffLimit": settings.retries}
    else:
        spec["restartPolicy"] = "Never"
    resource = TRAINING_JOB.resource
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": settings.name, "namespace": settings.namespace},
        "spec": spec,
    }


def config_map(settings: Settings, code: Code) -> dict[str, Any]:
    return code_module.as_manifest(code_name(settings.name), settings.namespace, code)


def code_name(job: str) -> str:
    return f"{job}-code"


def job_name(script: str) -> str:
    """Return a valid name of an object for a script."""
    name = re.sub(r"[^a-z0-9]+", "-", script.removesuffix(".py").lower()).strip("-")[:_MAX_NAME].strip("-")
    return name if name and name[0].isalpha() else f"train-{name}".strip("-")


def guess_framework(packages: tuple[str, ...], text: str) -> str:
    """Return the framework by the packages or the imports. PyTorch's variables suit programs without a framework."""
    for framework in _FRAMEWORKS:
        is_package = any(re.match(rf"{framework}\b", package) for package in packages)
        if is_package or re.search(rf"(?m)^\s*(?:import|from)\s+{framework}\b", text):
            return framework
    return "pytorch"


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, so that people can read the code."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text and "\t" not in text else None
    ),
)


def as_yaml(*manifests: dict[str, Any]) -> str:
    return yaml.dump_all(manifests, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
