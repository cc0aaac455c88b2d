"""RPC HybridModel: remote embedding, DDP dense part, distributed autograd (legacy).

Four processes: two trainers, a master that tells them to train, and a parameter server with the
embedding table. Each trainer looks rows up on the server (RemoteModule) and runs a dense part that
DDP keeps equal on both; distributed autograd follows the calls backwards, and DistributedOptimizer
updates table and dense part where they are. Damania et al. 2023, "PyTorch RPC", MLSys.
Legacy: RPC's only backend, TensorPipe, is in maintenance mode, and torch advises against it for new
projects. It is shown because it is how sparse models were trained.
Run it with `course demo hybrid --ranks 4`, or under torchrun with 4 processes; with --two-nodes
also the bytes that RPC sends are counted.
"""

import logging
import os
import statistics
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import rpc
from torch.distributed.nn.api.remote_module import RemoteModule
from torch.distributed.optim import DistributedOptimizer
from torch.nn.functional import cross_entropy

from course_lib import launch
from course_lib.chapters.ch14_parameter_servers.exchanges import RowExchange
from course_lib.chapters.ch14_parameter_servers.tables import TableOptions, TableRun, ngrams
from course_lib.demos.shared.comparison import Comparison, Version, tensor_gap
from course_lib.demos.shared.options import option
from course_lib.demos.shared.prediction import Sent
from course_lib.demos.shared.ranks import from_rank
from course_lib.demos.shared.result import Fact, Result
from course_lib.demos.shared.text import VOCAB
from course_lib.demos.shared.training import Batch, rows_of
from course_lib.launch.job import STORE_VARIABLE
from course_lib.launch.two_nodes import LINK
from course_lib.measure.wire import log_wire
from course_lib.scratch.parameter_server import HybridModel, remote, update
from course_lib.trace import Total
from course_lib.validation import whole


@dataclass(frozen=True)
class Event:
    """An event of a process; `at_s` is wall-clock time, shared by all processes of a machine."""

    process: str
    what: str
    at_s: float


def in_order(events: list[Event], since_s: float) -> list[Event]:
    """Events of all processes from `since_s` on, sorted, with times relative to it."""
    later = [event for event in events if event.at_s >= since_s]
    later.sort(key=lambda event: event.at_s)
    return [Event(it.process, it.what, it.at_s - since_s) for it in later]


_COUNTERS = Path("/proc/net/dev")  # counters of this process's network namespace
_SENT = 8  # column of sent bytes; those of received traffic come before it


class Counted(NamedTuple):
    """Bytes received and sent, including all headers up to Ethernet's."""

    received: int
    sent: int


def interface_bytes(name: str) -> Counted | None:
    """Bytes through network interface `name` so far; None if it does not exist."""
    lines = _COUNTERS.read_text().splitlines() if _COUNTERS.exists() else []
    for line in lines:
        interface, _, numbers = line.partition(":")
        if interface.strip() == name:
            columns = numbers.split()
            return Counted(int(columns[0]), int(columns[_SENT]))
    return None


ASKS, GETS = "asks the server for its rows", "has the rows"
LOSS = "has the loss; backward begins"
DENSE = "gradients of the last dense layer"
STARTS, ENDS = "all dense gradients: the all-reduce starts", "the all-reduce ends"
LEAVES = "gradient of the rows: leaves for the server"
DENSE_STEP, TABLE_STEP = "updates its dense part", "updates the table"
LOOKS_UP, TABLE_GRADIENT = "looks rows up", "adds a trainer's gradient of the table"

_events: list[Event] = []  # of this process, in order


def role() -> str:
    """The role of this process, one of ROLES."""
    return ROLES[launch.init().rank]


def mark(what: str) -> None:
    """Record an event, from any thread of the process."""
    _events.append(Event(role(), what, time.time()))


def events() -> list[Event]:
    """All events of this process, which the master collects over RPC."""
    return _events


def watch_trainer(model: HybridModel) -> None:
    """Register hooks that mark the events of this trainer's model."""
    model.register_forward_pre_hook(lambda *_: mark(ASKS))
    model.dense.register_forward_pre_hook(_rows_arrived)
    last = list(model.dense.parameters())[-1]
    last.register_hook(lambda _: mark(DENSE))
    group = model.dense.process_group
    model.dense.register_comm_hook(group, _all_reduce)


