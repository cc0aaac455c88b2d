"""A parameter server: a large table of which an update uses few rows, on one rank.

The model predicts the next character: each n-gram before it has a row of scores in the table, and
the rows add up. Rank 0 serves, all others train. Beside it: the whole table on every rank, its
gradient all-reduced by DistributedDataParallel; and trainers that do not wait for each other.
Run it with `course demo parameter_server --ranks 2`, or under torchrun.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy, embedding
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.demos.parts.command import option, run_as_program
from course_lib.demos.parts.command import parse as parse_options
from course_lib.demos.parts.tables import TableTraining, ngrams
from course_lib.demos.parts.training import Batch, mean_loss, one_process
from course_lib.demos.parts.versions import Comparison, Sent, follow
from course_lib.demos.text import VOCAB
from course_lib.scratch.parameter_server import ParameterServer, RemoteTable
from course_lib.theory.network.sparse import RowExchange, dense_over_sparse
from course_lib.validation import flag, number

SERVER = 0


@dataclass(frozen=True)
class Options:
    """What the demo can be asked for."""

    steps: int = option(20, "updates")
    model: str = option("8192x3", "ROWSxORDER: rows of the table, characters in the longest n-gram")
    batch: int = option(4, "samples of all trainers in one update")
    sequence: int = option(32, "characters in a sample")
    learning_rate: float = option(20.0, "SGD's learning rate")
    slow_ms: float = option(0.0, "pause of the last trainer in each asynchronous update")
    seed: int = option(0, "seed of the weights")
    json: bool = option(False, "print the result as JSON")

    def __post_init__(self) -> None:
        number("slow_ms", self.slow_ms, least=0)
        flag("json", self.json)
        self.training()

    def training(self) -> TableTraining:
        """The training run that these options describe."""
        return TableTraining(
            self.model, self.steps, self.batch, self.sequence, self.learning_rate, self.seed
        )


@dataclass(frozen=True)
class Result(Comparison):
    """A comparison, with bytes per trainer, and what asynchronous training did.

    `exchanged_bytes` of the trainers in the last update, there and back; `all_reduced_bytes` that
    a rank sends where the table is on all ranks. `staleness[k]`: gradients that were applied k
    updates late. `asynchronous_loss`: of the first and the last batch with the last table.
    """

    exchanged_bytes: list[int] = field(default_factory=list)
    all_reduced_bytes: float = 0.0
    staleness: list[int] = field(default_factory=list)
    asynchronous_loss: float = 0.0


class Served:
    """The technique of scratch.parameter_server, on the server and on the trainers."""

    name = "parameter server"

    def __init__(self, training: TableTraining, rank: launch.Rank) -> None:
        self.training, self.rank = training, rank
        # The table is in the host's memory, so messages go by gloo, on GPU machines as well.
        self.group = dist.new_group(backend="gloo")
        table = training.build().table.weight.detach()
        trainers = [other for other in range(rank.world) if other != SERVER]
        self.server = ParameterServer(table, training.learning_rate, trainers, self.group)
        self.remote = RemoteTable(VOCAB, SERVER, self.group)
        self.whole = torch.zeros_like(table)
        self.rows = torch.empty(0, VOCAB)

    @property
    def serves(self) -> bool:
        """Whether this rank is the server."""
        return self.rank.rank == SERVER

    def backward(self, batch: Batch) -> Tensor:
        if self.serves:
            self.whole = self.server.serve_together()
            return torch.zeros((), device=self.rank.device)
        return self.train(batch).to(self.rank.device)

    def train(self, batch: Batch) -> Tensor:
        """One pull and one push of this trainer's part; returns its share of the loss."""
        inputs, labels = part_of(batch, self.rank)
        ids = ngrams(inputs.cpu(), *self.training.size)
        different, places = ids.unique(return_inverse=True)
        self.rows = self.remote.pull(different).requires_grad_()
        logits = embedding(places, self.rows).sum(-2)
        total = cross_entropy(logits.flatten(0, 1), labels.cpu().flatten(), reduction="sum")
        loss = total / batch[1].numel()
        loss.backward()
        self.remote.push(self.rows.grad)
        return loss.detach()

    def gradients(self) -> dict[str, Tensor]:
        dist.broadcast(self.whole, SERVER, group=self.group)
        return {"table.weight": self.whole}

    def update(self) -> None:
        """Nothing: the server has done it already."""

    def stored(self) -> dict[str, int]:
        return {"rows": (self.server.table if self.serves else self.rows).nbytes}


class AllReduced:
    """The whole table on every rank, each of which trains; DDP sums its dense gradient."""

    name = "torch: dense table, DDP"

    def __init__(self, training: TableTraining, rank: launch.Rank) -> None:
        self.rank, self.model = rank, training.build(rank.device)
        self.ddp = DistributedDataParallel(self.model)
        self.optimizer = training.optimizer(list(self.model.parameters()))

    def backward(self, batch: Batch) -> Tensor:
        inputs, labels = (part.tensor_split(self.rank.world)[self.rank.rank] for part in batch)
        loss = mean_loss(self.ddp, (inputs, labels)) * len(inputs) / len(batch[0])
        (loss * self.rank.world).backward()  # DDP takes the mean, the sum of shares is wanted
        return loss

    def gradients(self) -> dict[str, Tensor]:
        return {name: p.grad for name, p in self.model.named_parameters()}

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def stored(self) -> dict[str, int]:
        return {"rows": self.model.table.weight.nbytes}


