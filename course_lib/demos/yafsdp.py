"""YaFSDP's preallocated buffers, and their memory beside FSDP's.

It is equal to one process, as mini-FSDP and `fully_shard` are. Two buffers for weights and two for
gradients are there from the start, so that a step asks for memory far less often. Peak and
allocations are counted over the tensors of one forward and backward pass.
Run it with `course demo yafsdp --ranks 2`, or under torchrun.
"""

import gc
from dataclasses import dataclass

from course_lib import launch
from course_lib.demos.fsdp import prediction, versions
from course_lib.demos.fsdp.versions import FullyShard, Kind, MiniFSDP, Whole, Ya
from course_lib.demos.shared.comparison import Comparison, follow
from course_lib.demos.shared.options import option
from course_lib.demos.shared.training import one_process
from course_lib.measure.peak import log_memory
from course_lib.measure.wire import Total


@dataclass(frozen=True)
class Options(versions.Options):
    """What the demo can be asked for."""

    precision: str = option("fp32", "fp32 or bf16, in which layers are gathered and computed")
    reshard: bool = option(True, "of the two others: free a layer after its forward pass")
    prefetch: bool = option(True, "of the two others: fetch the next layer while one computes")


@dataclass(frozen=True)
class Memory:
    """Tensors of one rank in the forward and backward pass of the third update."""

    name: str
    allocations: int  # storages born, or grown from nothing
    peak_bytes: int
    start_bytes: int  # alive before the pass: shards, optimizer states, buffers
    timeline: list[int]  # bytes after each change


@dataclass(frozen=True)
class Result:
    """YaFSDP against one process and the theory, and the memory of all versions."""

    comparison: Comparison
    memory: list[Memory]

    def allocations(self, name: str) -> int:
        """Allocations of a version beyond those that the model makes by itself."""
        found = {one.name: one.allocations for one in self.memory}
        return found[name] - found[Whole.name]

    def report(self) -> str:
        """The comparison, then one line a version."""
        lines = [self.comparison.report(), "memory of a forward and backward pass:"]
        for one in self.memory:
            lines.append(
                f"  {one.name:<13}{one.allocations:>6} allocations, {self.allocations(one.name):>4}"
                f" for sharding; peak {one.peak_bytes:>11,} B, before it {one.start_bytes:>11,} B"
            )
        return "\n".join(lines)


def main(options: Options) -> Result:
    """Train YaFSDP, and measure it beside the others; every rank returns what it did."""
    rank, training = launch.init(), options.training()
    reference = one_process(training, rank.device, clip=options.clip)
    sent = prediction.yafsdp_sent(training, rank.world, options.precision)
    if options.clip and rank.world > 1:
        sent["all-reduce"] = Total(1, 4)
    stored = prediction.yafsdp_stored(training, rank.world, options.precision)
    version = follow(Ya(options, rank), training, reference, sent, stored)
    loss_tolerance, gradient_tolerance = versions.TOLERANCES[options.precision]
    comparison = Comparison.verified(
        "YaFSDP",
        rank,
        options.model,
        reference,
        [version],
        loss_tolerance=loss_tolerance,
        gradient_tolerance=gradient_tolerance,
    )
    kinds: tuple[Kind, ...] = (Whole, MiniFSDP, Ya, FullyShard)
    return Result(comparison, [measure_memory(kind, options, rank) for kind in kinds])


def measure_memory(kind: Kind, options: Options, rank: launch.Rank) -> Memory:
    """Build a version, train two updates, and follow its tensors through the third's backward."""
    gc.collect()
    batches = options.training().batches(rank.device)
    with log_memory() as log:
        trainee = kind(options, rank)
        for batch in batches[:2]:
            trainee.backward(batch)
            trainee.update()
        mark = log.mark()
        trainee.backward(batches[2])
        found = log.since(mark)
    return Memory(
        trainee.name, found.allocations, found.peak_bytes, found.baseline_bytes, found.timeline
    )
