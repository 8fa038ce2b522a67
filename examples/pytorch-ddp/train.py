# /// script
# dependencies = ["torch", "numpy"]
# ///
"""Data-parallel training with PyTorch: each worker has a part of the data, and DDP averages the gradients."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 30


def spirals(count: int = 1200) -> TensorDataset:
    """Return points of three spirals, the same in every worker."""
    generator = torch.Generator().manual_seed(0)
    label = torch.arange(count) % 3
    radius = torch.rand(count, generator=generator)
    angle = 4 * radius + label * 2.094 + torch.randn(count, generator=generator) * 0.1
    return TensorDataset(torch.stack([radius * angle.sin(), radius * angle.cos()], dim=1), label)


def main() -> None:
    # RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT come from the TrainingJob.
    has_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if has_gpu else "gloo")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if has_gpu else torch.device("cpu")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    model = DistributedDataParallel(network.to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = spirals()
    sampler = DistributedSampler(data, seed=0)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for points, labels in DataLoader(data, batch_size=64, sampler=sampler):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(points.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
    points, labels = (tensor.to(device) for tensor in data.tensors)
    right = (model(points).argmax(1) == labels).float().mean().item()
    verdict = "learnt" if right > 0.95 else "failed"
    print(
        f"rank {dist.get_rank()} of {dist.get_world_size()}: {verdict}, {right:.0%} of the points are right", flush=True
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
