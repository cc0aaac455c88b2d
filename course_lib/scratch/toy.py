"""DDP around a model on two devices: the smallest program for a launcher.

The example of PyTorch's tutorial on DDP, docs.pytorch.org/tutorials/
intermediate/ddp_tutorial.html, "Combining DDP with Model Parallelism". Here
every rank takes its rows of one batch, so that any number of ranks learns the
same.
"""

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

Device = torch.device | str | int


class ToyMpModel(nn.Module):
    """Two layers, each on a device of its own."""

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
    """Train on this rank's rows; the weights of the last layer (5, 10)."""
    mp_model = toy_model(*two_devices(local_rank))
    # Neither device_ids nor output_device: forward knows where things are.
    train(DistributedDataParallel(mp_model), slice(rank, None, world_size))
    return mp_model.net2.weight.detach().cpu()


def toy_model(dev0: Device, dev1: Device) -> ToyMpModel:
    """The model with its first weights, the same on every rank."""
    torch.manual_seed(0)
    return ToyMpModel(dev0, dev1)


def train(model: nn.Module, rows: slice, steps: int = 4) -> None:
    """Some updates, each on these rows of a batch of 12 samples."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1)
    for _ in range(steps):
        inputs, labels = torch.randn(12, 10), torch.randn(12, 5)
        outputs = model(inputs[rows])
        wanted = labels[rows].to(outputs.device)
        optimizer.zero_grad()
        nn.functional.mse_loss(outputs, wanted).backward()  # DDP: the mean
        optimizer.step()
