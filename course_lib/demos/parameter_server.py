"""Parameter server: a large table on one rank, in step or not, beside an all-reduced one.

Each update uses few rows of the table, which lies on one rank. The model
predicts the next character: each n-gram before it has a row of scores in the table, and the rows
add up. Rank 0 serves, all others train. Beside it: the whole table on every rank, its gradient
all-reduced by DistributedDataParallel; and trainers that do not wait for each other.
Run it with `course demo parameter_server --ranks 2`, or under torchrun.
"""

import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy, embedding
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.demos.shared.batch import Batch, loss_share, mean_loss, own_rows, rows_of
from course_lib.demos.shared.comparison import Comparison, Version, follow
from course_lib.demos.shared.options import option
from course_lib.demos.shared.ranks import from_rank
from course_lib.demos.shared.tables import TableOptions, TableTraining, ngrams
from course_lib.demos.shared.text import VOCAB
from course_lib.demos.shared.trainee import Trainee
from course_lib.demos.shared.training import OneProcess, one_process
from course_lib.measure.wire import Total
from course_lib.scratch.parameter_server import ParameterServer, RemoteTable
from course_lib.theory.network.sparse import RowExchange, dense_over_sparse
from course_lib.validation import number

SERVER = 0


@dataclass(frozen=True)
class Options(TableOptions):
    """What the demo can be asked for."""

    steps: int = option(20, "updates")
    batch: int = option(4, "samples of all trainers in one update")
    learning_rate: float = option(20.0, "SGD's learning rate")
    slow_ms: float = option(0.0, "pause of the last trainer in each asynchronous update")

    def __post_init__(self) -> None:
        number("slow_ms", self.slow_ms, least=0)
        super().__post_init__()

    def training(self) -> TableTraining:
        """What is trained."""
        return self.fill(TableTraining)


@dataclass(frozen=True)
class Result(Comparison):
    """A comparison, with bytes per trainer, and what asynchronous training did.

    `exchanged_bytes`: what each trainer sends and receives in the last update. `all_reduced_bytes`:
    what a rank sends where the table is on all ranks. `staleness[k]`: gradients that were applied k
    updates late. `asynchronous_loss`: of the last batch, with the last table.
    """

    exchanged_bytes: list[int] = field(default_factory=list)
    all_reduced_bytes: float = 0.0
    staleness: list[int] = field(default_factory=list)
    asynchronous_loss: float = 0.0


class Served(Trainee):
    """The technique of scratch.parameter_server, on the server and on the trainers."""

    name = "parameter server"

    def __init__(self, training: TableTraining, rank: launch.Rank) -> None:
        model = training.build()
        super().__init__(model, training.optimizer(model.parameters()))
        self.training, self.rank = training, rank
        # The table is in the host's memory, so messages go by gloo, on GPU machines as well.
        self.group = dist.new_group(backend="gloo")
        table = model.table.weight.detach()
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
        """Serve all trainers once, or train on this trainer's part."""
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
        assert self.rows.grad is not None  # of the backward pass just made
        self.remote.push(self.rows.grad)
        return loss.detach()

    def gradients(self) -> dict[str, Tensor]:
        """The table's gradient, as the server has added it up."""
        dist.broadcast(self.whole, SERVER, group=self.group)
        return {"table.weight": self.whole}

    def update(self) -> None:
        """Nothing: the server has done it already."""

    def stored(self) -> dict[str, int]:
        """Bytes of the table on the server, of the rows in use on a trainer."""
        return {"rows": (self.server.table if self.serves else self.rows).nbytes}


class AllReduced(Trainee):
    """The whole table on every rank, each of which trains; DDP sums its dense gradient."""

    name = "torch: dense table, DDP"

    def __init__(self, training: TableTraining, rank: launch.Rank) -> None:
        self.rank, self.table = rank, training.build(rank.device)
        super().__init__(self.table, training.optimizer(self.table.parameters()))
        self.ddp = DistributedDataParallel(self.table)

    def backward(self, batch: Batch) -> Tensor:
        """DDP on this rank's rows."""
        loss = loss_share(self.ddp, own_rows(batch, self.rank), batch)
        (loss * self.rank.world).backward()  # DDP takes the mean, the sum of shares is wanted
        return loss

    def stored(self) -> dict[str, int]:
        """Bytes of the whole table."""
        return {"rows": self.table.table.weight.nbytes}


