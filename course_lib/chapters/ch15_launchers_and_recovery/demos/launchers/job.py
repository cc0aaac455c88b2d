"""One small training job, for plain torch, accelerate, DeepSpeed and Megatron-core's layers.

What any launcher can start, and `course demo launchers` starts by all of them:
`torchrun -m …demos.launchers.job --framework accelerate`, with the path of this module.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from course_lib import launch
from course_lib.chapters.ch15_launchers_and_recovery.demos.launchers import lifeline
from course_lib.demos.shared.comparison import sum_over_ranks
from course_lib.demos.shared.deepspeed_config import deepspeed_config
from course_lib.demos.shared.options import MicroBatchOptions, option, parse, run_as_program
from course_lib.demos.shared.ranks import world
from course_lib.demos.shared.result import Result
from course_lib.demos.shared.training import Batch, Training, mean_loss, own_rows
from course_lib.demos.tp import megatron
from course_lib.scratch.tensor import TensorParallel
from course_lib.validation import choice


@dataclass(frozen=True)
class JobOptions(MicroBatchOptions):
    """The options that the job shares with the demo that starts it."""

    steps: int = option(4, "optimizer updates")
    model: str = option("1x16x2", "tiny, small, medium, gpt2 or LAYERSxHIDDENxHEADS")
    stage: int = option(1, "ZeRO stage, for DeepSpeed", least=0, most=3)
    offload: bool = option(False, "optimizer states on the host, for DeepSpeed")


@dataclass(frozen=True)
class Options(JobOptions):
    """The options of the job."""

    framework: str = option("torch", "who wraps the model: a key of FRAMEWORKS")

    def __post_init__(self) -> None:
        choice("framework", self.framework, FRAMEWORKS)
        super().__post_init__()


Update = Callable[[Batch], Tensor]  # takes the samples of all ranks, returns this rank's loss


def main(options: Options) -> Result:
    """Train; every rank returns the same losses."""
    rank = launch.init()
    training = options.training(rank.world)
    update = FRAMEWORKS[options.framework](options, training, rank)
    ready_at = time.time()
    losses = []
    for batch in training.batches(rank.device):
        losses.append(sum_over_ranks(update(batch)) / rank.world)
    shown = ", ".join(f"{loss:.6f}" for loss in losses)
    return Result(
        f"{options.framework} on {rank.world} ranks: losses {shown}",
        framework=options.framework,
        world=rank.world,  # ranks that actually joined the job
        losses=losses,  # mean over the samples of all ranks, one per update
        ready_at=ready_at,  # time.time() just before the first update
    )


def _updating(
    loss_of: Callable[[Batch], Tensor],
    optimizer: Optimizer,
    backward: Callable[[Tensor], object] = Tensor.backward,
) -> Update:
    def update(batch: Batch) -> Tensor:
        loss = loss_of(batch)
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return update


def _torch(_: Options, training: Training, rank: launch.Rank) -> Update:
    model = DistributedDataParallel(training.build(rank.device))
    optimizer = training.optimizer(model.parameters())
    return _updating(lambda batch: mean_loss(model, own_rows(batch, rank)), optimizer)


def _accelerate(_: Options, training: Training, rank: launch.Rank) -> Update:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=rank.device.type == "cpu")
    model = training.build(rank.device)
    optimizer = training.optimizer(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    return _updating(
        lambda batch: mean_loss(model, own_rows(batch, rank)), optimizer, accelerator.backward
    )


def _deepspeed(
    options: Options, training: Training, rank: launch.Rank, bf16: bool = False
) -> Update:
    import deepspeed

    model = training.build(rank.device)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=training.optimizer(model.parameters()),
        config=deepspeed_config(
            options.stage,
            options.micro_batch,
            ranks=rank.world,
            offload=options.offload,
            bf16=bf16,
        ),
        dist_init_required=False,  # the process group exists already
    )

    def update(batch: Batch) -> Tensor:
        loss = mean_loss(engine, own_rows(batch, rank))
        engine.backward(loss)
        engine.step()  # clears the gradients as well
        return loss.detach()

    return update


def _megatron(_: Options, training: Training, rank: launch.Rank) -> Update:
    """Tensor parallelism over all ranks, each with all samples: Megatron's DDP needs CUDA."""
    model = megatron.parallelize(training.build(rank.device), TensorParallel(world()))

    def loss_of(batch: Batch) -> Tensor:
        inputs, labels = batch
        return megatron.loss(model(inputs), labels).mean()

    return _updating(loss_of, training.optimizer(model.parameters()))


FRAMEWORKS: dict[str, Callable[[Options, Training, launch.Rank], Update]] = {
    "torch": _torch,
    "accelerate": _accelerate,
    "deepspeed": _deepspeed,
    "deepspeed-bf16": partial(_deepspeed, bf16=True),
    "megatron": _megatron,
}


if __name__ == "__main__":
    lifeline.hold()
    run_as_program(main, parse("launchers", Options, sys.argv[1:], __doc__))
