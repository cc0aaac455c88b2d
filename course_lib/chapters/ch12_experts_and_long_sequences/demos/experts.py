"""Expert parallelism: a GPT with mixtures of experts, tokens routed by all-to-all.

Each rank has its own samples and its own experts; tokens travel to their experts and back by
all-to-all. Gradients of the experts stay where they are, all others are summed over the ranks.
torch ships no mixture-of-experts layer. Its counterparts here are its all-to-all with autograd, and
DistributedDataParallel told to leave the experts alone.
Run it with `course demo experts --ranks 2`, or under torchrun.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch, mine
from course_lib.chapters.ch12_experts_and_long_sequences import functional
from course_lib.demos.shared.comparison import Comparison
from course_lib.demos.shared.options import BatchOptions, option, whose_parts, with_yours
from course_lib.demos.shared.prediction import calls, predicted_stored, told, traffic
from course_lib.demos.shared.ranks import joined, world
from course_lib.demos.shared.result import Result
from course_lib.demos.shared.trainee import Trainee
from course_lib.demos.shared.training import (
    Batch,
    Training,
    gradients_of,
    mean_loss,
    one_process,
    own_rows,
)
from course_lib.scratch.experts import Dispatcher, MoE, Router
from course_lib.scratch.gpt import GPT
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.network.bucket_timeline import ddp_buckets
from course_lib.trace import Trace
from course_lib.validation import divisible, whole

# --- training -----------------------------------------------------------------------------------
# The model of the demo: a GPT with a mixture of experts in every layer.


class FixedRouter(Router):
    """Assigns tokens to experts round-robin, so that all experts get equally many."""

    def choose(self, probabilities: Tensor) -> Tensor:
        tokens, experts = probabilities.shape
        numbers = torch.arange(tokens * self.top_k, device=probabilities.device)
        return (numbers % experts).view(tokens, self.top_k)


@dataclass(frozen=True)
class ExpertTraining(Training):
    """A training run of a GPT with experts in every layer."""

    experts: int = 4
    top_k: int = 2
    capacity_factor: float = 0.0
    balance: float = 0.0
    fixed_routes: bool = False

    def build(self, device: torch.device | str = "cpu") -> GPT:
        """The model with its initial weights, equal on every rank."""
        model, hidden = super().build(), self.size[1]
        for block in model.blocks:
            block.mlp = MoE(hidden, self.experts, self.top_k, self.capacity_factor or None)
            if self.fixed_routes:
                block.mlp.router.__class__ = FixedRouter
        return model.to(device)

    def shape(self) -> TransformerShape:
        """The shape of this model for the theory."""
        return replace(super().shape(), experts=self.experts, top_k=self.top_k)

    def loss(self, model: nn.Module, batch: Batch, share: float = 1.0) -> Tensor:
        """Cross-entropy and balance losses, times this batch's `share` of all tokens."""
        return share * (
            mean_loss(model, batch) + self.balance * sum(moe.balance for moe in mixtures(model))
        )


def mixtures(model: nn.Module) -> list[MoE]:
    """The mixtures of experts, layer by layer."""
    return [module for module in model.modules() if isinstance(module, MoE)]


# --- versions -----------------------------------------------------------------------------------
# The versions that the demo trains: by hand, and with torch's building blocks.


