"""Local SGD: ranks train alone, and average their weights after every few updates.

With an average after each update it is data parallelism, equal to one process. With fewer averages
it sends less, and is another algorithm.
Run it with `course demo local_sgd --ranks 2`, or under torchrun.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib import launch
from course_lib.chapters.ch14_parameter_servers.exchanges import averaged_bytes
from course_lib.demos.shared.comparison import Comparison, sum_over_ranks
from course_lib.demos.shared.options import BatchOptions, option
from course_lib.demos.shared.prediction import calls
from course_lib.demos.shared.result import Fact, Result
from course_lib.demos.shared.trainee import OnOwnRows
from course_lib.demos.shared.training import Training, own_rows
from course_lib.measure.wire import log_wire
from course_lib.scratch.data_parallel import LocalSGD
from course_lib.trace import Total, Trace
from course_lib.validation import whole


@dataclass(frozen=True)
class Options(BatchOptions):
    """The options of the demo."""

    steps: int = option(24, "optimizer updates")
    learning_rate: float = option(0.3, "SGD's learning rate")
    every: int = option(8, "updates between two averages of the weights")

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("every", self.every, most=self.steps)

    def training(self) -> "PlainTraining":
        """The training run of these options."""
        return self.fill(PlainTraining)


@dataclass(frozen=True)
class PlainTraining(Training):
    """A training run with plain SGD, which has no state that could differ between ranks."""

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """SGD without momentum."""
        return torch.optim.SGD(parameters, lr=self.learning_rate)


class Local(OnOwnRows):
    """scratch.data_parallel's LocalSGD; averaging weights each update averages gradients too."""

    name = "average after each update"

    def __init__(self, training: PlainTraining, rank: launch.Rank, every: int) -> None:
        model = training.build(rank.device)
        super().__init__(model, training.optimizer(model.parameters()), model)
        self.rank, self.local = rank, LocalSGD(model, self.optimizer, every)

    def gradients(self) -> Mapping[str, Tensor]:
        """The mean gradient over ranks, to which averaging the weights is equivalent."""
        whole = {name: gradient.clone() for name, gradient in super().gradients().items()}
        for gradient in whole.values():
            dist.all_reduce(gradient)
        return {name: gradient / self.rank.world for name, gradient in whole.items()}

    def update(self) -> None:
        """An optimizer step, followed by an average when one is due."""
        self.local.step()

    def stored(self) -> dict[str, int]:
        """Empty: a rank stores what one process does."""
        return {}


def main(options: Options) -> Result:
    """Train with an average after each update, then with fewer; every rank returns the same.

    The result has the `losses` with `every` updates between averages, averaged over ranks, and
    `sent`: the all-reduces of that whole run and their bytes.
    """
    rank, training, every = launch.init(), options.training(), options.every
    own_rows(training.batches()[0], rank)  # raises on every rank if samples are too few
    comparison = Comparison(training)
    size = sum(p.nbytes for p in training.build().parameters())
    several = rank.world > 1
    one_average = Trace(calls("all-reduce", int(several), size))
    comparison.follow(Local(training, rank, 1), one_average)
    losses, sent = _rarely(training, rank, every)
    averages = training.steps // every if several else 0
    bytes_each, bytes_rarely = (averaged_bytes(size, rank.world, k) for k in (1, every))
    last = comparison.one_process.losses[-1]
    return comparison.result(
        "local SGD",
        notes=[
            f"  average after {every} updates: {sent.calls} x all-reduce, {sent.size_bytes:,} B in "
            f"{len(losses)} updates, as predicted",
            f"    a rank sends {bytes_rarely:,.0f} B an update, where an average each time sends "
            f"{bytes_each:,.0f}",
            f"    loss of the last update {losses[-1]:.3f}, one process {last:.3f}",
        ],
        facts=[Fact("all-reduces", sent, Total(averages, averages * size))],
        every=every,
        losses=losses,
        sent=sent,
    )


def _rarely(training: PlainTraining, rank: launch.Rank, every: int) -> tuple[list[float], Total]:
    """Losses with an average after `every` updates, and the all-reduces of that run."""
    trainee, shares = Local(training, rank, every), []
    with log_wire() as log:
        for batch in training.batches(rank.device):
            shares.append(trainee.backward(batch))
            trainee.update()
    return [sum_over_ranks(share) for share in shares], log.sent().get("all-reduce", Total(0, 0))