@dataclass(frozen=True)
class Asynchronous:
    """Training without waiting: gradients by the updates that they were late, and the last loss."""

    staleness: list[int]
    loss: float


def main(options: Options) -> Result:
    """Train served, all-reduced, alone, and asynchronously; every rank returns its own counts."""
    rank, training = launch.init(), options.training()
    if rank.world < 2:
        raise ValueError("ranks 1 leaves no trainer beside the server: take at least 2")
    own_rows(training.batches()[0], rank)  # refuses fewer samples than ranks, on every rank alike
    reference = one_process(training, rank.device)
    exchanges = _exchanges(training, rank.world)
    served = _served(training, rank, reference, exchanges)
    table_bytes = training.size[0] * VOCAB * 4
    sent, stored = {"all-reduce": Total(1, table_bytes)}, {"rows": table_bytes}
    all_reduced = follow(AllReduced(training, rank), training, reference, sent, stored)
    late = _asynchronous(training, rank, options.slow_ms)
    ratio = dense_over_sparse(exchanges[0], training.size[0], rank.world)
    all_reduced_bytes = ratio * exchanges[0].total_bytes
    return Result.verified(
        "parameter server",
        rank,
        options.model,
        reference,
        [served, all_reduced],
        notes=_notes(exchanges, all_reduced_bytes, late, training),
        exchanged_bytes=[exchange.total_bytes for exchange in exchanges],
        all_reduced_bytes=all_reduced_bytes,
        staleness=late.staleness,
        asynchronous_loss=late.loss,
    )


def _served(
    training: TableTraining,
    rank: launch.Rank,
    reference: OneProcess,
    exchanges: list[RowExchange],
) -> Version:
    """The parameter server, in step, beside what it must send and store."""
    trainee = Served(training, rank)
    if trainee.serves:
        pulled = sum(exchange.pulled_bytes for exchange in exchanges)
        sent, rows = Total(len(exchanges), pulled), training.size[0] * VOCAB * 4
    else:  # two requests of two messages each
        own = exchanges[rank.rank - 1]
        sent, rows = Total(4, own.pushed_bytes), own.pulled_bytes
    return follow(trainee, training, reference, {"send-recv": sent}, {"rows": rows})


def part_of(batch: Batch, rank: launch.Rank) -> Batch:
    """The samples of this trainer: rank 1 has the first ones."""
    return rows_of(batch, rank.rank - 1, rank.world - 1)


def _exchanges(training: TableTraining, ranks: int) -> list[RowExchange]:
    """What each trainer exchanges in the last update, from the text alone."""
    inputs, _ = training.batches()[-1]
    parts = inputs.tensor_split(ranks - 1)
    counts = [len(ngrams(part, *training.size).unique()) for part in parts]
    return [RowExchange(count, VOCAB) for count in counts]


def _asynchronous(training: TableTraining, rank: launch.Rank, slow_ms: float) -> Asynchronous:
    """Train without waiting for the other trainers."""
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
    loss = float(mean_loss(model, batches[-1]).detach())
    return from_rank(SERVER, Asynchronous(counts, loss), served.group)


def _notes(
    exchanges: list[RowExchange],
    all_reduced_bytes: float,
    asynchronous: Asynchronous,
    training: TableTraining,
) -> list[str]:
    """Bytes beside the all-reduce, and staleness."""
    rows = [exchange.rows for exchange in exchanges]
    sizes = [exchange.total_bytes for exchange in exchanges]
    least = min(all_reduced_bytes / size for size in sizes)
    late = ", ".join(f"{count} by {k}" for k, count in enumerate(asynchronous.staleness))
    return [
        f"  rows that each trainer used: {rows} of {training.size[0]:,}; it exchanged "
        f"{sizes} B, in all {sum(sizes):,} B through the server",
        f"  an all-reduce of the table: {all_reduced_bytes:,.0f} B sent by each rank, "
        f"{least:.1f} times as much as a trainer's exchange",
        f"  asynchronous: gradients late by so many updates: {late}; "
        f"loss of the last batch {asynchronous.loss:.3f}",
    ]
