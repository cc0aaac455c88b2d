"""RPC HybridModel: remote embedding, DDP dense part, distributed autograd (legacy).

Four processes: two trainers, a master that tells them to train, and a parameter server with the
embedding table. Each trainer looks rows up on the server (RemoteModule) and runs a dense part that
DDP keeps equal on both; distributed autograd follows the calls backwards, and DistributedOptimizer
updates table and dense part where they are. Damania et al. 2023, "PyTorch RPC", MLSys.
Legacy: RPC's only backend, TensorPipe, is in maintenance mode, and torch advises against it for new
projects. It is shown because it is how sparse models were trained.
Run it with `course demo hybrid --ranks 4`, or under torchrun with 4 processes.
"""

import logging
import os
import statistics
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
from torch import Tensor, nn
from torch.distributed import rpc
from torch.distributed.nn.api.remote_module import RemoteModule
from torch.distributed.optim import DistributedOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.demos.shared.batch import Batch, rows_of
from course_lib.demos.shared.comparison import Comparison, Version, check_gap, tensor_gap
from course_lib.demos.shared.options import option
from course_lib.demos.shared.prediction import Sent
from course_lib.demos.shared.ranks import from_rank
from course_lib.demos.shared.tables import TableOptions, TableRun, ngrams
from course_lib.demos.shared.text import VOCAB
from course_lib.demos.shared.training import one_process
from course_lib.launch.group import STORE_VARIABLE
from course_lib.measure.wire import Total, log_wire
from course_lib.validation import whole

ROLES = ("trainer0", "trainer1", "master", "server")  # by rank
TRAINERS = [0, 1]
MASTER = 2
WEIGHT_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Options(TableOptions):
    """What the demo can be asked for."""

    steps: int = option(10, "optimizer updates")
    model: str = option("1024x3", "ROWSxORDER: rows of the table, characters in the longest n-gram")
    hidden: int = option(16, "width of a row")
    sequence: int = option(16, "characters in a sample")
    learning_rate: float = option(0.5, "SGD's learning rate")

    def __post_init__(self) -> None:
        whole("batch", self.batch, least=len(TRAINERS), most=10_000)
        whole("hidden", self.hidden, most=100_000)
        super().__post_init__()

    def training(self) -> "HybridTraining":
        """What is trained."""
        return self.fill(HybridTraining)


@dataclass(frozen=True)
class HybridTraining(TableRun):
    """A training run of rows of `hidden` numbers with a dense part behind them."""

    hidden: int = 16

    def build(self, device: torch.device | str = "cpu") -> "OneModel":
        """The model with its first weights, as one process has it."""
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
    """The rows that each character uses, (batch · sequence, order)."""
    return ngrams(tokens, *training.size).flatten(0, 1)


@dataclass(frozen=True)
class Result(Comparison):
    """What the four processes did, beside one.

    `weight_difference` is |w - w_one| / |w_one| of table and dense part together after the last
    update. The version's `sent` are a trainer's collectives: DDP's, 4 bytes for each dense
    parameter. What RPC sends is not among them: TensorPipe is no process group.
    """

    weight_difference: float = 0.0

    def verify(self) -> Self:
        """Return itself; raises AssertionError where training was not equal to one process."""
        check_gap("the model after the last update", self.weight_difference, WEIGHT_TOLERANCE)
        return super().verify()


class PlainSGD(torch.optim.SGD):
    """torch's SGD under another name: that one DistributedOptimizer compiles with TorchScript.

    TorchScript is deprecated.
    """


@dataclass(frozen=True)
class Trained:
    """What a trainer reports to the master."""

    shares: list[float]  # of each update's mean loss: those of both trainers add up to it
    dense: dict[str, Tensor]
    sent: Sent  # in the last update
    seconds: float  # median of the updates after the first


def main(options: Options) -> Result:
    """Play this rank's role; every rank returns the same result."""
    rank = launch.init()
    if rank.world != len(ROLES):
        raise ValueError(
            f"ranks {rank.world} is not {len(ROLES)}, one for each of {', '.join(ROLES)}: "
            f"take {len(ROLES)}"
        )
    training = options.training()
    reference = one_process(training)
    with _rpc(rank):  # the others wait at its end, and the master's calls reach them
        found = _direct(training) if rank.rank == MASTER else None
    trained, table = from_rank(MASTER, found)
    weights = {f"dense.{name}": value for name, value in trained[0].dense.items()}
    weights["table.weight"] = table
    gap = tensor_gap(weights, reference.weights)
    return Result.verified(
        "hybrid of RPC and DDP",
        rank,
        f"{options.model}, rows of {options.hidden}",
        reference,
        [_version(trained, training)],
        notes=_notes(gap, table),
        weight_difference=gap,
    )


