"""A launcher: what torchrun is at heart.

It starts one command several times, tells each process by variables of its
environment who it is and where all of them meet, and ends the others when one
fails. The variables are torchrun's:
docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables".
"""

import gc
import os
import random
import socket
import subprocess
import time
from collections.abc import Sequence

import torch.distributed as dist

_POLL_S = 0.02


def rank_environment(
    local_rank: int,
    local_ranks: int,
    port: int,
    *,
    node: int = 0,
    nodes: int = 1,
    address: str = "127.0.0.1",
) -> dict[str, str]:
    """What one rank is told; rank 0 listens at `port` of `address`."""
    return {
        "RANK": str(node * local_ranks + local_rank),
        "WORLD_SIZE": str(nodes * local_ranks),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_ranks),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }


def launch_ranks(
    command: Sequence[str],
    local_ranks: int,
    port: int | None = None,
    *,
    node: int = 0,
    nodes: int = 1,
    address: str = "127.0.0.1",
) -> list[int]:
    """Run `command` on every rank of this node; the exit codes, by rank.

    As soon as one is not 0, the other ranks are ended.
    """
    port = port or free_port()
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for local_rank in range(local_ranks):
            told = rank_environment(
                local_rank,
                local_ranks,
                port,
                node=node,
                nodes=nodes,
                address=address,
            )
            ranks.append(subprocess.Popen(command, env=os.environ | told))
        codes = [rank.poll() for rank in ranks]  # None: it still runs
        while None in codes and not any(codes):
            time.sleep(_POLL_S)
            codes = [rank.poll() for rank in ranks]
    finally:  # Ctrl-C comes this way as well
        end_ranks(ranks)
    return [rank.returncode for rank in ranks]


def end_ranks(
    ranks: Sequence[subprocess.Popen[bytes]], grace_s: float = 5.0
) -> None:
    """Ask all that still run to end; kill those that have not by then."""
    for rank in ranks:
        rank.terminate()  # SIGTERM; nothing where it has ended
    until_s = time.monotonic() + grace_s
    for rank in ranks:
        try:
            rank.wait(max(0.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()  # SIGKILL, which no process can ignore
            rank.wait()


def free_port() -> int:
    """A port of this machine on which nobody listens.

    From below those that the system gives to connections (Linux: 32768 and
    up), so that none of them takes it before rank 0 listens there.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)):  # nobody answers
                return port


def setup(rank: int, world_size: int) -> None:
    """Join the group, at MASTER_ADDR and MASTER_PORT of the environment."""
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def cleanup() -> None:
    """Leave the group, when the last model that used it is gone."""
    gc.collect()  # DDP that outlives its group can abort the process
    dist.destroy_process_group()
