"""One update under ZeRO and FSDP: the bytes of a rank moment by moment, beside the prediction.

The third update of a small GPT is recorded: weights, gradients, optimizer states, intermediate
results, and what is gathered or reduced for a moment, which counts as temporary.
Run it with `course demo step_memory --ranks 2`, or under torchrun.
"""

import gc
from dataclasses import dataclass, replace

from torch import Tensor

from course_lib import launch
from course_lib.demos.fsdp import versions as fsdp
from course_lib.demos.shared.batch import Batch, loss_share, own_rows
from course_lib.demos.shared.options import BatchOptions, option
from course_lib.demos.shared.prediction import FP32
from course_lib.demos.shared.result import Result
from course_lib.demos.zero.versions import ScratchZero
from course_lib.measure.memory_over_time import MemoryOverTime, record_step
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.step_timeline import StepTimeline, step_timeline

Version = ScratchZero | fsdp.MiniFSDP
STAGES = {"stage 0": 0, "ZeRO 1": 1, "ZeRO 2": 2, "FSDP": 3}


@dataclass(frozen=True)
class Options(BatchOptions):
    """What the demo can be asked for."""

    version: str = option(
        "all", "one of stage 0, ZeRO 1, ZeRO 2 and FSDP, or all", among=("all", *STAGES)
    )

    def stages(self) -> dict[str, int]:
        """The versions to run, and the stage of each."""
        return {name: it for name, it in STAGES.items() if self.version in ("all", name)}


def main(options: Options) -> Result:
    """Record every version; every rank returns what it held."""
    rank = launch.init()
    stages = options.stages()
    measured = {name: _measured(stage, options, rank) for name, stage in stages.items()}
    predicted = {name: predict(stage, options, rank.world) for name, stage in stages.items()}
    lines = (
        f"{name:<8} peak {format_bytes(it.peak_bytes):>9}, predicted "
        f"{format_bytes(predicted[name].peak_bytes):>9}"
        for name, it in measured.items()
    )
    return Result(*lines, measured=measured, predicted=predicted)


def predict(stage: int, options: Options, ranks: int) -> StepTimeline:
    """The theory's step: torch's loss, gradients that are thrown away."""
    recipe = replace(
        FP32, gradient_life="backward", loss="eager", update="fused", gradient_as_bucket_view=True
    )
    layout = Layout(dp=ranks, zero_stage=stage, micro_batch=-(-options.batch // ranks))
    job = Job(options.training().shape(), recipe, layout, sequence=options.sequence)
    return step_timeline(job, overhead_bytes=0)


def _measured(stage: int, options: Options, rank: launch.Rank) -> MemoryOverTime:
    """Two updates to come to rest, and the third one recorded."""
    training = options.training()
    version = _version(stage, options, rank)
    *first, last = training.batches(rank.device)[:3]
    for batch in first:
        version.backward(batch)
        version.update()
    gc.collect()
    with record_step(
        _weights(version),
        last,
        lambda: _gradients(version),
        lambda: _states(version),
        buffers=[] if isinstance(version, ScratchZero) else [it.whole for it in version.fsdp.units],
    ) as record:
        record.phase("forward")
        loss = _loss(version, last)
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


def _loss(version: Version, batch: Batch) -> Tensor:
    return loss_share(version.model, own_rows(batch, version.rank), batch)


def _weights(version: Version) -> list[Tensor]:
    if isinstance(version, ScratchZero):
        return [unit.whole for unit in version.zero.units.values()]
    return [it.detach() for it in version.shards]


def _gradients(version: Version) -> list[Tensor]:
    held = list(version.model.parameters())
    found: list[Tensor | None] = []
    if isinstance(version, ScratchZero):
        held += [unit.master for unit in version.zero.units.values()]
        found = [unit.gradient for unit in version.zero.units.values()]
    else:
        held = list(version.shards)
    return [it for it in [*found, *(p.grad for p in held)] if it is not None]


def _states(version: Version) -> list[Tensor]:
    kept = [it for state in version.optimizer.state.values() for it in state.values()]
    return [it for it in kept if isinstance(it, Tensor)]
