"""Tensor and sequence parallelism: f and g, parallelize_module, Megatron-core's layers.

A small GPT: all ranks see the whole batch and hold a part of each matrix; `--sequence-parallel`
cuts norms and residuals along the sequence as well.
Run it with `course demo tp --ranks 2`, or under torchrun.
"""

from dataclasses import dataclass

from torch.distributed.device_mesh import init_device_mesh

from course_lib import launch
from course_lib.demos.shared.comparison import Comparison
from course_lib.demos.shared.options import BatchOptions, option, whose_parts
from course_lib.demos.shared.prediction import besides, predicted_stored, told, traffic
from course_lib.demos.shared.result import Result
from course_lib.demos.shared.text import VOCAB
from course_lib.demos.tp import megatron, torch_tp
from course_lib.demos.tp.versions import Megatron, Scratch, Torch, own_region
from course_lib.theory.inputs.layout import Layout
from course_lib.trace import Trace


@dataclass(frozen=True)
class Options(BatchOptions):
    """What the demo can be asked for."""

    batch: int = option(4, "samples in an update; every rank sees all of them")
    sequence_parallel: bool = option(False, "cut norms and residuals along the sequence")
    library: bool = option(True, "train torch's and Megatron-core's version beside it")
    parts: str = whose_parts()

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

    def told(self, layout: Layout, ours: str = "", torchs: str = "") -> Trace:
        """The theory's calls, and those besides; `torchs` without sequence parallelism."""
        training = self.training()
        by_theory = told(traffic(training, layout), "tp")
        if layout.tp == 1:
            return by_theory
        where = ours if self.sequence_parallel else torchs
        return Trace([*by_theory, *besides(where, training, layout)])

    def torch_stored(self, layout: Layout, rank: int) -> dict[str, int]:
        """States of a rank under torch, which does not round the vocabulary up.

        Its last ranks have fewer words, and rows of padding in their weights only.
        """
        training = self.training()
        stored, words = predicted_stored(training, layout), -(-VOCAB // layout.tp)
        missing = min(words, max(0, (rank + 1) * words - VOCAB)) * training.size[1]
        stored["gradients"] -= 4 * missing
        stored["optimizer"] -= 8 * missing
        return stored


def main(options: Options) -> Result:
    """Train each version; every rank returns what it did, beside one process and the theory."""
    rank, training = launch.init(), options.training()
    layout = options.layout(rank.world)
    region = own_region(options.parts, options.sequence_parallel)
    comparison = Comparison(training)
    sent = options.told(layout, ours="scratch, sequence parallelism")
    stored = predicted_stored(training, layout)
    ours = Scratch(training, region, rank.device, options.parts)
    comparison.follow(ours, sent, stored)
    notes = []
    if options.library:
        mesh, model = init_device_mesh(rank.device.type, (rank.world,)), training.build(rank.device)
        torch_tp.parallelize(model, mesh, options.sequence_parallel)
        theirs = Torch(model, training, rank.world)
        torchs = options.told(
            layout, "torch, sequence parallelism", torchs="torch, separate q, k and v"
        )
        kept = options.torch_stored(layout, rank.rank)
        comparison.follow(theirs, torchs, kept)
        reason = megatron.missing(options.sequence_parallel, VOCAB, rank.world)
        if reason:
            notes.append(f"  {Megatron.name}: {reason}")
        else:
            comparison.follow(Megatron(training, region, rank.device), sent, stored)
    technique = "tensor parallelism"
    technique += " with sequence parallelism" * options.sequence_parallel
    return comparison.result(technique, notes=notes)
