"""DDP around a model whose layers lie on several devices of each rank.

On a CPU all of the devices are the CPU; with GPUs each rank takes its own. `device_ids` must then
stay None: the demo shows what torch says otherwise.
Run it with `course demo multi_device --ranks 2`, or under torchrun.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.demos.shared.comparison import Comparison, follow
from course_lib.demos.shared.options import BatchOptions, option
from course_lib.demos.shared.prediction import predicted_stored
from course_lib.demos.shared.replica import Replica, own_devices, predicted_exchange
from course_lib.demos.shared.training import one_process
from course_lib.scratch.replicas.ddp import DDP
from course_lib.scratch.replicas.spread import Spread
from course_lib.theory.inputs.layout import ALONE
from course_lib.validation import whole


@dataclass(frozen=True)
class Options(BatchOptions):
    """What the demo can be asked for."""

    devices: int = option(2, "devices of each rank, over which its model is spread")

    def __post_init__(self) -> None:
        whole("devices", self.devices, most=64)
        super().__post_init__()
        layers, _, _ = self.training().size
        if layers < self.devices:
            raise ValueError(
                f"devices {self.devices} are more than the model's {layers} layers: "
                "take fewer devices or a deeper model"
            )


def main(options: Options) -> Comparison:
    """Train the spread model by both kinds of DDP, and ask torch for `device_ids` once."""
    rank, training = launch.init(), options.training()
    devices = own_devices(rank, options.devices)
    reference = one_process(training, rank.device)
    exchange, states = predicted_exchange(training, rank), predicted_stored(training, ALONE)
    versions = []
    kinds: dict[str, Callable[[Spread], nn.Module]] = {
        "DDP by hand": DDP,
        "DistributedDataParallel": _library,
    }
    for name, wrap in kinds.items():
        model = training.build()
        trainee = Replica(name, training, model, wrap(Spread(model, devices)))
        versions.append(follow(trainee, training, reference, exchange, states))
    return Comparison.verified(
        "DDP around a model on several devices",
        rank,
        options.model,
        reference,
        versions,
        notes=[
            f"layers on {', '.join(map(str, devices))}",
            f"with device_ids=[0] torch says: {refusal(Spread(training.build(), devices))}",
            "device_ids names the one GPU that inputs are moved to; this model moves them itself",
        ],
    )


def _library(model: Spread) -> DistributedDataParallel:
    return DistributedDataParallel(model, device_ids=None)


def refusal(model: Spread) -> str:
    """The first sentence of torch's error when `device_ids` is passed."""
    try:
        DistributedDataParallel(model, device_ids=[0])
    except ValueError as error:
        return " ".join(str(error).split())
    return "nothing: the model is on one GPU"
