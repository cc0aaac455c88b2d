"""A minimal launcher: the core of torchrun.

It starts one command several times, passes each process its rank and the
rendezvous address in environment variables, and terminates the others when
one fails. The variables are torchrun's:
docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables".
"""

import gc
import os
import random
import socket
import subprocess
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

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
    """One rank's environment variables; rank 0 listens at `address`:`port`."""
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
    """Run `command` on every rank of this node; returns exit codes by rank.

    As soon as one is not 0, the other ranks are terminated.
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
    """Terminate running ranks; kill those that outlive the grace period."""
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
    """A random port of this machine with no listener.

    Below the ephemeral range (Linux: 32768 and up), so that no outgoing
    connection takes it before rank 0 listens there.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)):  # no listener
                return port


def setup(rank: int, world_size: int) -> None:
    """Join the group at MASTER_ADDR:MASTER_PORT of the environment."""
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def cleanup() -> None:
    """Leave the group, after collecting models that still use it."""
    gc.collect()  # DDP that outlives its group can abort the process
    dist.destroy_process_group()


# A minimal program for a launcher: DDP around a model on two devices.
#
# The example of PyTorch's tutorial on DDP, docs.pytorch.org/tutorials/
# intermediate/ddp_tutorial.html, "Combining DDP with Model Parallelism". Here
# every rank takes its rows of one batch, so that the result does not depend
# on the number of ranks.

Device = torch.device | str | int


class ToyMpModel(nn.Module):
    """Two layers, each on its own device."""

    def __init__(self, dev0: Device, dev1: Device) -> None:
        super().__init__()
        self.dev0, self.dev1 = dev0, dev1
        self.net1 = nn.Linear(10, 10).to(dev0)
        self.net2 = nn.Linear(10, 5).to(dev1)

    def forward(self, x: Tensor) -> Tensor:  # (batch, 10) -> (batch, 5)
        x = torch.relu(self.net1(x.to(self.dev0)))
        return self.net2(x.to(self.dev1))


def two_devices(local_rank: int) -> tuple[Device, Device]:
    """GPUs 2·r and 2·r + 1 of this machine; without GPUs the CPU, twice."""
    if torch.cuda.is_available():
        return 2 * local_rank, 2 * local_rank + 1
    return "cpu", "cpu"


def demo_model_parallel(
    rank: int, world_size: int, local_rank: int = 0
) -> Tensor:
    """Train on this rank's rows; returns the last layer's weights (5, 10)."""
    mp_model = toy_model(*two_devices(local_rank))
    # Neither device_ids nor output_device: forward moves tensors itself.
    train(DistributedDataParallel(mp_model), slice(rank, None, world_size))
    return mp_model.net2.weight.detach().cpu()


def toy_model(dev0: Device, dev1: Device) -> ToyMpModel:
    """The model with its initial weights, the same on every rank."""
    torch.manual_seed(0)
    return ToyMpModel(dev0, dev1)


def train(model: nn.Module, rows: slice, steps: int = 4) -> None:
    """Make `steps` updates, each on `rows` of a batch of 12 samples."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1)
    for _ in range(steps):
        inputs, labels = torch.randn(12, 10), torch.randn(12, 5)
        outputs = model(inputs[rows])
        targets = labels[rows].to(outputs.device)
        optimizer.zero_grad()
        nn.functional.mse_loss(outputs, targets).backward()  # DDP averages
        optimizer.step()
