"""torch.compile, counted: graphs, what breaks them, and what a new batch size makes of them.

Graphs are counted and run by Python as they are: neither Inductor nor a C++ compiler is needed, and
no time is measured. A small GPT in DDP is compiled as well; its losses are those of one process.
Run it with `course demo compile --ranks 2`, or under torchrun.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.demos.shared.comparison import LOSS_TOLERANCE, sum_over_ranks
from course_lib.demos.shared.options import BatchOptions, option
from course_lib.demos.shared.result import Fact, Result, loss_gaps
from course_lib.demos.shared.training import mean_loss, one_process, own_rows
from course_lib.measure.gradients import breaks, log_graphs
from course_lib.measure.wire import log_wire

SIZES = (4, 4, 8, 16, 1)  # batch sizes of successive calls


@dataclass(frozen=True)
class Options(BatchOptions):
    """The options of the demo."""

    steps: int = option(4, "optimizer updates")
    model: str = option("4x128x8", "tiny, small, medium, gpt2 or LAYERSxHIDDENxHEADS")
    sequence: int = option(16, "characters in a sample")
    # torch asserts that the first bucket, 1 MiB, is not larger than the others.
    bucket_mb: float = option(1.0, "size of DDP's buckets, in MiB; the first has 1 MiB", least=1)


def straight(layer: nn.Module, x: Tensor) -> Tensor:
    """Only tensor operators: no graph break."""
    return (2 * torch.relu(layer(x))).mean()


def prints(layer: nn.Module, x: Tensor) -> Tensor:
    """A side effect between two operators, which breaks the graph."""
    y = torch.relu(layer(x))
    print(end="")
    return (2 * y).mean()


def asks_for_a_number(layer: nn.Module, x: Tensor) -> Tensor:
    """Converts a tensor to a Python number, whose value is known only after the graph has run."""
    y = torch.relu(layer(x))
    largest = y.max().item()
    return (2 * y).mean() / (1 + largest)


def depends_on_data(layer: nn.Module, x: Tensor) -> Tensor:
    """A branch that depends on a tensor's value."""
    y = torch.relu(layer(x))
    if y.sum() > 0:
        y = 2 * y
    return y.mean()


FUNCTIONS = (straight, prints, asks_for_a_number, depends_on_data)


@dataclass(frozen=True)
class Counted:
    """A function: graphs of its first call, its graph breaks, and new graphs of each call."""

    name: str
    graphs: int
    broken_at: list[str]
    new_graphs: list[int]  # one entry per call, in the order of SIZES

    def line(self) -> str:
        """The counts in one line of text."""
        why = f", broken at `{'`, `'.join(self.broken_at)}`" if self.broken_at else ""
        calls = ", ".join(str(number) for number in self.new_graphs)
        return f"  {self.name:<18} {_graphs(self.graphs)}{why}; new graphs by call: {calls}"


def _graphs(count: int) -> str:
    return f"{count} graph" + "s" * (count > 1)


def _with_operators(operators: list[int]) -> str:
    return f"{_graphs(len(operators))} of {' + '.join(map(str, operators))} operators"


def main(options: Options) -> Result:
    """Count graphs on every rank; reports rank 0's counts, and the losses over all ranks."""
    rank, training = launch.init(), options.training()
    functions = [counted(function) for function in FUNCTIONS]
    batches = training.batches(rank.device)
    with log_graphs() as alone:
        model = training.build(rank.device)
        model.compile(backend=alone.backend)
        mean_loss(model, own_rows(batches[0], rank))
    with log_graphs() as log:
        model = training.build(rank.device)
        ddp = DistributedDataParallel(model, bucket_cap_mb=options.bucket_mb)
        ddp.compile(backend=log.backend)
        optimizer = training.optimizer(model.parameters())
        losses, new_graphs = [], []
        for batch in batches:
            before = len(log.operators)
            loss = mean_loss(ddp, own_rows(batch, rank))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(sum_over_ranks(loss) / rank.world)
            new_graphs.append(len(log.operators) - before)
    with log_wire() as wire:  # it intercepts operators, so this pass does not run compiled code
        mean_loss(ddp, own_rows(batches[-1], rank)).backward()
    one = one_process(training, rank.device).losses
    all_reduces = wire.sent().get("all-reduce", (0, 0))[0]  # calls in one update: one per bucket
    return Result(
        f"functions, called with {', '.join(map(str, SIZES))} samples:",
        *(one.line() for one in functions),
        f"the GPT alone: {_with_operators(alone.operators)}",
        f"the GPT in DDP on {rank.world} ranks: {_with_operators(log.operators)}; "
        f"all-reduces of an update: {all_reduces}",
        f"new graphs by update: {', '.join(map(str, new_graphs))}; losses off by "
        f"{max(loss_gaps(losses, one)):.0e} from one process that compiles nothing",
        facts=[
            Fact("the compiled GPT in DDP: the loss", losses, one, tolerance=LOSS_TOLERANCE),
            Fact("graphs that are made again", sum(new_graphs[1:]), 0),
            *(Fact(f"graphs of {f.name}", f.graphs, len(f.broken_at) + 1) for f in functions),
        ],
        ranks=rank.world,
        functions=functions,
        model_graphs=alone.operators,  # operators of each graph of the GPT alone
        ddp_graphs=log.operators,  # operators of each graph of the GPT in DDP
        ddp_new_graphs=new_graphs,  # new graphs of each update
        all_reduces=all_reduces,
        losses=losses,
        losses_one_process=one,
    )


def counted(function: Callable[[nn.Module, Tensor], Tensor]) -> Counted:
    """Count the graphs that torch.compile makes of one function."""
    layer, samples = nn.Linear(8, 8), {size: torch.rand(size, 8) for size in SIZES}
    with log_graphs() as log:
        compiled = torch.compile(function, backend=log.backend)
        new = [log.new_graphs(partial(compiled, layer, samples[size])) for size in SIZES]
    graph_breaks = breaks(function, layer, samples[SIZES[0]])
    return Counted(function.__name__, new[0], [one.line for one in graph_breaks], new)
