"""Tensor and sequence parallelism: f and g, parallelize_module, Megatron-core's layers.

A small GPT: all ranks see the whole batch and hold a part of each matrix; `--sequence-parallel`
cuts norms and residuals along the sequence as well.
Run it with `course demo tp --ranks 2`, or under torchrun.
"""

from dataclasses import dataclass

from course_lib import launch
from course_lib.demos.shared.comparison import Comparison, follow
from course_lib.demos.shared.options import BatchOptions, option
from course_lib.demos.shared.prediction import predicted_stored
from course_lib.demos.shared.text import VOCAB
from course_lib.demos.shared.training import one_process
from course_lib.demos.tp import megatron
from course_lib.demos.tp.prediction import scratch_sent, torch_sent, torch_stored
from course_lib.demos.tp.versions import Megatron, Scratch, Torch, own_region
from course_lib.theory.inputs.layout import Layout
from course_lib.validation import choice


@dataclass(frozen=True)
class Options(BatchOptions):
    """What the demo can be asked for."""

    batch: int = option(4, "samples in an update; every rank sees all of them")
    sequence_parallel: bool = option(False, "cut norms and residuals along the sequence")
    library: bool = option(True, "train torch's and Megatron-core's version beside it")
    parts: str = option("course", "whose parts run: course, or mine where they are built")

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("parts", self.parts, ("course", "mine"))

    def layout(self, ranks: int) -> Layout:
        """The same for the theory; raises ValueError if the model cannot be cut like this."""
        layout = Layout(
            tp=ranks,
            micro_batch=self.batch,
            sequence_parallel=self.sequence_parallel,
            keep_gathered=self.sequence_parallel,
        )
        layout.check(self.training().shape(), self.sequence)
        return layout


def main(options: Options) -> Comparison:
    """Train each version; every rank returns what it did, beside one process and the theory."""
    rank, training = launch.init(), options.training()
    layout = options.layout(rank.world)
    region = own_region(options.parts, options.sequence_parallel)
    reference = one_process(training, rank.device)
    sent, stored = scratch_sent(training, layout), predicted_stored(training, layout)
    ours = Scratch(training, region, rank.device, options.parts)
    versions, notes = [follow(ours, training, reference, sent, stored)], []
    if options.library:
        theirs = Torch(training, rank, options.sequence_parallel)
        torch_kept = torch_stored(training, layout, rank.rank)
        predicted = torch_sent(training, layout), torch_kept
        versions.append(follow(theirs, training, reference, *predicted))
        reason = megatron.missing(options.sequence_parallel, VOCAB, rank.world)
        if reason:
            notes.append(f"  {Megatron.name}: {reason}")
        else:
            trainee = Megatron(training, region, rank.device)
            versions.append(follow(trainee, training, reference, sent, stored))
    return Comparison.verified(
        "tensor parallelism" + (" with sequence parallelism" if options.sequence_parallel else ""),
        rank,
        training.model,
        reference,
        versions,
        notes=notes,
    )