class WatchedTable(nn.EmbeddingBag):
    """A table that marks its events in the log of the server, where it is created."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.weight.register_hook(lambda _: mark(TABLE_GRADIENT))

    def forward(self, *bags: Any) -> Tensor:
        """Look up bags of rows; returns the sum of each bag."""
        mark(LOOKS_UP)
        return super().forward(*bags)


def _rows_arrived(_: Any, arguments: tuple[Tensor]) -> None:
    mark(GETS)
    arguments[0].register_hook(lambda _: mark(LEAVES))


def _all_reduce(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """DDP's default reduction of a bucket, the mean over the group's ranks, with marked events."""
    mark(STARTS)
    mean = bucket.buffer() / group.size()
    work = dist.all_reduce(mean, group=group, async_op=True)

    def ended(done: torch.futures.Future[list[Tensor]]) -> Tensor:
        mark(ENDS)
        return done.value()[0]

    return work.get_future().then(ended)


@dataclass(frozen=True)
class HybridTraining(TableRun):
    """A training run of a table with rows of `hidden` numbers, followed by a dense part."""

    hidden: int = 16

    def build(self, device: torch.device | str = "cpu") -> "OneModel":
        """The whole model in one process, with its initial weights."""
        torch.manual_seed(self.seed)
        return OneModel(self).to(device)


class OneModel(nn.Module):
    """Table and dense part in one process."""

    def __init__(self, training: HybridTraining) -> None:
        super().__init__()
        self.training_run = training
        self.table = nn.EmbeddingBag(training.size[0], training.hidden, mode="sum")
        self.dense = nn.Sequential(
            nn.Linear(training.hidden, 4 * training.hidden),
            nn.GELU(),
            nn.Linear(4 * training.hidden, VOCAB),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids (batch, sequence) in, logits (batch, sequence, vocab) out."""
        bags = bags_of(tokens, self.training_run)
        scores: Tensor = self.dense(self.table(bags))
        return scores.view(*tokens.shape, VOCAB)


def bags_of(tokens: Tensor, training: HybridTraining) -> Tensor:
    """The row numbers that each character uses, (batch · sequence, order)."""
    return ngrams(tokens, *training.size).flatten(0, 1)


ROLES = ("trainer0", "trainer1", "master", "server")  # by rank
TRAINERS = [0, 1]
MASTER = 2
WEIGHT_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Options(TableOptions):
    """The options of the demo."""

    steps: int = option(10, "optimizer updates")
    model: str = option("1024x3", "ROWSxORDER: rows of the table, characters in the longest n-gram")
    hidden: int = option(16, "width of a row", least=1, most=100_000)
    sequence: int = option(16, "characters in a sample")
    learning_rate: float = option(0.5, "SGD's learning rate")

    def __post_init__(self) -> None:
        whole("batch", self.batch, least=len(TRAINERS), most=10_000)
        super().__post_init__()

    def training(self) -> HybridTraining:
        """The training run of these options."""
        return self.fill(HybridTraining)


class Hybrid(Result):
    """The results of the four processes, compared with one process.

    `weight_difference` is |w - w_one| / |w_one| of table and dense part together after the last
    update. The version's `sent` are a trainer's collectives: DDP's, 4 bytes for each dense
    parameter. RPC traffic is not included, as TensorPipe is not a process group. `events` are those
    of the last update, in all processes. `pulled_bytes` and `pushed_bytes`: rows to both trainers,
    and row numbers and gradients back, from the tensors' sizes. `link`: bytes at the trainers' end
    of the link between two nodes in an update (the median), headers included; None without a link.
    """

    def last(self, process: str, words: str) -> float:
        """Time, in seconds of the update, of the process's last event that contains `words`."""
        its_events = (event for event in self.events if event.process == process)
        return float(max(event.at_s for event in its_events if words in event.what))


