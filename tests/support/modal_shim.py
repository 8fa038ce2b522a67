"""A clustered Function for tests of the stand-in: a lone file, which the SDK uploads and imports in each container."""

import os
import signal
import socket
import subprocess
import sys
import threading

import modal

PORT = 29411


def run() -> int:
    """Start the command in SHIM_COMMAND with this container's rank. The first failure is everybody's."""
    cluster = modal.Cluster.from_context()
    rank, addresses = cluster.container_rank(), cluster.container_ips()
    _print(f"start rank={rank} task={os.environ['MODAL_TASK_ID']} cluster={cluster.object_id}")
    link = _link(rank, addresses)
    env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(len(addresses)), "MASTER_ADDR": addresses[0]}
    child = subprocess.Popen(["sh", "-c", os.environ["SHIM_COMMAND"]], env=env, start_new_session=True)
    for connection in link:
        threading.Thread(target=_follow, args=(connection, child), daemon=True).start()
    code = child.wait()
    _print(f"exit rank={rank} code={code}")
    if code:
        for connection in link:
            connection.close()
        raise RuntimeError(f"rank {rank} ended with {code}")
    return code


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _link(rank: int, addresses: list[str]) -> list[socket.socket]:
    if rank:
        return [_dial(addresses[0])]
    with socket.socket(socket.AF_INET6) as server:
        server.bind((addresses[0], PORT))
        server.listen()
        return [server.accept()[0] for _ in addresses[1:]]


def _dial(address: str) -> socket.socket:
    while True:
        try:
            return socket.create_connection((address, PORT))
        except ConnectionRefusedError:
            threading.Event().wait(0.05)


def _follow(connection: socket.socket, child: subprocess.Popen) -> None:
    """A peer that goes away takes this rank with it, unless this rank has ended."""
    connection.recv(1)
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGTERM)
    sys.stdout.flush()
