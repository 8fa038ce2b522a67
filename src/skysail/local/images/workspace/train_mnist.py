"""Trains a small network on MNIST: PyTorch on the CPUs of any number of workers, which average their gradients.

    python -m torch.distributed.run --nproc_per_node=1 /workspace/train_mnist.py --epochs=10 --batch-size=64

Everything else is in the environment that a TrainingJob gives to its workers. Rank 0 saves a checkpoint every few
epochs. A restarted attempt resumes from the newest checkpoint, and ends with bitwise the same weights as without the
interruption: an epoch depends only on the previous weights and on its own number.
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
    # The sum of floats depends on their order, and the order depends on the number of threads.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    torch.manual_seed(0)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()

    has_data = any(DATA.rglob("train-images-idx3-ubyte*"))
    images, labels = read(DATA) if has_data else synthetic()
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
    """Read the published MNIST files, compressed or not, from anywhere below the folder."""
    return _unpacked(folder, "train-images-idx3-ubyte"), _unpacked(folder, "train-labels-idx1-ubyte")


def _unpacked(folder: Path, name: str) -> Tensor:
    """Parse an IDX file: byte four is the number of dimensions, then come their sizes (4 bytes each) and the data."""
    path = min(folder.rglob(f"{name}*"))
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    sizes = struct.unpack_from(f">{raw[3]}I", raw, 4)
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8, offset=4 + 4 * len(sizes)).reshape(sizes)


def synthetic() -> tuple[Tensor, Tensor]:
    """Return noisy pictures of ten shapes, for users without MNIST. The same on every worker."""
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
    """Yield this worker's share.

    All workers have the same number of batches, because they synchronise in every step.
    """
    torch.manual_seed(epoch)  # for the order of images, and for dropout
    rank, world = distributed.get_rank(), distributed.get_world_size()
    mine = torch.randperm(len(images))[rank::world][: len(images) // world]
    for chosen in mine.split(size):
        yield images[chosen].unsqueeze(1) / 255, labels[chosen].long()


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[tuple[Tensor, Tensor]]
) -> tuple[float, int]:
    """Train one epoch. Return the mean loss and the number of steps."""
    # Created for each epoch, because after the first step it changes the order of sums.
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
    """Save a checkpoint. It gets its final name, and is reported to Skysail, only when it is complete on disk."""
    path = Path(os.environ["CHECKPOINT_DIR"]) / f"epoch-{epoch}.pt"
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    print(f"skysail-checkpoint step={step} path={path}")


def resume(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the checkpoint that Skysail names to all workers. Returns the number of completed epochs."""
    path = os.environ.get("RESUME_FROM")
    if not path:
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["epoch"])


def report(percent: int, *, seconds_left: int, metrics: dict[str, str]) -> None:
    """Report the progress. A lost report must not end the training."""
    if "KUBEFLOW_TRAINER_SERVER_URL" not in os.environ:
        return
    status = {
        "progressPercentage": percent,
        "estimatedRemainingSeconds": seconds_left,
        "metrics": [{"name": name, "value": value} for name, value in metrics.items()],
    }
    body = json.dumps({"trainerStatus": status}).encode()
    token = Path(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read_text()  # the token rotates: read it each time
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
