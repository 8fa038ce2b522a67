"""Train a small model on generated data: the program of runtime modal-pytorch-runtime. Replace it by your own.

Runs alone or under `python -m torch.distributed.run`. Every epoch it prints its loss and its progress, and rank 0 saves
a checkpoint if CHECKPOINT_DIR is set.
"""

# ruff: noqa: T201 (prints its progress)

import json
import os
import pathlib

import torch
from torch import distributed, nn

EPOCHS = int(os.environ.get("EPOCHS", "5"))


def main() -> None:
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    is_distributed = world > 1
    if is_distributed:
        distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    if is_distributed:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    inputs = torch.randn(512, 8, generator=generator).to(device)
    targets = inputs.sum(dim=1, keepdim=True)
    for epoch in range(1, EPOCHS + 1):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        if rank == 0:
            report(epoch, loss.item(), model)
    if is_distributed:
        distributed.destroy_process_group()


def report(epoch: int, loss: float, model: nn.Module) -> None:
    metrics = [{"name": "loss", "value": f"{loss:.4f}"}, {"name": "epoch", "value": str(epoch)}]
    status = {"progressPercentage": 100 * epoch // EPOCHS, "metrics": metrics}
    print("skysail-progress " + json.dumps({"trainerStatus": status}), flush=True)
    print(f"epoch {epoch} of {EPOCHS}: loss {loss:.4f}", flush=True)
    if folder := os.environ.get("CHECKPOINT_DIR"):
        path = pathlib.Path(folder) / f"{epoch}.pt"
        torch.save(model.state_dict(), path)
        print(f"skysail-checkpoint step={epoch} path={path}", flush=True)


if __name__ == "__main__":
    main()
