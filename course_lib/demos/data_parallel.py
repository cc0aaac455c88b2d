"""nn.DataParallel by hand: scatter, replicate, gather in one process.

The batch is scattered over devices, the weights are copied to each of them in every update, and
gradients are added up on the first one. On a CPU all devices are the CPU. With several ranks each
of them does the same, and DDP over all ranks is trained beside it.
Run it with `course demo data_parallel --ranks 2`, under torchrun, or alone.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from course_lib import launch
from course_lib.demos.shared.batch import Batch, mean_loss
from course_lib.demos.shared.comparison import Comparison, follow
from course_lib.demos.shared.options import BatchOptions, option
from course_lib.demos.shared.prediction import predicted_stored
from course_lib.demos.shared.replica import Replica, own_devices, predicted_exchange
from course_lib.demos.shared.training import one_process
from course_lib.measure.copies import copied_bytes
from course_lib.scratch.replicas.data_parallel import DataParallel
from course_lib.scratch.replicas.ddp import DDP
from course_lib.theory.inputs.layout import ALONE
from course_lib.theory.network.collectives import sent_bytes
from course_lib.validation import whole


@dataclass(frozen=True)
class Options(BatchOptions):
    """What the demo can be asked for."""

    devices: int = option(2, "devices of one process")

    def __post_init__(self) -> None:
        whole("devices", self.devices, most=64)
        super().__post_init__()


class _InOneProcess(Replica):
    """Every rank trains on the whole batch by itself: nothing travels between ranks."""

    def backward(self, batch: Batch) -> Tensor:
        """Forward and backward passes of the whole batch."""
        loss = mean_loss(self.wrapped, batch)
        loss.backward()
        return loss / launch.init().world

    def stored(self) -> dict[str, int]:
        """Bytes of the states, and of the weights that one update copies."""
        copies = {}
        if isinstance(self.wrapped, DataParallel):
            copies = {"weights, copied": copied_bytes(self.wrapped.replicate)}
        return {**super().stored(), **copies}


def main(options: Options) -> Comparison:
    """Train by hand, by nn.DataParallel, and, on several ranks, by DDP."""
    rank, training = launch.init(), options.training()
    devices = own_devices(rank, options.devices)
    reference = one_process(training, rank.device)
    states = predicted_stored(training, ALONE)
    copies = {"weights, copied": (options.devices - 1) * states["weights"]}

    model = training.build(devices[0])
    by_hand = _InOneProcess(
        f"DataParallel by hand on {options.devices} devices",
        training,
        model,
        DataParallel(model, devices),
    )
    versions = [follow(by_hand, training, reference, predicted_stored={**states, **copies})]

    gpus = sorted({device.index for device in devices if device.type == "cuda"})
    model = training.build(devices[0])
    real = nn.DataParallel(model, device_ids=gpus or None)
    library = _InOneProcess("nn.DataParallel", training, model, real)
    versions.append(follow(library, training, reference, predicted_stored=states))

    if rank.world > 1:
        model = training.build(rank.device)
        ddp = Replica("DDP by hand", training, model, DDP(model))
        exchange = predicted_exchange(training, rank)
        versions.append(follow(ddp, training, reference, exchange, states))
    return Comparison.verified(
        "data parallelism in one process",
        rank,
        options.model,
        reference,
        versions,
        notes=_notes(len(gpus), options.devices, states["weights"]),
    )


def _notes(gpus: int, devices: int, size: int) -> list[str]:
    ring = round(sent_bytes("all-reduce", size, devices))
    notes = [
        f"each update of DataParallel takes {(devices - 1) * size:,} B of weights from the first "
        f"device and brings as many of gradients back to it; a ring all-reduce over {devices} "
        f"ranks of DDP sends {ring:,} B from every one"
    ]
    if gpus < 2:
        notes.append(
            "nn.DataParallel needs several GPUs: here it is a plain call of the model, "
            "on the whole batch"
        )
    return notes