def main(options: Options) -> Result:
    """Train served, all-reduced, alone, and asynchronously; every rank returns its own counts."""
    rank = launch.init()
    training = options.training()
    if rank.world < 2:
        raise ValueError("ranks 1 leaves no trainer beside the server: take at least 2")
    if options.batch < rank.world:
        raise ValueError(
            f"batch {options.batch} leaves a rank of {rank.world} without a sample: "
            f"take at least {rank.world}"
        )
    reference = one_process(training, rank.device)
    exchanges = _exchanges(training, rank.world)
    table_bytes = training.size[0] * VOCAB * 4
    served = Served(training, rank)
    rows = table_bytes if served.serves else exchanges[rank.rank - 1].pulled_bytes
    versions = [
        follow(
            served,
            training,
            reference,
            _sent(exchanges, rank.rank),
            {"rows": rows},
        ),
        follow(
            AllReduced(training, rank),
            training,
            reference,
            {"all-reduce": [1, table_bytes]},
            {"rows": table_bytes},
        ),
    ]
    staleness, loss = _asynchronous(training, rank, options.slow_ms)
    ratio = dense_over_sparse(exchanges[0], training.size[0], rank.world)
    result = Result.verified(
        "parameter server",
        rank,
        options.model,
        reference,
        versions,
        exchanged_bytes=[exchange.total_bytes for exchange in exchanges],
        all_reduced_bytes=ratio * exchanges[0].total_bytes,
        staleness=staleness,
        asynchronous_loss=loss,
    )
    return replace(result, notes=_notes(result, exchanges, training))


def part_of(batch: Batch, rank: launch.Rank) -> Batch:
    """The samples of this trainer: rank 1 has the first ones."""
    inputs, labels = (part.tensor_split(rank.world - 1)[rank.rank - 1] for part in batch)
    return inputs, labels


def _exchanges(training: TableTraining, ranks: int) -> list[RowExchange]:
    """What each trainer exchanges in the last update, from the text alone."""
    inputs, _ = training.batches()[-1]
    parts = inputs.tensor_split(ranks - 1)
    counts = [len(ngrams(part, *training.size).unique()) for part in parts]
    return [RowExchange(count, VOCAB) for count in counts]


def _sent(exchanges: list[RowExchange], rank: int) -> Sent:
    """Messages of the last update: rows to each trainer, or two requests of two messages each."""
    if rank == SERVER:
        return {"send-recv": [len(exchanges), sum(one.pulled_bytes for one in exchanges)]}
    return {"send-recv": [4, exchanges[rank - 1].pushed_bytes]}


def _asynchronous(
    training: TableTraining, rank: launch.Rank, slow_ms: float
) -> tuple[list[int], float]:
    """Train without waiting: how late gradients were, and the loss of the last batch afterwards."""
    served = Served(training, rank)
    batches = training.batches()
    if served.serves:
        served.server.serve_as_they_come()
    else:
        for batch in batches:
            served.train(batch)
            if rank.rank == rank.world - 1:
                time.sleep(slow_ms / 1000)
        served.remote.stop()
    late = served.server.staleness
    counts = [late.count(updates) for updates in range(max(late, default=0) + 1)]
    model = training.build()
    model.table.weight.data = served.server.table
    found = [counts, float(mean_loss(model, batches[-1]).detach())]
    dist.broadcast_object_list(found, SERVER, group=served.group)
    return found[0], found[1]


def _notes(result: Result, exchanges: list[RowExchange], training: TableTraining) -> list[str]:
    """Bytes beside the all-reduce, and staleness."""
    rows = [exchange.rows for exchange in exchanges]
    ratios = [result.all_reduced_bytes / size for size in result.exchanged_bytes]
    late = ", ".join(f"{count} by {k}" for k, count in enumerate(result.staleness))
    return [
        f"  rows that each trainer used: {rows} of {training.size[0]:,}; it exchanged "
        f"{result.exchanged_bytes} B, in all {sum(result.exchanged_bytes):,} B through the server",
        f"  an all-reduce of the table: {result.all_reduced_bytes:,.0f} B sent by each rank, "
        f"{min(ratios):.1f} times as much as a trainer's exchange",
        f"  asynchronous: gradients late by so many updates: {late}; "
        f"loss of the last batch {result.asynchronous_loss:.3f}",
    ]


def parse(argv: Sequence[str] | None = None) -> Options:
    """Options from command-line arguments."""
    return parse_options(Options, argv, __doc__)


if __name__ == "__main__":
    run_as_program(main, parse())