class PlainSGD(torch.optim.SGD):
    """torch's SGD, as a subclass that DistributedOptimizer does not compile with TorchScript.

    TorchScript is deprecated.
    """

    def step(self, closure: Any = None) -> Any:
        """Update the parameters, and mark the event."""
        mark(TABLE_STEP if role() == "server" else DENSE_STEP)
        return super().step(closure)


@dataclass(frozen=True)
class Trained:
    """What a trainer reports to the master."""

    shares: list[float]  # of each update's mean loss, which is the sum over both trainers
    dense: dict[str, Tensor]
    sent: Sent  # in the last update
    starts: list[float]  # of the updates, and the end of the last one
    link: Counted | None  # per update, with two nodes only
    events: list[Event]


def main(options: Options) -> Result:
    """Run this rank's role; every rank returns the same result."""
    rank = launch.init()
    if rank.world != len(ROLES):
        raise ValueError(
            f"ranks {rank.world} is not {len(ROLES)}, one for each of {', '.join(ROLES)}: "
            f"take {len(ROLES)}"
        )
    training = options.training()
    comparison = Comparison(training)
    _events.clear()
    with _rpc(rank):  # other ranks wait at its end and serve the master's calls meanwhile
        reports = _run_master(training) if rank.rank == MASTER else None
    trained, table, events = from_rank(MASTER, reports)
    weights = {f"dense.{name}": value for name, value in trained[0].dense.items()}
    weights["table.weight"] = table
    gap = tensor_gap(weights, comparison.one_process.weights)
    exchange, link = _exchange(training), trained[0].link
    comparison.versions.append(_version(trained, training))
    return comparison.result(
        "hybrid of RPC and DDP",
        model=f"{options.model}, rows of {options.hidden}",
        notes=_notes(gap, table, exchange, link, events),
        facts=[Fact("the model after the last update", gap, tolerance=WEIGHT_TOLERANCE)],
        kind=Hybrid,
        weight_difference=gap,
        events=events,
        pulled_bytes=exchange.pulled_bytes,
        pushed_bytes=exchange.pushed_bytes,
        link=link,
    )


@contextmanager
def _rpc(rank: launch.Rank) -> Iterator[None]:
    """RPC between all ranks; leaving waits until all calls are done."""
    # Two nodes on one machine share a kernel, so tensors could bypass the link through shared
    # memory. Two real machines have only TCP.
    tcp: dict[str, Any] = {"_transports": ["uv"], "_channels": ["basic"]}
    transports = tcp if interface_bytes(LINK) else {}
    options = rpc.TensorPipeRpcBackendOptions(init_method=_init_method(), **transports)
    with warnings.catch_warnings():
        # torch's RPC uses a process-group API that torch itself deprecates.
        warnings.filterwarnings("ignore", message="You are using a Backend")
        rpc.init_rpc(
            ROLES[rank.rank], rank=rank.rank, world_size=rank.world, rpc_backend_options=options
        )
        yield
        rpc.shutdown()


def _init_method() -> str:
    """The init_method: a file in the folder that launch.run removes, or torchrun's store."""
    store = os.environ.get(STORE_VARIABLE)
    return f"file://{store}_rpc" if store else "env://"


def _run_master(training: HybridTraining) -> tuple[list[Trained], Tensor, list[Event]]:
    """Run the master: create the remote table and make both trainers train.

    Returns the trainers' reports, the final table, and the events of the last update.
    """
    first = training.build()
    table = RemoteModule(
        ROLES[-1],
        WatchedTable,
        args=(training.size[0], training.hidden),
        kwargs={"mode": "sum", "_weight": first.table.weight.detach()},
    )
    calls = [rpc.rpc_async(ROLES[number], _run_trainer, (training, table)) for number in TRAINERS]
    trained = torch.futures.wait_all(calls)  # re-raises their errors
    every_event = rpc.rpc_sync(ROLES[-1], events) + [it for one in trained for it in one.events]
    last = min(one.starts[-2] for one in trained)
    return trained, table.remote_parameters()[0].to_here().detach(), in_order(every_event, last)


