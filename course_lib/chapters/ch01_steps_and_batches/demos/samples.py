"""Which samples each rank sees: DataLoader and DistributedSampler on a data set of numbers.

Run it with `course demo samples --ranks 2`, or under torchrun.
"""

import itertools
from dataclasses import dataclass
from typing import cast

from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from course_lib import launch
from course_lib.demos.shared.options import DemoOptions, option
from course_lib.demos.shared.ranks import from_all_ranks
from course_lib.demos.shared.result import Result
from course_lib.theory.step.batching import Batching


@dataclass(frozen=True)
class Options(DemoOptions):
    """The demo's options."""

    samples: int = option(10, "samples in the data set", least=1, most=1000)
    batch: int = option(2, "samples per rank and step", least=1, most=1000)
    epochs: int = option(2, "passes over the data set", least=1, most=1000)
    shuffle: bool = option(True, "mix the samples")
    set_epoch: bool = option(True, "tell the sampler which epoch it is")
    drop_last: bool = option(False, "drop ragged tails instead of repeating samples")


class Seen(Result):
    """seen[epoch][rank] is the list of batches, each a list of sample numbers."""

    def by_rank(self, epoch: int) -> list[list[int]]:
        """Sample numbers of one epoch, a flat list for each rank."""
        return [[s for batch in batches for s in batch] for batches in self.seen[epoch]]

    def steps(self, epoch: int = 0) -> int:
        """Number of steps that each rank took in an epoch."""
        return len(self.seen[epoch][0])

    def repeated(self, epoch: int = 0) -> list[int]:
        """Samples seen more than once in an epoch."""
        flat = sorted(s for rank in self.by_rank(epoch) for s in rank)
        return sorted({s for s, after in itertools.pairwise(flat) if s == after})

    def missed(self, epoch: int = 0) -> list[int]:
        """Samples that no rank saw in an epoch."""
        seen = {s for rank in self.by_rank(epoch) for s in rank}
        return [s for s in range(self.samples) if s not in seen]


def main(options: Options) -> Seen:
    """Every rank goes through its share of the data set and prints what it sees."""
    rank = launch.init()
    # Raises ValueError, on all ranks alike, when drop_last would leave no samples.
    Batching(options.samples, options.batch, gpus_per_node=rank.world, drop_last=options.drop_last)
    dataset = cast(Dataset[Tensor], range(options.samples))  # DataLoader turns numbers into tensors
    sampler: DistributedSampler[Tensor] = DistributedSampler(
        dataset, shuffle=options.shuffle, drop_last=options.drop_last
    )
    loader: DataLoader[Tensor] = DataLoader(
        dataset, options.batch, sampler=sampler, drop_last=options.drop_last
    )
    seen = []
    for epoch in range(options.epochs):
        if options.set_epoch:
            sampler.set_epoch(epoch)  # part of the shuffle's seed
        batches = [batch.tolist() for batch in loader]
        if not options.json:
            print(f"epoch {epoch}: {batches}", flush=True)
        seen.append(from_all_ranks(batches))
    result = Seen(samples=options.samples, seen=seen)
    result.said += [
        f"epoch {epoch}: {result.steps(epoch)} steps on each rank, "
        f"repeated {result.repeated(epoch) or 'none'}, missed {result.missed(epoch) or 'none'}"
        for epoch in range(options.epochs)
    ]
    return result