@contextmanager
def _rpc(rank: launch.Rank) -> Iterator[None]:
    """RPC between all ranks; leaving waits until all calls are done."""
    options = rpc.TensorPipeRpcBackendOptions(init_method=_meeting_point())
    with warnings.catch_warnings():
        # torch's RPC asks for the kind of a group that torch itself deprecates.
        warnings.filterwarnings("ignore", message="You are using a Backend")
        rpc.init_rpc(
            ROLES[rank.rank], rank=rank.rank, world_size=rank.world, rpc_backend_options=options
        )
        yield
        rpc.shutdown()


def _meeting_point() -> str:
    """A file in the folder that launch.run removes, or torchrun's own store."""
    store = os.environ.get(STORE_VARIABLE)
    return f"file://{store}_rpc" if store else "env://"


def _direct(training: HybridTraining) -> tuple[list[Trained], Tensor]:
    """The master: make the remote table and let both trainers train; what they and it became."""
    first = training.build()
    table = RemoteModule(
        ROLES[-1],
        nn.EmbeddingBag,
        args=(training.size[0], training.hidden),
        kwargs={"mode": "sum", "_weight": first.table.weight.detach()},
    )
    calls = [rpc.rpc_async(ROLES[number], _train, (training, table)) for number in TRAINERS]
    trained = torch.futures.wait_all(calls)  # raises what they raised
    return trained, table.remote_parameters()[0].to_here().detach()


def _version(trained: list[Trained], training: HybridTraining) -> Version:
    dense = training.build().dense
    return Version(
        name=", ".join(ROLES),
        losses=[sum(shares) for shares in zip(*(one.shares for one in trained), strict=True)],
        gradient_difference=None,  # RPC's autograd updates before anybody sees a gradient
        seconds=trained[0].seconds,
        sent=trained[0].sent,
        predicted_sent={"all-reduce": Total(1, sum(p.nbytes for p in dense.parameters()))},
    )


def _notes(gap: float, table: Tensor) -> list[str]:
    return [
        f"  the last weights are off by {gap:.0e}; "
        f"the table of {table.nbytes:,} B stays on the server"
    ]


def _train(training: HybridTraining, table: RemoteModule) -> Trained:
    """A trainer, called by the master."""
    rank = launch.init()
    logging.getLogger("torch.distributed.optim.optimizer").setLevel(logging.ERROR)  # of PlainSGD
    group = dist.new_group(TRAINERS, use_local_synchronization=True)
    dense = training.build().dense.to(rank.device)
    ddp = DistributedDataParallel(dense, process_group=group)
    # DDP takes the mean over trainers, the server adds: so the loss is scaled up, the rate of the
    # rows down.
    trainers = len(TRAINERS)
    rates = (training.learning_rate / trainers, training.learning_rate)
    remote = (table.remote_parameters(), [rpc.RRef(p) for p in dense.parameters()])
    optimizers = [
        DistributedOptimizer(PlainSGD, parameters, lr=rate)
        for parameters, rate in zip(remote, rates, strict=True)
    ]
    shares: list[float] = []
    seconds: list[float] = []
    for batch in training.batches():
        start = time.perf_counter()
        with dist_autograd.context() as context, log_wire() as log:
            share = _share(ddp, table, batch, training, rank)
            dist_autograd.backward(context, [share * trainers])
            dist.barrier(group)  # the other may not have looked its rows up yet
            for optimizer in optimizers:
                optimizer.step(context)
        dist.barrier(group)  # or look the next ones up before the server has them
        shares.append(float(share.detach()))
        seconds.append(time.perf_counter() - start)
        launch.report_step(len(seconds), training.steps)
    weights = {name: p.detach().cpu() for name, p in dense.named_parameters()}
    return Trained(shares, weights, log.sent(), statistics.median(seconds[1:]))


def _share(
    ddp: nn.Module, table: RemoteModule, batch: Batch, training: HybridTraining, rank: launch.Rank
) -> Tensor:
    """This trainer's share of the mean loss; rows come from the server."""
    inputs, labels = rows_of(batch, rank.rank, len(TRAINERS))
    rows = table.forward(bags_of(inputs, training))
    logits = ddp(rows.to(rank.device))
    labels = labels.flatten().to(rank.device)
    return cross_entropy(logits, labels, reduction="sum") / batch[1].numel()
