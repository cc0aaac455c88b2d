"""Several devices in one process: nn.DataParallel by hand, and DDP around a model spread over them.

DataParallel scatters the batch over devices, copies the weights to each of them in every update,
and sums gradients on the first one; every rank does so alone, on the whole batch. The spread
model has its layers on several devices of its rank, and DDP averages over ranks: `device_ids` must
then stay None, and the demo shows what torch says otherwise. On a CPU all devices are the CPU.
Run it with `course demo multi_device --ranks 2`, under torchrun, or alone.
"""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.chapters.ch07_ddp.copies import copied_bytes
from course_lib.demos.shared.comparison import Comparison
from course_lib.demos.shared.options import BatchOptions, option
from course_lib.demos.shared.prediction import predicted_stored
from course_lib.demos.shared.result import Result
from course_lib.demos.shared.trainee import Replica, own_devices, predicted_exchange
from course_lib.demos.shared.training import Batch, mean_loss
from course_lib.scratch.data_parallel import DataParallel
from course_lib.scratch.ddp import DDP, Spread
from course_lib.theory.network.collectives import sent_bytes


@dataclass(frozen=True)
class Options(BatchOptions):
    """The demo's options."""

    devices: int = option(2, "devices of each rank", least=1, most=64)

    def __post_init__(self) -> None:
        super().__post_init__()
        layers, _, _ = self.training().size
        if layers < self.devices:
            raise ValueError(
                f"devices {self.devices} are more than the model's {layers} layers: "
                "take fewer devices or a deeper model"
            )


class InOneProcess(Replica):
    """Every rank trains on the whole batch by itself; ranks exchange nothing."""

    def backward(self, batch: Batch) -> Tensor:
        """Forward and backward passes of the whole batch."""
        loss = mean_loss(self.wrapped, batch)
        loss.backward()
        return loss / launch.init().world

    def stored(self) -> dict[str, int]:
        """Bytes of the states, plus bytes of weights that one update copies to other devices."""
        copies = {}
        if isinstance(self.wrapped, DataParallel):
            copies = {"weights, copied": copied_bytes(self.wrapped.replicate)}
        return {**super().stored(), **copies}


def main(options: Options) -> Result:
    """Train by DataParallel, by hand and torch's, then the spread model by both kinds of DDP."""
    rank, training = launch.init(), options.training()
    devices = own_devices(rank, options.devices)
    gpus = sorted({device.index for device in devices if device.type == "cuda"})
    comparison, states = Comparison(training), predicted_stored(training)
    size = states["weights"]
    copies = (options.devices - 1) * size
    by_hand = f"DataParallel by hand on {options.devices} devices"
    for name in (by_hand, "nn.DataParallel"):
        model, handmade = training.build(devices[0]), name == by_hand
        wrapped = DataParallel(model, devices) if handmade else nn.DataParallel(model, gpus or None)
        stored = {**states, **({"weights, copied": copies} if handmade else {})}
        alone = InOneProcess(name, training, model, wrapped)
        comparison.follow(alone, predicted_stored=stored)
    exchange = predicted_exchange(training, rank)
    for name in ("DDP by hand", "DistributedDataParallel"):
        model = training.build()
        spread = Spread(model, devices)
        ddp = DDP(spread) if name == "DDP by hand" else DistributedDataParallel(spread)
        comparison.follow(Replica(name, training, model, ddp), exchange, states)
    ring = round(sent_bytes("all-reduce", size, options.devices))
    notes = [
        f"layers on {', '.join(map(str, devices))}",
        f"with device_ids=[0] torch says: {refusal(Spread(training.build(), devices))}",
        "device_ids names the one GPU that inputs are moved to; this model moves them itself",
        f"each update of DataParallel takes {copies:,} B of weights from the first device and "
        f"brings as many of gradients back to it; a ring all-reduce over {options.devices} ranks "
        f"of DDP sends {ring:,} B from every one",
    ]
    if len(gpus) < 2:
        notes.append("nn.DataParallel needs several GPUs: here it is a plain call of the model")
    return comparison.result("several devices in one process", notes=notes)


def refusal(model: Spread) -> str:
    """The first sentence of torch's error when `device_ids` is passed."""
    try:
        DistributedDataParallel(model, device_ids=[0])
    except ValueError as error:
        return " ".join(str(error).split())
    return "nothing: the model is on one GPU"
