"""Trains a small network on MNIST: PyTorch on the CPUs of any number of workers, which average their gradients.

    python -m torch.distributed.run --nproc_per_node=1 /workspace/train_mnist.py --epochs=10 --batch-size=64

Everything else is in the environment that a TrainingJob gives to its workers. Rank 0 saves a checkpoint every few
epochs; an attempt that is begun anew resumes from the newest one, and ends with the weights that it would have had
without the interruption, bit by bit: an epoch depends on the weights before it and on its own number, on nothing else.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import ssl
import struct
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

DATA = Path("/data")
DIGITS = 10
SIDE = 28
MADE_UP = 8192


def main() -> None:
    options = arguments()
    # Sums of floats depend on their order, and that on the number of threads.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    torch.manual_seed(0)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()

    has_data = any(DATA.rglob("train-images-idx3-ubyte*"))
    images, labels = read(DATA) if has_data else made_up()
    model = network()
    optimizer = chosen_optimizer(model)
    first = resume(model, optimizer) + 1
    source = f"from {DATA}" if has_data else "made up"
    print(f"rank {rank} of {distributed.get_world_size()} begins with epoch {first}: {len(images)} images, {source}")
    began = time.monotonic()
    for epoch in range(first, options.epochs + 1):
        loss, steps = train(model, optimizer, batches(images, labels, size=options.batch_size, epoch=epoch))
        if rank == 0:
            print(f"epoch {epoch}/{options.epochs} loss={loss:.4f}")
            if is_due(epoch, options.epochs):
                save(model, optimizer, epoch=epoch, step=epoch * steps)
            pace = (time.monotonic() - began) / (epoch - first + 1)
            metrics = {"loss": f"{loss:.4f}", "current_epoch": str(epoch), "current_step": str(epoch * steps)}
            report(100 * epoch // options.epochs, seconds_left=int(pace * (options.epochs - epoch)), metrics=metrics)
    print(f"rank {rank} weights sha256={fingerprint(model)}")
    distributed.destroy_process_group()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains a small network on MNIST.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64, help="images of one worker in one step")
    return parser.parse_args()


def read(folder: Path) -> tuple[Tensor, Tensor]:
    """MNIST as it is published: two files, packed or not, somewhere below the folder."""
    return _unpacked(folder, "train-images-idx3-ubyte"), _unpacked(folder, "train-labels-idx1-ubyte")


def _unpacked(folder: Path, name: str) -> Tensor:
    """Its fourth byte tells how many sizes follow, of four bytes each; then come the numbers, a byte each."""
    path = min(folder.rglob(f"{name}*"))
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    sizes = struct.unpack_from(f">{raw[3]}I", raw, 4)
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8, offset=4 + 4 * len(sizes)).reshape(sizes)


def made_up() -> tuple[Tensor, Tensor]:
    """Pictures of ten shapes behind noise, for those who have no MNIST at hand. The same on every worker."""
    chance = torch.Generator().manual_seed(0)
    shapes = torch.randint(256, (DIGITS, SIDE, SIDE), generator=chance)
    labels = torch.randint(DIGITS, (MADE_UP,), generator=chance)
    noise = torch.randint(256, (MADE_UP, SIDE, SIDE), generator=chance)
    return ((shapes[labels] + 3 * noise) // 4).to(torch.uint8), labels


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 6 * 6, DIGITS),
    )


def chosen_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    kind = kinds[os.environ.get("HYPERPARAM_OPTIMIZER", "adam")]
    return kind(model.parameters(), lr=float(os.environ.get("HYPERPARAM_LEARNINGRATE", "0.001")))


def batches(images: Tensor, labels: Tensor, *, size: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """This worker's share. All have the same number of batches, because each waits for all others in every step."""
    torch.manual_seed(epoch)  # for the order of images, and for layers that draw lots
    rank, world = distributed.get_rank(), distributed.get_world_size()
    mine = torch.randperm(len(images))[rank::world][: len(images) // world]
    for chosen in mine.split(size):
        yield images[chosen].unsqueeze(1) / 255, labels[chosen].long()


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[tuple[Tensor, Tensor]]
) -> tuple[float, int]:
    """The mean loss, and how many steps there were."""
    # Made anew for each epoch, because after its first step it orders sums otherwise.
    parallel = DistributedDataParallel(model)
    total, steps = 0.0, 0
    for images, labels in batches:
        optimizer.zero_grad()
        loss = cross_entropy(parallel(images), labels)
        loss.backward()
        optimizer.step()
        total, steps = total + loss.item(), steps + 1
    return total / steps, steps


def is_due(epoch: int, epochs: int) -> bool:
    if "CHECKPOINT_DIR" not in os.environ:
        return False
    return epoch % int(os.environ["CHECKPOINT_INTERVAL"]) == 0 or epoch == epochs


def save(model: nn.Module, optimizer: torch.optim.Optimizer, *, epoch: int, step: int) -> None:
    """A checkpoint has its name only when it is whole and on disk, and only then Skysail is told of it."""
    path = Path(os.environ["CHECKPOINT_DIR"]) / f"epoch-{epoch}.pt"
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    print(f"skysail-checkpoint step={step} path={path}")


def resume(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """How many epochs are done already. Every worker reads the same file, which Skysail has named to all of them."""
    path = os.environ.get("RESUME_FROM")
    if not path:
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["epoch"])


def report(percent: int, *, seconds_left: int, metrics: dict[str, str]) -> None:
    """How far it is. Nobody needs to hear it: a training does not end because its report is lost."""
    if "KUBEFLOW_TRAINER_SERVER_URL" not in os.environ:
        return
    status = {
        "progressPercentage": percent,
        "estimatedRemainingSeconds": seconds_left,
        "metrics": [{"name": name, "value": value} for name, value in metrics.items()],
    }
    body = json.dumps({"trainerStatus": status}).encode()
    token = Path(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read_text()  # it changes: read it each time
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    trust = ssl.create_default_context(cafile=os.environ["KUBEFLOW_TRAINER_SERVER_CA_CERT"])
    request = urllib.request.Request(os.environ["KUBEFLOW_TRAINER_SERVER_URL"], body, headers)
    try:
        urllib.request.urlopen(request, context=trust, timeout=5).close()
    except OSError as error:
        print(f"not reported: {error}")


def fingerprint(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
