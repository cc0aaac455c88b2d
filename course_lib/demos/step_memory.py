"""One update under ZeRO and FSDP: the bytes of a rank moment by moment, beside the prediction.

The third update of a small GPT is recorded: weights, gradients, optimizer states, intermediate
results, and what is gathered or reduced for a moment, which counts as temporary.
Run it with `course demo step_memory --ranks 2`, or under torchrun.
"""

import gc
from dataclasses import dataclass

from torch import Tensor

from course_lib import launch
from course_lib.demos import fsdp
from course_lib.demos.largest_batch import RECIPE
from course_lib.demos.shared.options import BatchOptions, option
from course_lib.demos.shared.result import Result
from course_lib.demos.shared.training import loss_share, own_rows
from course_lib.demos.zero import ScratchZero
from course_lib.measure.memory_over_time import MemoryOverTime, record_step
from course_lib.scratch.zero import Unit
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.step_timeline import StepTimeline, step_timeline

Version = ScratchZero | fsdp.MiniFSDP
STAGES = {"stage 0": 0, "ZeRO 1": 1, "ZeRO 2": 2, "FSDP": 3}


@dataclass(frozen=True)
class Options(BatchOptions):
    """The options of this demo."""

    version: str = option(
        "all", "one of stage 0, ZeRO 1, ZeRO 2 and FSDP, or all", among=("all", *STAGES)
    )


def main(options: Options) -> Result:
    """Record the memory of one update under every version."""
    rank = launch.init()
    stages = {name: it for name, it in STAGES.items() if options.version in ("all", name)}
    measured = {name: _measured(stage, options, rank) for name, stage in stages.items()}
    predicted = {name: predict(stage, options, rank.world) for name, stage in stages.items()}
    lines = (
        f"{name:<8} peak {format_bytes(it.peak_bytes):>9}, predicted "
        f"{format_bytes(predicted[name].peak_bytes):>9}"
        for name, it in measured.items()
    )
    return Result(*lines, measured=measured, predicted=predicted)


def predict(stage: int, options: Options, ranks: int) -> StepTimeline:
    """The theory's timeline of the step, with torch's eager loss and freed gradients."""
    layout = Layout(dp=ranks, zero_stage=stage, micro_batch=-(-options.batch // ranks))
    job = Job(options.training().shape(), RECIPE, layout, sequence=options.sequence)
    return step_timeline(job, overhead_bytes=0)


def _measured(stage: int, options: Options, rank: launch.Rank) -> MemoryOverTime:
    """Make two warm-up updates, and record the third."""
    training = options.training()
    version = _version(stage, options, rank)
    *first, last = training.batches(rank.device)[:3]
    for batch in first:
        version.backward(batch)
        version.update()
    units: list[Unit] = []
    buffers: list[Tensor] = []
    if isinstance(version, ScratchZero):
        units = [*version.zero.units.values()]
        weights = [unit.whole for unit in units]
        held = [*version.model.parameters(), *(unit.master for unit in units)]
    else:
        weights, held = [it.detach() for it in version.shards], version.shards
        buffers = [unit.whole for unit in version.fsdp.units]

    def gradients() -> list[Tensor]:
        every = [*(unit.gradient for unit in units), *(p.grad for p in held)]
        return [it for it in every if it is not None]

    def states() -> list[Tensor]:
        kept = [it for state in version.optimizer.state.values() for it in state.values()]
        return [it for it in kept if isinstance(it, Tensor)]

    gc.collect()
    with record_step(weights, last, gradients, states, buffers=buffers) as record:
        record.phase("forward")
        loss = loss_share(version.model, own_rows(last, rank), last)
        record.phase("backward")
        loss.backward()
        del loss
        record.phase("update")
        version.update()
        record.settle()
    return record.result()


def _version(stage: int, options: Options, rank: launch.Rank) -> Version:
    if stage < 3:
        training = options.training()
        return ScratchZero(stage, training, 1, rank, offload=False, parts="course")
    settings = {name: getattr(options, name) for name in BatchOptions.__dataclass_fields__}
    return fsdp.MiniFSDP(fsdp.Options(**settings), rank)
