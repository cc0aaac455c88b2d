"""Expert parallelism: a GPT whose MLPs are mixtures of experts, spread over data-parallel ranks.

Each rank has its own samples and its own experts; tokens travel to their experts and back by
all-to-all. Gradients of the experts stay where they are, all others are summed over the ranks.
torch ships no mixture-of-experts layer. Its counterparts here are its all-to-all with autograd, and
DistributedDataParallel told to leave the experts alone.
Run it with `course demo experts --ranks 2`, or under torchrun.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.demos.parts import functional
from course_lib.demos.parts.command import option, run_as_program
from course_lib.demos.parts.command import parse as parse_options
from course_lib.demos.parts.expert_training import ExpertTraining, mixtures
from course_lib.demos.parts.training import Batch, Training, TrainingOptions, one_process
from course_lib.demos.parts.versions import FP32, Comparison, Sent, follow, predicted_sent
from course_lib.scratch.experts.mixture import MoE
from course_lib.scratch.ledger import ledger
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.memory.states import local_parameters, sharded_states
from course_lib.theory.network.buckets import ddp_buckets
from course_lib.validation import divisible, flag, number, whole


@dataclass(frozen=True)
class Options(TrainingOptions):
    """What the demo can be asked for."""

    trains = ExpertTraining

    steps: int = option(30, "optimizer updates")
    experts: int = option(4, "experts in each layer")
    top_k: int = option(2, "experts that a token uses")
    capacity_factor: float = option(0.0, "choices an expert accepts, over the mean; 0: all")
    balance: float = option(0.05, "weight of the balance loss")
    fixed_routes: bool = option(False, "deal tokens out to experts in turn, instead of by score")

    def __post_init__(self) -> None:
        whole("experts", self.experts, most=1024)
        whole("top_k", self.top_k, most=self.experts)
        number("capacity_factor", self.capacity_factor, least=0)
        number("balance", self.balance, least=0)
        flag("fixed_routes", self.fixed_routes)
        super().__post_init__()


@dataclass(frozen=True)
class Result(Comparison):
    """A comparison, with what happened to the tokens.

    `load[update][layer][expert]`: choices of all ranks. `imbalance`: the busiest expert's load
    over the mean, the mean of all layers, for each update; and the same in a training without
    balance loss. `dropped`: choices beyond the capacity, in each update.
    """

    load: list[list[list[int]]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    imbalance: list[float] = field(default_factory=list)
    imbalance_without_loss: list[float] = field(default_factory=list)


class ByHand:
    """The technique of scratch.experts.mixture; gradients are summed tensor by tensor."""

    name = "by hand"

    def __init__(self, training: ExpertTraining, rank: launch.Rank) -> None:
        self.training, self.rank = training, rank
        self.model = training.build(rank.device)
        for moe in mixtures(self.model):
            moe.spread(dist.group.WORLD)
        self.optimizer = training.optimizer(list(self.model.parameters()))
        self.load: list[list[list[int]]] = []
        self.dropped: list[int] = []

    def backward(self, batch: Batch) -> Tensor:
        loss = self._share(self.model, batch)
        loss.backward()
        for name, parameter in self.model.named_parameters():
            if ".experts." not in name:
                dist.all_reduce(parameter.grad)
        return loss

    def _share(self, model: nn.Module, batch: Batch) -> Tensor:
        """This rank's share of the whole batch's loss."""
        mine = tuple(part.tensor_split(self.rank.world)[self.rank.rank] for part in batch)
        loss = self.training.loss(model, mine, len(mine[0]) / len(batch[0]))
        moes = mixtures(self.model)
        self.load.append([moe.counts.sum(0).tolist() for moe in moes])
        self.dropped.append(sum(int((moe.counts - moe.kept).sum()) for moe in moes))
        return loss

    def gradients(self) -> dict[str, Tensor]:
        mine = {name: p.grad.cpu() for name, p in self.model.named_parameters()}
        everybody: list[Any] = [None] * self.rank.world
        dist.all_gather_object(everybody, mine)
        return {name: gradient for one in everybody for name, gradient in one.items()}

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def stored(self) -> dict[str, int]:
        return ledger(self.model, self.optimizer)

    def sums(self) -> list[int]:
        """Bytes of each all-reduce of gradients."""
        named = self.model.named_parameters()
        return [p.nbytes for name, p in named if ".experts." not in name]


class Library(ByHand):
    """torch's all-to-all with autograd, and DDP for all that is not an expert."""

    name = "torch: all-to-all, DDP"

    def __init__(self, training: ExpertTraining, rank: launch.Rank) -> None:
        super().__init__(training, rank)
        for moe in mixtures(self.model):
            moe.all_to_all = functional.all_to_all
        # The attribute by which DDP learns which parameters are none of its business.
        self.model._ddp_params_and_buffers_to_ignore = [
            name for name, _ in self.model.named_parameters() if ".experts." in name
        ]
        self.ddp = DistributedDataParallel(self.model)

    def backward(self, batch: Batch) -> Tensor:
        loss = self._share(self.ddp, batch)
        (loss * self.rank.world).backward()  # DDP takes the mean, not the sum
        for name, parameter in self.model.named_parameters():
            if ".experts." in name:
                parameter.grad /= self.rank.world
        return loss

    def sums(self) -> list[int]:
        return ddp_buckets(super().sums()[::-1])


