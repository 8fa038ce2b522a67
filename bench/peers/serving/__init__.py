"""Model servers beside ours: each in an environment of its own, with its own batching where it has one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.serving_models import FEATURES, INSTANCES, PROTOCOL
from skysail.local.control_plane.build import cache_folder

NAIVE = "naive FastAPI"
TORCH, ONNX, ONNX_V2 = "fastapi-pytorch", "fastapi-onnx", "fastapi-onnx, v2"

_HERE = Path(__file__).parent
_SOURCE = Path(__file__).parents[3] / "src"
_TORCH = "torch==2.15.0"
_OWN_PEER = ("fastapi", "httptools", "msgspec", "numpy", "onnxruntime", "orjson", "uvicorn", "uvloop")
_MAX_REASON_LENGTH = 200


class NotToBeHad(Exception):
    """This server cannot be installed here; the message is the installer's."""


class Place(msgspec.Struct, frozen=True):
    """Where one runs: the bin folder of its environment, its model, its port, and a folder for what it needs."""

    programs: Path
    model: Path
    port: int
    scratch: Path

    @property
    def python(self) -> str:
        return str(self.programs / "python")

    @property
    def env(self) -> dict[str, str]:
        path = f"{self.programs}:{os.environ['PATH']}"
        return {**os.environ, "MODEL_FOLDER": str(self.model), "PORT": str(self.port), "PATH": path}


class Start(msgspec.Struct, frozen=True):
    argv: list[str]
    env: dict[str, str]


class Contestant(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    packages: tuple[str, ...]
    start: Callable[[Place], Start]
    ready: str
    path: str = "/predict"
    form: str = FEATURES


def environment(contestant: Contestant) -> Path:
    """Its bin folder; made the first time. Raises NotToBeHad."""
    name = "-".join(sorted(contestant.packages)).replace("==", "-")
    folder = cache_folder(os.environ) / "peers" / "serving" / name
    if not (folder / "made").exists():
        shutil.rmtree(folder, ignore_errors=True)
        uv = str(Path(sys.executable).with_name("uv"))
        for argv in (
            [uv, "venv", "-q", "--python", sys.executable, str(folder)],
            [uv, "pip", "install", "-q", "--python", str(folder / "bin" / "python"), *contestant.packages],
        ):
            made = subprocess.run(argv, stderr=subprocess.PIPE, text=True, check=False)
            if made.returncode:
                raise NotToBeHad(" ".join(made.stderr.split())[:_MAX_REASON_LENGTH])
        (folder / "made").touch()
    return folder / "bin"


def _script(name: str) -> Callable[[Place], Start]:
    return lambda place: Start([place.python, str(_HERE / name)], place.env)


def _ours(file: str) -> Callable[[Place], Start]:
    def start(place: Place) -> Start:
        told = {"MODEL_PATH": str(place.model / file), "MODEL_NAME": "net", "HOST": "127.0.0.1", "DRAIN_SECONDS": "0"}
        argv = [place.python, "-m", "skysail.runtimes.model_server"]
        return Start(argv, {**place.env, **told, "PYTHONPATH": str(_SOURCE)})

    return start


def _bentoml(place: Place) -> Start:
    argv = [str(place.programs / "bentoml"), "serve", "with_bentoml:Network", "--port", str(place.port)]
    return Start([*argv, "--working-dir", str(_HERE)], {**place.env, "BENTOML_DO_NOT_TRACK": "true"})


def _mlserver(place: Place) -> Start:
    ports = {"http_port": place.port, "grpc_port": place.port + 1, "metrics_port": place.port + 2}
    # In one process: its workers do not start with this uvloop, and cost more where there is one core.
    settings = {"host": "127.0.0.1", **ports, "debug": False, "parallel_workers": 0}
    model = {"name": "net", "implementation": "with_mlserver.Network", "max_batch_size": 16, "max_batch_time": 0.002}
    (place.scratch / "settings.json").write_bytes(msgspec.json.encode(settings))
    (place.scratch / "model-settings.json").write_bytes(msgspec.json.encode(model))
    argv = [str(place.programs / "mlserver"), "start", str(place.scratch)]
    return Start(argv, {**place.env, "PYTHONPATH": str(_HERE)})


def _torchserve(place: Place) -> Start:
    files = ["--serialized-file", str(place.model / "model.pt"), "--handler", str(_HERE / "with_torchserve.py")]
    pack = ["--model-name", "net", "--version", "1", *files, "--export-path", str(place.scratch)]
    subprocess.run([str(place.programs / "torch-model-archiver"), *pack], env=place.env, check=True)
    batches = {"minWorkers": 1, "maxWorkers": 1, "batchSize": 16, "maxBatchDelay": 2}
    model = {"net": {"1": {"defaultVersion": True, "marName": "net.mar", **batches}}}
    names = ("inference_address", "management_address", "metrics_address")
    lines = [f"{name}=http://127.0.0.1:{place.port + offset}" for offset, name in enumerate(names)]
    lines += [f"models={msgspec.json.encode(model).decode()}", "load_models=net.mar", f"model_store={place.scratch}"]
    config = place.scratch / "config.properties"
    config.write_text("\n".join(lines))
    argv = [str(place.programs / "torchserve"), "--start", "--foreground", "--ncs", "--disable-token-auth"]
    told = {"LOG_LOCATION": str(place.scratch), "METRICS_LOCATION": str(place.scratch)}
    return Start([*argv, "--ts-config", str(config)], {**place.env, **told})


_READY = "/v2/health/ready"
CONTESTANTS = (
    Contestant(
        name=NAIVE,
        packages=(_TORCH, "numpy", "fastapi", "uvicorn", "uvloop", "httptools"),
        start=_script("naive.py"),
        ready="/ready",
    ),
    Contestant(name=TORCH, packages=(_TORCH, "safetensors", *_OWN_PEER), start=_ours("model.pt"), ready=_READY),
    Contestant(name=ONNX, packages=_OWN_PEER, start=_ours("model.onnx"), ready=_READY),
    Contestant(
        name=ONNX_V2,
        packages=_OWN_PEER,
        start=_ours("model.onnx"),
        ready=_READY,
        path="/v2/models/net/infer",
        form=PROTOCOL,
    ),
    Contestant(
        name="LitServe", packages=(_TORCH, "litserve==0.2.19"), start=_script("with_litserve.py"), ready="/health"
    ),
    Contestant(
        name="KServe",
        packages=(_TORCH, "kserve==0.21.0"),
        start=_script("with_kserve.py"),
        ready=_READY,
        path="/v1/models/net:predict",
        form=INSTANCES,
    ),
    Contestant(name="BentoML", packages=(_TORCH, "numpy", "bentoml==1.4.39"), start=_bentoml, ready="/readyz"),
    Contestant(
        name="MLServer",
        packages=(_TORCH, "numpy", "mlserver==1.7.1"),
        start=_mlserver,
        ready="/v2/models/net/ready",
        path="/v2/models/net/infer",
        form=PROTOCOL,
    ),
    Contestant(
        name="TorchServe",
        packages=(
            _TORCH,
            "numpy",
            "torchserve==0.12.0",
            "torch-model-archiver==0.12.0",
            "captum",
            "pyyaml",
            "packaging",
        ),
        start=_torchserve,
        ready="/ping",
        path="/predictions/net",
    ),
)
