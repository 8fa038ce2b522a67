"""Programs whose ranks work together."""

from __future__ import annotations

# Rank 0 gives a value to rank 1.
PEERS = """
import os, socket, time
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    server = socket.socket(socket.AF_INET6)
    server.bind(address)
    server.listen()
    server.accept()[0].sendall(os.environ["NONCE"].encode())
else:
    for _ in range(600):
        try:
            print("heard", socket.create_connection(address).recv(64).decode(), "of", os.environ["WORLD_SIZE"])
            break
        except OSError:
            time.sleep(0.05)
"""
# Two ranks train a model. In the first attempt rank 1 is killed after the checkpoint.
DDP = """
import os, pathlib, signal, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo", timeout=__import__("datetime").timedelta(minutes=5))
rank, folder, resume = dist.get_rank(), pathlib.Path(os.environ["CHECKPOINT_DIR"]), os.environ.get("RESUME_FROM")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
first = 0
if resume:
    state = torch.load(resume)
    model.load_state_dict(state["model"])
    first = state["step"]
    print("resumed at", first, flush=True)
torch.manual_seed(rank)
for step in range(first, 6):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    own = model.module.weight.grad.clone()
    total = own.clone()
    dist.all_reduce(total)
    # Every rank has other data, so equal gradients are averaged ones.
    assert torch.allclose(total, own * dist.get_world_size()), (own, total)
    optimizer.step()
    if rank == 0 and step == 2 and not resume:
        path = folder / "step-3.pt"
        torch.save({"model": model.state_dict(), "step": step + 1}, path)
        print(f"skysail-checkpoint step={step + 1} path={path}", flush=True)
    dist.barrier()
    if rank == 1 and step == 3 and not resume:
        os.kill(os.getpid(), signal.SIGKILL)
print("averaged over", dist.get_world_size(), "ranks", flush=True)
dist.destroy_process_group()
"""
