"""Parameter server: a large table on other ranks, in step or not, beside an all-reduced one.

Each update uses few rows of the table. The model predicts the next character: each n-gram before
it has a row of scores in the table, and the rows add up. The first ranks serve, all others train.
Beside it: the whole table on every rank, its gradient all-reduced by DistributedDataParallel; and
trainers that do not wait for each other, the last of them as slow as you like.
Run it with `course demo parameter_server --ranks 2`, or under torchrun.
"""

import time
from collections import Counter
from dataclasses import dataclass
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch, mine
from course_lib.chapters.ch14_parameter_servers.exchanges import RowExchange, mean_staleness
from course_lib.chapters.ch14_parameter_servers.tables import (
    TableOptions,
    TableTraining,
    ngrams,
)
from course_lib.demos.shared.comparison import Comparison
from course_lib.demos.shared.options import option, whose_parts, with_yours
from course_lib.demos.shared.prediction import calls
from course_lib.demos.shared.ranks import from_rank
from course_lib.demos.shared.result import Result
from course_lib.demos.shared.text import VOCAB
from course_lib.demos.shared.trainee import OnOwnRows, Trainee
from course_lib.demos.shared.training import Batch, mean_loss, rows_of
from course_lib.scratch.parameter_server import Messages
from course_lib.theory.network.collectives import sent_bytes
from course_lib.trace import SEND, Trace
from course_lib.validation import whole


@dataclass(frozen=True)
class Options(TableOptions):
    """The options of the demo."""

    steps: int = option(20, "updates")
    batch: int = option(4, "samples of all trainers in one update")
    learning_rate: float = option(20.0, "SGD's learning rate")
    servers: int = option(
        1, "ranks that serve: row i lies on server i mod servers", least=1, most=1000
    )
    pause_ms: float = option(
        0.0,
        "how long a trainer computes in each asynchronous update, as a pause",
        least=0,
        most=10_000,
    )
    slow: int = option(1, "times as long for the last trainer, which makes as many times fewer")
    parts: str = whose_parts()

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("slow", self.slow, most=self.steps)

    def training(self) -> TableTraining:
        """The training run of these options."""
        return self.fill(TableTraining)


class Served(Trainee):
    """Training with scratch.parameter_server, on a server or a trainer."""

    def __init__(
        self, training: TableTraining, rank: launch.Rank, servers: int, parts: str
    ) -> None:
        model = training.build()
        self.name = "parameter server" + with_yours(parts, "RemoteTable", "ParameterServer")
        super().__init__(model, training.optimizer(model.parameters()))
        self.training, self.rank, self.servers = training, rank, servers
        self.serves = rank.rank < servers
        # The table is in host memory, so messages use gloo, on GPU machines as well.
        self.group = dist.new_group(backend="gloo")
        messages = Messages(self.group)
        own = model.table.weight.detach()[rank.rank :: servers].clone()
        trainers = range(servers, rank.world)
        self.server = mine.get("ParameterServer", parts)(
            own, training.learning_rate, trainers, messages
        )
        self.remote = mine.get("RemoteTable", parts)(VOCAB, range(servers), messages)
        self.whole = torch.zeros_like(own)
        self.rows = torch.empty(0, VOCAB)

    def backward(self, batch: Batch) -> Tensor:
        """On a server serve all trainers once, on a trainer train on its part of the batch."""
        if self.serves:
            self.whole = self.server.serve_together()
            return torch.zeros((), device=self.rank.device)
        return self.train(batch).to(self.rank.device)

    def train(self, batch: Batch, pause_s: float = 0.0) -> Tensor:
        """Pull this trainer's rows and push their gradient; returns its share of the loss."""
        trainers = self.rank.world - self.servers
        inputs, labels = rows_of(batch, self.rank.rank - self.servers, trainers)
        ids = ngrams(inputs.cpu(), *self.training.size)
        self.rows = self.remote.pull(ids).requires_grad_()
        time.sleep(pause_s)
        logits = self.rows.sum(-2)
        total = cross_entropy(logits.flatten(0, 1), labels.cpu().flatten(), reduction="sum")
        loss = total / batch[1].numel()
        loss.backward()
        assert self.rows.grad is not None  # set by the backward pass
        self.remote.push(self.rows.grad)
        return loss.detach()

    def gradients(self) -> dict[str, Tensor]:
        """The table's gradient, summed by the servers."""
        return {"table.weight": self.of_all_servers(self.whole)}

    def of_all_servers(self, own: Tensor) -> Tensor:
        """The whole table's rows, from each server's `own` rows; all ranks must call this."""
        table = torch.empty(self.training.size[0], VOCAB)
        for server in range(self.servers):
            table[server :: self.servers] = from_rank(server, own, self.group)
        return table

    def update(self) -> None:
        """Do nothing: the servers have already updated the table."""

    def stored(self) -> dict[str, int]:
        """Bytes of a server's part of the table, or of a trainer's pulled rows."""
        return {"rows": (self.server.table if self.serves else self.rows).nbytes}


class AllReduced(OnOwnRows):
    """The whole table on every rank, all of which train; DDP reduces its dense gradient."""

    name = "torch: dense table, DDP"

    def __init__(self, training: TableTraining, rank: launch.Rank) -> None:
        self.table = training.build(rank.device)
        optimizer = training.optimizer(self.table.parameters())
        super().__init__(self.table, optimizer, DistributedDataParallel(self.table))

    def stored(self) -> dict[str, int]:
        """Bytes of the whole table."""
        return {"rows": self.table.table.weight.nbytes}


