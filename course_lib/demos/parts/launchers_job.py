"""One small training job, written for plain torch, for accelerate and for DeepSpeed.

What any launcher can start, and `course demo launchers` starts by all of them:
`torchrun -m course_lib.demos.parts.launchers_job --framework accelerate`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.demos.parts import lifeline
from course_lib.demos.parts.command import option, run_as_program
from course_lib.demos.parts.command import parse as parse_options
from course_lib.demos.parts.deepspeed_config import deepspeed_config
from course_lib.demos.parts.training import Batch, Training, mean_loss
from course_lib.validation import choice, flag, whole


@dataclass(frozen=True)
class Options:
    """What the job can be asked for."""

    framework: str = option("torch", "who wraps the model: torch, accelerate or deepspeed")
    steps: int = option(4, "optimizer updates")
    model: str = option("1x16x2", "tiny, small, medium, gpt2 or LAYERSxHIDDENxHEADS")
    micro_batch: int = option(4, "samples of one rank in one update")
    stage: int = option(1, "ZeRO stage, for DeepSpeed")
    offload: bool = option(False, "optimizer states on the host, for DeepSpeed")
    json: bool = option(False, "print the result as JSON")

    def __post_init__(self) -> None:
        choice("framework", self.framework, FRAMEWORKS)
        whole("micro_batch", self.micro_batch)
        whole("stage", self.stage, least=0, most=3)
        flag("offload", self.offload)
        flag("json", self.json)
        self.training(1)  # refuses a model or steps that do not fit

    def training(self, ranks: int) -> Training:
        """What is trained; as on a cluster, the batch grows with the number of ranks."""
        return Training(self.model, self.steps, batch=self.micro_batch * ranks)


@dataclass(frozen=True)
class Result:
    """How many ranks the job found, and what it learned."""

    framework: str
    world: int
    losses: list[float]  # mean over the samples of all ranks, one per update
    ready_at: float  # time.time() when the first update could begin

    def report(self) -> str:
        """One line."""
        losses = ", ".join(f"{loss:.6f}" for loss in self.losses)
        return f"{self.framework} on {self.world} ranks: losses {losses}"


Update = Callable[[Batch], Tensor]  # this rank's samples in, their loss out, weights updated


def main(options: Options) -> Result:
    """Train; every rank returns the same losses."""
    rank = launch.init()
    training = options.training(rank.world)
    update = FRAMEWORKS[options.framework](options, training, rank)
    ready_at = time.time()
    losses = []
    for batch in training.batches(rank.device):
        loss = update([part.chunk(rank.world)[rank.rank] for part in batch]).double()
        dist.all_reduce(loss)
        losses.append(float(loss) / rank.world)
    return Result(options.framework, rank.world, losses, ready_at)


def _torch(_: Options, training: Training, rank: launch.Rank) -> Update:
    model = DistributedDataParallel(training.build(rank.device))
    optimizer = training.optimizer(list(model.parameters()))

    def update(samples: Batch) -> Tensor:
        loss = mean_loss(model, samples)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return update


def _accelerate(_: Options, training: Training, rank: launch.Rank) -> Update:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=rank.device.type == "cpu")
    model = training.build(rank.device)
    optimizer = training.optimizer(list(model.parameters()))
    model, optimizer = accelerator.prepare(model, optimizer)

    def update(samples: Batch) -> Tensor:
        loss = mean_loss(model, samples)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return update


def _deepspeed(options: Options, training: Training, rank: launch.Rank) -> Update:
    import deepspeed

    model = training.build(rank.device)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=training.optimizer(list(model.parameters())),
        config=deepspeed_config(
            options.stage, options.micro_batch, ranks=rank.world, offload=options.offload
        ),
        dist_init_required=False,  # the group is there
    )

    def update(samples: Batch) -> Tensor:
        loss = mean_loss(engine, samples)
        engine.backward(loss)
        engine.step()  # clears the gradients as well
        return loss.detach()

    return update


FRAMEWORKS = {"torch": _torch, "accelerate": _accelerate, "deepspeed": _deepspeed}


def parse(argv: Sequence[str] | None = None) -> Options:
    """Options from command-line arguments."""
    return parse_options(Options, argv, __doc__)


if __name__ == "__main__":
    lifeline.hold()
    run_as_program(main, parse())