class ByHand(Trainee):
    """Training with scratch.experts; gradients are all-reduced tensor by tensor."""

    name = "by hand"

    def __init__(
        self,
        training: ExpertTraining,
        rank: launch.Rank,
        parts: str = "course",
        dispatcher: type[Dispatcher] | None = None,
    ) -> None:
        self.training, self.rank = training, rank
        self.name += with_yours(parts, "Dispatcher")
        model = training.build(rank.device)
        for moe in mixtures(model):
            moe.spread(world(), dispatcher or mine.get("Dispatcher", parts))
        super().__init__(model, training.optimizer(model.parameters()))
        self.load: list[list[list[int]]] = []
        self.dropped: list[int] = []

    def backward(self, batch: Batch) -> Tensor:
        """Forward and backward on this rank's rows, then sum all gradients but the experts'."""
        loss = self.share(self.model, batch)
        loss.backward()
        for name, gradient in gradients_of(self.model).items():
            if ".experts." not in name:
                dist.all_reduce(gradient)
        return loss

    def share(self, model: nn.Module, batch: Batch) -> Tensor:
        """This rank's share of the whole batch's loss; also records load and dropped choices."""
        local_batch = own_rows(batch, self.rank)
        loss = self.training.loss(model, local_batch, len(local_batch[0]) / len(batch[0]))
        moes = mixtures(self.model)
        self.load.append([moe.counts.sum(0).tolist() for moe in moes])
        self.dropped.append(sum(int((moe.counts - moe.kept).sum()) for moe in moes))
        return loss

    def gradients(self) -> dict[str, Tensor]:
        """The gradients of all ranks, each of which has some of the experts."""
        return joined({name: gradient.cpu() for name, gradient in gradients_of(self.model).items()})

    def sums(self) -> list[int]:
        """Bytes of each gradient all-reduce."""
        named = self.model.named_parameters()
        return [p.nbytes for name, p in named if ".experts." not in name]


