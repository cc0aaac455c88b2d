"""What the demo experts trains: a GPT with experts in each layer, by hand and by torch."""

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch, mine
from course_lib.chapters.ch12_experts_and_long_sequences.demos import functional
from course_lib.demos.shared.batch import Batch, mean_loss, own_rows
from course_lib.demos.shared.parts import with_yours
from course_lib.demos.shared.ranks import from_all_ranks, world
from course_lib.demos.shared.trainee import Trainee
from course_lib.demos.shared.training import Training, gradients_of
from course_lib.scratch.experts import Dispatcher, MoE, Router
from course_lib.scratch.gpt import GPT
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.network.bucket_timeline import ddp_buckets

# --- training -----------------------------------------------------------------------------------
# What the demo of expert parallelism trains: a GPT with a mixture of experts in every layer.


class FixedRouter(Router):
    """Deals the tokens out in turn, so that all experts get equally many."""

    def choose(self, probabilities: Tensor) -> Tensor:
        tokens, experts = probabilities.shape
        places = torch.arange(tokens * self.top_k, device=probabilities.device)
        return (places % experts).view(tokens, self.top_k)


@dataclass(frozen=True)
class ExpertTraining(Training):
    """A training run of a GPT with experts in every layer."""

    experts: int = 4
    top_k: int = 2
    capacity_factor: float = 0.0
    balance: float = 0.0
    fixed_routes: bool = False

    def build(self, device: torch.device | str = "cpu") -> GPT:
        """The model with its first weights, the same on every rank."""
        model, hidden = super().build(), self.size[1]
        for block in model.blocks:
            block.mlp = MoE(hidden, self.experts, self.top_k, self.capacity_factor or None)
            if self.fixed_routes:
                block.mlp.router.__class__ = FixedRouter
        return model.to(device)

    def shape(self) -> TransformerShape:
        """The same model for the theory."""
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
# The versions that the demo experts trains: by hand, and with what torch has.


class ByHand(Trainee):
    """The technique of scratch.experts; gradients are summed tensor by tensor."""

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
        """Passes of this rank's rows; then all gradients but the experts' are summed."""
        loss = self.share(self.model, batch)
        loss.backward()
        for name, gradient in gradients_of(self.model).items():
            if ".experts." not in name:
                dist.all_reduce(gradient)
        return loss

    def share(self, model: nn.Module, batch: Batch) -> Tensor:
        """This rank's share of the whole batch's loss."""
        mine = own_rows(batch, self.rank)
        loss = self.training.loss(model, mine, len(mine[0]) / len(batch[0]))
        moes = mixtures(self.model)
        self.load.append([moe.counts.sum(0).tolist() for moe in moes])
        self.dropped.append(sum(int((moe.counts - moe.kept).sum()) for moe in moes))
        return loss

    def gradients(self) -> dict[str, Tensor]:
        """The gradients of all ranks: each has some of the experts."""
        mine = {name: gradient.cpu() for name, gradient in gradients_of(self.model).items()}
        return {name: gradient for one in from_all_ranks(mine) for name, gradient in one.items()}

    def sums(self) -> list[int]:
        """Bytes of each all-reduce of gradients."""
        named = self.model.named_parameters()
        return [p.nbytes for name, p in named if ".experts." not in name]


class TorchDispatcher(Dispatcher):
    """Tokens travel by torch's all-to-all."""

    def all_to_all(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        assert self.group is not None
        return functional.all_to_all(rows, sent, received, self.group)


class Library(ByHand):
    """torch's all-to-all with autograd, and DDP for all that is not an expert."""

    name = "torch: all-to-all, DDP"

    def __init__(self, training: ExpertTraining, rank: launch.Rank) -> None:
        super().__init__(training, rank, dispatcher=TorchDispatcher)
        # The attribute by which DDP learns which parameters are none of its business.
        names = [name for name, _ in self.model.named_parameters() if ".experts." in name]
        cast(Any, self.model)._ddp_params_and_buffers_to_ignore = names
        self.ddp = DistributedDataParallel(self.model)

    def backward(self, batch: Batch) -> Tensor:
        loss = self.share(self.ddp, batch)
        (loss * self.rank.world).backward()  # DDP takes the mean, not the sum
        for name, gradient in gradients_of(self.model).items():
            if ".experts." in name:
                gradient /= self.rank.world
        return loss

    def sums(self) -> list[int]:
        return ddp_buckets(super().sums()[::-1])
