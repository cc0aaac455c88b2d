"""What the demo of expert parallelism trains: a GPT with a mixture of experts in every layer."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from course_lib.demos.shared.batch import Batch, mean_loss
from course_lib.demos.shared.training import Training
from course_lib.scratch.experts import MoE, Router
from course_lib.scratch.gpt import GPT
from course_lib.theory.inputs.shape import TransformerShape


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
