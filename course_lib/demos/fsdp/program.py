"""Fully sharded data parallelism: mini-FSDP beside `fully_shard` (FSDP2).

Both train the same GPT as one process: equal losses and gradients, as many collectives and bytes as
the theory says, and 1/n of weights, gradients and optimizer states on each rank.
Run it with `course demo fsdp --ranks 2`, or under torchrun.
"""

from course_lib import launch
from course_lib.demos.fsdp.versions import TOLERANCES, FullyShard, Kind, MiniFSDP, Options
from course_lib.demos.shared.comparison import Comparison
from course_lib.demos.shared.prediction import calls
from course_lib.demos.shared.result import Result
from course_lib.demos.shared.sharding import fsdp, without_memory
from course_lib.trace import Trace


def main(options: Options) -> Result:
    """Train both versions; every rank returns what it did, beside one process and the theory."""
    rank, training = launch.init(), options.training()
    comparison = Comparison(training, clip=options.clip)
    # Clipping sums one norm, and torch's that of each tensor.
    norms = len(list(without_memory(training).parameters()))
    kinds: tuple[tuple[Kind, int], ...] = ((MiniFSDP, 1), (FullyShard, norms))
    padding = []
    for kind, clipped in kinds:
        sharding = fsdp(
            training, rank.world, options.precision, options.reshard, by_tensor=kind is FullyShard
        )
        told = sharding.told()
        if options.clip and rank.world > 1:
            told = Trace([*told, *calls("all-reduce", 1, 4 * clipped)])
        comparison.follow(kind(options, rank), told, sharding.stored(rank.rank))
        padding.append([more for _, _, more in sharding.units().values()])
    note = (
        "padding, in parameters: {} a layer and {} in the root of mini-FSDP, {} and {} of "
        "fully_shard"
    ).format(*padding[0], *padding[1])
    return comparison.result("FSDP", notes=[note], tolerances=TOLERANCES[options.precision])