def _version(trained: list[Trained], training: HybridTraining) -> Version:
    dense, starts = training.build().dense, trained[0].starts
    return Version(
        name=", ".join(ROLES),
        losses=[sum(shares) for shares in zip(*(one.shares for one in trained), strict=True)],
        gradient_difference=None,  # RPC's autograd exposes no gradient before the update
        seconds=statistics.median(end - start for start, end in pairwise(starts[1:])),
        sent=trained[0].sent,
        predicted_sent={"all-reduce": Total(1, sum(p.nbytes for p in dense.parameters()))},
    )


def _exchange(training: HybridTraining) -> RowExchange:
    """The exchange of both trainers in one update.

    The server sums the rows of each character and sends the sum, so a "row" here is a sum of rows,
    and its id is `order` row numbers.
    """
    sums, (_, order) = training.batch * training.sequence, training.size
    return RowExchange(sums, training.hidden, id_bytes=8 * order, header_bytes=0)


def _notes(
    gap: float, table: Tensor, exchange: RowExchange, link: Counted | None, events: list[Event]
) -> list[str]:
    lines = [
        f"  the last weights are off by {gap:.0e}; "
        f"the table of {table.nbytes:,} B stays on the server",
        f"  by RPC, both trainers together: {exchange.pulled_bytes:,} B pulled, "
        f"{exchange.pushed_bytes:,} B pushed in an update",
    ]
    if link is None:
        lines.append("  (to have them counted as well, add --two-nodes 200)")
    else:
        more = sum(link) / exchange.total_bytes - 1
        lines.append(
            f"  the link between the nodes counted {link.received:,} B and {link.sent:,} B: "
            f"{more:.1%} more, for headers and small calls"
        )
    lines.append("  the last update, in the order in which it happened:")
    return lines + [f"  {1000 * it.at_s:8.2f} ms  {it.process:<9} {it.what}" for it in events]


def _run_trainer(training: HybridTraining, table: RemoteModule) -> Trained:
    """Run a trainer; the master calls this over RPC."""
    rank = launch.init()
    # No warning about PlainSGD.
    logging.getLogger("torch.distributed.optim.optimizer").setLevel(logging.ERROR)
    group = dist.new_group(TRAINERS, use_local_synchronization=True)
    dense = training.build().dense.to(rank.device)
    model = HybridModel(table, dense, group)
    watch_trainer(model)
    # DDP averages over trainers, but the server sums: so the loss is scaled up, and the learning
    # rate of the rows down.
    rate, trainers = training.learning_rate, len(TRAINERS)
    optimizers = [
        DistributedOptimizer(PlainSGD, table.remote_parameters(), lr=rate / trainers),
        DistributedOptimizer(PlainSGD, remote(dense.parameters()), lr=rate),
    ]
    shares: list[float] = []
    starts, counted = [time.time()], [interface_bytes(LINK)]
    for batch in training.batches():
        with log_wire() as log:
            loss = update(partial(_loss, model, batch, training, rank), optimizers, group)
        starts.append(time.time())
        counted.append(interface_bytes(LINK))
        dist.barrier(group)  # so that the other trainer's next update is not counted here
        shares.append(float(loss) / trainers)
        launch.report_step(len(shares), training.steps)
    weights = {name: p.detach().cpu() for name, p in dense.named_parameters()}
    return Trained(shares, weights, log.sent(), starts, _per_update(counted[1:]), events())


def _per_update(counted: list[Counted | None]) -> Counted | None:
    """Median of the bytes between two readings, as TCP occasionally retransmits."""
    readings = [one for one in counted if one is not None]
    if not readings:
        return None
    each = [[b - a for a, b in pairwise(side)] for side in zip(*readings, strict=True)]
    return Counted(*(round(statistics.median(differences)) for differences in each))


def _loss(model: HybridModel, batch: Batch, training: HybridTraining, rank: launch.Rank) -> Tensor:
    """This trainer's share of the mean loss, times the number of trainers."""
    inputs, labels = rows_of(batch, rank.rank, len(TRAINERS))
    logits = model(bags_of(inputs, training))
    labels = labels.flatten().to(rank.device)
    total = cross_entropy(logits, labels, reduction="sum")
    mark(LOSS)
    return total / batch[1].numel() * len(TRAINERS)