def main(options: Options) -> Result:
    """Train served, all-reduced, in one process, and asynchronously; each rank has its counts.

    The result has `exchanged_bytes` and `served_bytes`: sent and received in the last update by
    each trainer and by each server; `all_reduced_bytes`: sent by a rank if the table is on all
    ranks; `staleness[t]`: for each gradient of trainer t, by how many updates it was late at server
    0. The losses are those of the last batch with the last table.
    """
    rank, training = launch.init(), options.training()
    if rank.world <= options.servers:
        raise ValueError(
            f"ranks {rank.world} leaves no trainer beside {options.servers} servers: "
            f"take at least {options.servers + 1}"
        )
    if options.batch < rank.world:
        raise ValueError(
            f"batch {options.batch} is less than {rank.world} ranks: servers take no samples, but "
            "beside them the table is all-reduced by all ranks, each with a sample or more: "
            f"take at least batch {rank.world}"
        )
    comparison = Comparison(training)
    exchanges = _exchanges(training, rank.world - options.servers, options.servers)
    _serve(training, comparison, exchanges, options.parts)
    table_bytes = training.size[0] * VOCAB * 4
    predicted_sent, stored = Trace(calls("all-reduce", 1, table_bytes)), {"rows": table_bytes}
    comparison.follow(AllReduced(training, rank), predicted_sent, stored)
    staleness, loss = _asynchronous(training, rank, options)
    by_server = zip(*exchanges, strict=True)
    counts: dict[str, Any] = {
        "exchanged_bytes": [sum(one.total_bytes for one in each) for each in exchanges],
        "served_bytes": [sum(one.total_bytes for one in each) for each in by_server],
        "all_reduced_bytes": sent_bytes("all-reduce", table_bytes, rank.world),
        "staleness": staleness,
        "asynchronous_loss": loss,
        "in_step_loss": _loss(training, comparison.one_process.weights["table.weight"].cpu()),
    }
    rows = [sum(one.rows for one in each) for each in exchanges]
    return comparison.result(
        "parameter server",
        notes=_notes(SimpleNamespace(**counts), rows, training.size[0]),
        **counts,
    )


def _serve(
    training: TableTraining,
    comparison: Comparison,
    exchanges: list[list[RowExchange]],
    parts: str,
) -> None:
    """Train with the parameter server in step, and compare its traffic and storage with theory."""
    servers, rank = len(exchanges[0]), comparison.rank
    trainee = Served(training, rank, servers, parts)
    if trainee.serves:
        own = [each[rank.rank] for each in exchanges]
        count, size = sum(one.rows > 0 for one in own), sum(one.pulled_bytes for one in own)
        stored = len(range(rank.rank, training.size[0], servers))
    else:  # two requests to each server: a header, and a payload if there are rows
        own = exchanges[rank.rank - servers]
        count = sum(4 if one.rows else 2 for one in own)
        size = sum(one.pushed_bytes for one in own)
        stored = _rows_used(training, rank.world - servers)[rank.rank - servers].numel()
    rows = {"rows": stored * VOCAB * 4}
    comparison.follow(trainee, Trace(calls(SEND, count, size)), rows)


def _rows_used(training: TableTraining, trainers: int) -> list[Tensor]:
    """The rows that each trainer's samples use in the last update, computed from the text."""
    inputs, _ = training.batches()[-1]
    return [ngrams(part, *training.size) for part in inputs.tensor_split(trainers)]


def _exchanges(training: TableTraining, trainers: int, servers: int) -> list[list[RowExchange]]:
    """The exchange of each trainer with each server in the last update."""
    return [
        [RowExchange(int((rows % servers == server).sum()), VOCAB) for server in range(servers)]
        for rows in (drawn.unique() for drawn in _rows_used(training, trainers))
    ]


def _asynchronous(
    training: TableTraining, rank: launch.Rank, options: Options
) -> tuple[list[list[int]], float]:
    """Train asynchronously; returns the staleness of each trainer's gradients, and the loss."""
    served = Served(training, rank, options.servers, options.parts)
    if served.serves:
        served.server.serve_as_they_come()
    else:
        slow = options.slow if rank.rank == rank.world - 1 else 1
        for batch in training.batches()[: training.steps // slow]:
            served.train(batch, pause_s=slow * options.pause_ms / 1000)
        served.remote.stop()
    table = served.of_all_servers(served.server.table)
    staleness = from_rank(0, [*served.server.staleness.values()], served.group)
    return staleness, _loss(training, table)


def _loss(training: TableTraining, table: Tensor) -> float:
    """The loss of the last batch with this table."""
    model = training.build()
    model.table.weight.data = table
    return float(mean_loss(model, training.batches()[-1]).detach())


def _notes(result: Any, rows: list[int], table_rows: int) -> list[str]:
    """Lines of the report: bytes against the all-reduce's, and staleness."""
    least = min(result.all_reduced_bytes / size for size in result.exchanged_bytes)
    late = [updates for own in result.staleness for updates in own]
    counts = ", ".join(
        f"{number} by {updates}" for updates, number in sorted(Counter(late).items())
    )
    means = ", ".join(f"{fmean(own):.1f}" for own in result.staleness)
    long_run = mean_staleness(len(result.staleness))
    return [
        f"  rows that each trainer used: {rows} of {table_rows:,}; it exchanged "
        f"{result.exchanged_bytes} B, in all {sum(result.served_bytes):,} B, "
        f"by server {result.served_bytes}",
        f"  an all-reduce of the table: {result.all_reduced_bytes:,.0f} B sent by each rank, "
        f"{least:.1f} times as much as a trainer's exchange",
        f"  asynchronous: gradients late by so many updates: {counts}",
        f"    on average by trainer: {means}; of all {fmean(late):.1f}, in a long run {long_run:g}",
        f"    loss of the last batch after these {len(late)} gradients "
        f"{result.asynchronous_loss:.3f}, in step {result.in_step_loss:.3f}",
    ]