class TorchDispatcher(Dispatcher):
    """A Dispatcher that uses torch's all-to-all."""

    def all_to_all(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        assert self.group is not None
        return functional.all_to_all(rows, sent, received, self.group)


class Library(ByHand):
    """torch's differentiable all-to-all, and DDP for all parameters but the experts'."""

    name = "torch: all-to-all, DDP"

    def __init__(self, training: ExpertTraining, rank: launch.Rank) -> None:
        super().__init__(training, rank, dispatcher=TorchDispatcher)
        # The attribute in which DDP looks up the parameters that it must ignore.
        names = [name for name, _ in self.model.named_parameters() if ".experts." in name]
        cast(Any, self.model)._ddp_params_and_buffers_to_ignore = names
        self.ddp = DistributedDataParallel(self.model)

    def backward(self, batch: Batch) -> Tensor:
        loss = self.share(self.ddp, batch)
        (loss * self.rank.world).backward()  # DDP averages, but shares must be summed
        for name, gradient in gradients_of(self.model).items():
            if ".experts." in name:
                gradient /= self.rank.world
        return loss

    def sums(self) -> list[int]:
        return ddp_buckets(super().sums()[::-1])


@dataclass(frozen=True)
class Options(BatchOptions):
    """The options of the demo."""

    steps: int = option(30, "optimizer updates")
    experts: int = option(4, "experts in each layer", least=1, most=1024)
    top_k: int = option(2, "experts that a token uses", least=1)
    capacity_factor: float = option(
        0.0, "choices an expert accepts, over the mean; 0: all", least=0
    )
    balance: float = option(0.05, "weight of the balance loss", least=0)
    fixed_routes: bool = option(False, "deal tokens out to experts in turn, instead of by score")
    parts: str = whose_parts()

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("top_k", self.top_k, most=self.experts)

    def training(self) -> ExpertTraining:
        """The training run of these options."""
        return self.fill(ExpertTraining)


def main(options: Options) -> Result:
    """Train both versions and one process; every rank returns its own counts.

    The result has `load[update][layer][expert]`: choices of all ranks; `imbalance` of each update:
    the busiest expert's load over the mean, averaged over layers; `imbalance_without_loss`, trained
    without balance loss; `dropped`: choices beyond the capacity, in each update.
    """
    rank, training = launch.init(), options.training()
    layout = Layout(dp=rank.world, ep=rank.world, micro_batch=-(-options.batch // rank.world))
    layout.check(training.shape(), options.sequence)
    own_rows(training.batches()[0], rank)  # raises on every rank if samples are too few
    _check_routes(options, rank.world)
    comparison = Comparison(training, loss_of=training.loss)
    stored = predicted_stored(training, layout)
    hand = ByHand(training, rank, options.parts)
    for trainee in (hand, Library(training, rank)):
        version = comparison.follow(trainee, predicted_stored=stored)
        # The routes are known only after training.
        sent = predicted(trainee, training, layout).sent() if rank.world > 1 else {}
        comparison.versions[-1] = replace(version, predicted_sent=sent)
    imbalance = imbalances(hand.load)
    without = imbalances(_loads_of_one_process(replace(training, balance=0.0), rank.device))
    return comparison.result(
        "expert parallelism",
        notes=_notes(hand, imbalance, without),
        load=hand.load,
        dropped=hand.dropped,
        imbalance=imbalance,
        imbalance_without_loss=without,
    )


def predicted(trainee: ByHand, training: ExpertTraining, layout: Layout) -> Trace:
    """Predicted traffic of the last update.

    All-reduces: the theory's bytes, in as many calls as the version makes. All-to-all: from this
    rank's routes, 2 · (rows sent + rows received) of hidden floats per layer; with fixed routes and
    none dropped the theory's bytes are used, to check them. All-gather: the counts.
    """
    moes, theory = mixtures(trainee.model), told(traffic(training, layout)).sent()
    exchanges, routed = theory["all-to-all"]
    if not training.fixed_routes or any(trainee.dropped):
        rows = sum(2 * sum(own_rows_of(moe)[:2]) for moe in moes)
        routed = rows * 4 * training.size[1]
    counts = layout.world * training.experts * 8
    return Trace(
        [
            *calls("all-to-all", exchanges, routed),
            *calls("all-gather", len(moes), len(moes) * counts),
            *calls("all-reduce", len(trainee.sums()), theory["all-reduce"].size_bytes),
        ]
    )


def own_rows_of(moe: MoE) -> tuple[int, int, int]:
    """Accepted choices: of this rank's tokens, for this rank's experts, and of both at once."""
    kept, rank = moe.kept.view(moe.ranks, moe.ranks, -1), moe.rank
    return int(kept[rank].sum()), int(kept[:, rank].sum()), int(kept[rank, rank].sum())


def _check_routes(options: Options, ranks: int) -> None:
    """Raise ValueError unless fixed routes give all experts equally many tokens."""
    if options.fixed_routes:  # each rank's turn starts with expert 0
        divisible("batch", options.batch, "ranks", ranks)
        choices = options.batch // ranks * options.sequence * options.top_k
        divisible("batch/ranks*sequence*top_k", choices, "experts", options.experts)


def _loads_of_one_process(training: ExpertTraining, device: torch.device) -> list[list[list[int]]]:
    loads: list[list[list[int]]] = []

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        result = training.loss(model, batch)
        loads.append([moe.counts.sum(0).tolist() for moe in mixtures(model)])
        return result

    one_process(training, device, loss)
    return loads


def imbalances(load: Sequence[Sequence[Sequence[int]]]) -> list[float]:
    """The busiest expert's load over the mean, averaged over the layers, for each update."""
    return [sum(max(one) * len(one) / sum(one) for one in layers) / len(layers) for layers in load]


def _notes(
    trainee: ByHand, imbalance: Sequence[float], imbalance_without_loss: Sequence[float]
) -> list[str]:
    """Lines of the report on load, dropped choices and routes of the last update."""
    moes, load = mixtures(trainee.model), trainee.load[-1]
    sent, _, staying = (sum(rows) for rows in zip(*map(own_rows_of, moes), strict=True))
    choices = sum(sum(layer) for layer in load)
    return [
        f"  tokens of each expert, last update, by layer: {load}, "
        f"dropped {trainee.dropped[-1]} of {choices}",
        f"  busiest expert over the mean: {imbalance[0]:.2f}, in the last "
        f"{len(imbalance[-5:])} updates {fmean(imbalance[-5:]):.2f}, without balance loss "
        f"{fmean(imbalance_without_loss[-5:]):.2f}",
        f"  of this rank's choices {sent - staying} leave it and {staying} stay; the all-to-all's "
        "bytes count both",
    ]