def main(options: Options) -> Result:
    """Train both versions and one process; every rank returns its own counts."""
    rank = launch.init()
    training = options.training()
    layout = Layout(dp=rank.world, ep=rank.world, micro_batch=-(-options.batch // rank.world))
    layout.check(training.shape(), options.sequence)
    _check_batch(options, rank.world)
    reference = one_process(training, rank.device, training.loss)
    trainees = [kind(training, rank) for kind in (ByHand, Library)]
    versions = []
    for trainee in trainees:
        version = follow(trainee, training, reference, predicted_stored=_stored(training, layout))
        versions.append(replace(version, predicted_sent=_sent(trainee, training, layout)))
    plain = imbalances(_loads_of_one_process(replace(training, balance=0.0), rank.device))
    hand = trainees[0]
    result = Result.verified(
        "expert parallelism",
        rank,
        options.model,
        reference,
        versions,
        load=hand.load,
        dropped=hand.dropped,
        imbalance=imbalances(hand.load),
        imbalance_without_loss=plain,
    )
    return replace(result, notes=_notes(result, hand))


def _check_batch(options: Options, ranks: int) -> None:
    if options.batch < ranks:
        raise ValueError(
            f"batch {options.batch} leaves a rank of {ranks} without a sample: "
            f"take at least {ranks}"
        )
    if options.fixed_routes:  # each rank's turn begins with expert 0
        divisible("batch", options.batch, "ranks", ranks)
        choices = options.batch // ranks * options.sequence * options.top_k
        divisible("batch/ranks*sequence*top_k", choices, "experts", options.experts)


def _sent(trainee: ByHand, training: ExpertTraining, layout: Layout) -> Sent:
    """What the last update sends.

    All-reduces: the theory's bytes, in as many calls as the version makes. All-to-all: what the
    routes of this rank ask for, 2 · (rows sent + rows received) of hidden floats per layer; with
    equal loads that is the theory's number, which is checked here. All-gather: the counts.
    """
    if layout.world == 1:
        return {}
    moes = mixtures(trainee.model)
    row_bytes = 4 * training.size[1]
    routed = sum(2 * (_sent_rows(moe) + _received_rows(moe)) * row_bytes for moe in moes)
    theory = predicted_sent(training, layout)
    if training.fixed_routes and not sum(trainee.dropped):
        routed = theory["all-to-all"][1]
    counts = layout.world * training.experts * 8
    return {
        "all-to-all": [theory["all-to-all"][0], routed],
        "all-gather": [len(moes), len(moes) * counts],
        "all-reduce": [len(trainee.sums()), theory["all-reduce"][1]],
    }


def _sent_rows(moe: MoE) -> int:
    return int(moe.kept[moe.rank].sum())


def _received_rows(moe: MoE) -> int:
    return int(moe.kept.view(moe.ranks, moe.ranks, -1)[:, moe.rank].sum())


def _staying_rows(moe: MoE) -> int:
    return int(moe.kept.view(moe.ranks, moe.ranks, -1)[moe.rank, moe.rank].sum())


def _stored(training: Training, layout: Layout) -> dict[str, int]:
    states = sharded_states(local_parameters(training.shape(), layout), FP32, layout)
    return {
        "weights": states.parameters_bytes,
        "gradients": states.gradients_bytes,
        "optimizer": states.optimizer_state_bytes,
        "inputs and labels": 0,
    }


def _loads_of_one_process(training: ExpertTraining, device: torch.device) -> list[list[list[int]]]:
    loads = []

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        result = training.loss(model, batch)
        loads.append([moe.counts.sum(0).tolist() for moe in mixtures(model)])
        return result

    one_process(training, device, loss)
    return loads


def imbalances(load: Sequence[Sequence[Sequence[int]]]) -> list[float]:
    """The busiest expert's load over the mean, averaged over the layers, for each update."""
    return [sum(max(one) * len(one) / sum(one) for one in layers) / len(layers) for layers in load]


def _notes(result: Result, trainee: ByHand) -> list[str]:
    """What became of the tokens."""
    moes = mixtures(trainee.model)
    staying = sum(_staying_rows(moe) for moe in moes)
    leaving = sum(_sent_rows(moe) for moe in moes) - staying
    choices = sum(sum(layer) for layer in result.load[-1])
    return [
        f"  tokens of each expert, last update, by layer: {result.load[-1]}, "
        f"dropped {result.dropped[-1]} of {choices}",
        f"  busiest expert over the mean: {result.imbalance[0]:.2f}, in the last 5 updates "
        f"{fmean(result.imbalance[-5:]):.2f}, without balance loss "
        f"{fmean(result.imbalance_without_loss[-5:]):.2f}",
        f"  of this rank's tokens {leaving} leave it and {staying} stay; the all-to-all's bytes "
        "count both",
    ]


def parse(argv: Sequence[str] | None = None) -> Options:
    """Options from command-line arguments."""
    return parse_options(Options, argv, __doc__)


if __name__ == "__main__":
    run_as_program(main, parse())
