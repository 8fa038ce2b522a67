"""`make bench`: measures, prints tables with ratios, and keeps the figures under bench/results."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec

from bench import admission, bridge, clouds, cost, modal_pods, models, plane, pods, serving, table, training
from bench.admission import AdmissionFigures
from bench.bridge import BridgeFigures
from bench.clients.measure import Figures
from bench.clouds import CloudFigures
from bench.modal_pods import ModalFigures
from bench.models import ModelFigures
from bench.plane import PlaneFigures
from bench.pods import PodFigures
from bench.serving import ServingFigures
from bench.size import Size
from bench.training import TrainingFigures

_RESULTS = Path(__file__).parent / "results"
_PARTS = ("cost", "plane", "pods", "clouds", "modal", "admission", "training", "models", "serving", "bridge")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where the figures come from. They compare only with figures from the same place."""

    processor: str
    cores: int
    python: str
    kopf: str
    load: float

    @property
    def line(self) -> str:
        busy = f", load {self.load:.1f} at the start" if self.load > 1 else ""
        return f"{self.cores} cores of {self.processor}{busy}, Python {self.python}, Kopf {self.kopf}"


class Results(msgspec.Struct, kw_only=True):
    at: str
    machine: Machine
    size: Size
    cost: dict[str, Figures] = {}
    plane: PlaneFigures | None = None
    pods: PodFigures | None = None
    clouds: CloudFigures | None = None
    modal: ModalFigures | None = None
    admission: AdmissionFigures | None = None
    training: TrainingFigures | None = None
    models: ModelFigures | None = None
    serving: ServingFigures | None = None
    bridge: BridgeFigures | None = None


def main() -> None:
    arguments = _arguments()
    # The control plane must not outlive this program: an exception runs the code that stops it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # A user's Python keeps its bytecode; without it, every process would be measured while it compiles.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    size = Size.scaled(arguments.scale)
    began = time.monotonic()
    results = Results(at=datetime.now(UTC).isoformat(timespec="seconds"), machine=_machine(), size=size)
    if arguments.only in (None, "cost"):
        results.cost = cost.run(size, _say)
    if arguments.only in (None, "plane"):
        results.plane = plane.run(size.plane_jobs, _say)
    if arguments.only in (None, "pods"):
        results.pods = pods.run(size.starts, size.pods_at_once, size.megabytes, _say)
    _run_clouds(size, arguments.only, results)
    if arguments.only in (None, "admission"):
        results.admission = admission.run(size.reviews, _say)
    if arguments.only in (None, "training"):
        results.training = training.run(size.training_jobs, size.training_starts, size.training_held, _say)
    if arguments.only in (None, "models"):
        results.models = models.run(size.models, _say)
    if arguments.only in (None, "serving"):
        results.serving = serving.run(size.serving_rounds, size.serving_seconds, _say)
    if arguments.only in (None, "bridge"):
        results.bridge = bridge.run(size.serving_rounds, size.serving_seconds, _say)
    print(f"\n{report(results)}\n\nTook {time.monotonic() - began:.0f} s. Kept in {_keep(results)}.")


def _run_clouds(size: Size, only: str | None, results: Results) -> None:
    if only in (None, "clouds"):
        results.clouds = clouds.run(size.cloud_starts, size.cloud_pods, size.claims, _say)
    if only in (None, "modal"):
        results.modal = modal_pods.run(size.cloud_starts, size.cloud_pods, size.sandboxes, _say)


def report(results: Results) -> str:
    parts = [f"{results.at}, {results.machine.line}.\nIn brackets: as a multiple of the first column."]
    if results.cost:
        title = "Cost of the client, against a replay server"
        parts += [table.render(title, list(results.cost), cost.rows(results.size, results.cost))]
        parts += ["\n".join(cost.remarks(results.cost))]
    if results.plane:
        title = "End to end, on a real control plane"
        parts += [table.render(title, list(results.plane.rounds), plane.rows(results.plane))]
        parts += ["\n".join(plane.remarks(results.plane))]
    if results.pods:
        title = "Pods on node `local`, beside the same without Kubernetes (MB/s and requests/s: more is better)"
        parts += [table.render(title, pods.COLUMNS, pods.rows(results.pods))]
        parts += ["\n".join(pods.remarks(results.pods))]
    parts += _cloud_parts(results)
    if results.admission:
        title = "Admission reviews of pods, beside a webhook that allows everything"
        parts += [table.render(title, admission.COLUMNS, admission.rows(results.admission))]
        parts += ["\n".join(admission.remarks(results.admission))]
    if results.training:
        title = "Training jobs of two pods, on nodes that only pretend"
        parts += [table.render(title, training.columns(results.training), training.rows(results.training))]
        parts += ["\n".join(training.remarks(results.training))]
    if results.models:
        title = "Models on nodes that only pretend, beside their Deployments and Services alone"
        parts += [table.render(title, models.columns(results.models), models.rows(results.models))]
        parts += ["\n".join(models.remarks(results.models))]
    if results.serving:
        parts += [table.render(*each) for each in serving.tables(results.serving)]
        parts += ["\n".join(serving.remarks(results.serving))]
    if results.bridge:
        title = "HTTP through the bridge, beside nginx as a reverse proxy"
        parts += [table.render(title, list(results.bridge.rounds), bridge.rows(results.bridge))]
        parts += ["\n".join(bridge.remarks(results.bridge))]
    return "\n\n".join(parts)


def _cloud_parts(results: Results) -> list[str]:
    parts: list[str] = []
    if results.clouds:
        title = "Pods at a simulated cloud"
        parts += [table.render(title, clouds.columns(results.clouds), clouds.rows(results.clouds))]
        parts += ["\n".join(clouds.remarks(results.clouds))]
    if results.modal:
        title = "Pods that run at Modal's stand-in, beside a simulated cloud"
        parts += [table.render(title, list(results.modal.contestants), modal_pods.rows(results.modal))]
        parts += ["\n".join(modal_pods.remarks(results.modal))]
    return parts


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="0.1 for a quick look [default: 1]")
    parser.add_argument("--only", choices=_PARTS, help="one of the parts [default: all]")
    return parser.parse_args()


def _say(step: str) -> None:
    print(f"  {step}", file=sys.stderr, flush=True)


def _machine() -> Machine:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return Machine(
        processor=names[0].partition(": ")[2] if names else platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        python=platform.python_version(),
        kopf=version("kopf"),
        load=os.getloadavg()[0],
    )


def _keep(results: Results) -> Path:
    _RESULTS.mkdir(exist_ok=True)
    path = _RESULTS / f"{results.at.replace(':', '')}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    return path


if __name__ == "__main__":
    main()
