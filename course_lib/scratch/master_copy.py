"""AdamW for bf16 weights: small updates go to an fp32 master copy."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


def adamw_update(
    weight: Tensor,
    gradient: Tensor,
    momentum: Tensor,
    variance: Tensor,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> None:
    """Update number `step` (from 1) of `weight` and both moments, in place.

    The moments begin at zero, so after n updates their weights add up to
    1 - β^n only; dividing by that corrects it (Kingma and Ba 2014,
    arXiv:1412.6980, section 3). The decay goes to the weight directly, past
    the moments (Loshchilov and Hutter 2017, arXiv:1711.05101, algorithm 2).
    """
    momentum.lerp_(gradient, 1 - betas[0])
    variance.lerp_(gradient.square(), 1 - betas[1])
    mean = momentum / (1 - betas[0] ** step)
    root = (variance / (1 - betas[1] ** step)).sqrt_()
    weight.mul_(1 - lr * weight_decay)
    weight.sub_(mean.div_(root.add_(eps)), alpha=lr)


class MasterAdamW:
    """AdamW on fp32 copies of 16-bit weights, copied back after each step.

    bf16 keeps 8 binary digits: 1.0 + 0.001 is 1.0, so an update of one
    thousandth is lost.
    Micikevicius et al. 2018, arXiv:1710.03740, section 3.1.

    `state` has for each parameter its master copy, momentum and variance in
    fp32, and the number of its updates.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        weight_decay: float = 0.01,
    ) -> None:
        self.lr, self.weight_decay = lr, weight_decay
        self.state: dict[nn.Parameter, dict[str, Any]] = {}
        for weight in parameters:
            master = weight.detach().to(torch.float32, copy=True)
            self.state[weight] = {
                "master_copy": master,
                "momentum": torch.zeros_like(master),
                "variance": torch.zeros_like(master),
                "step": 0,
            }

    @torch.no_grad()
    def step(self) -> None:
        """One update of the master copy, rounded into the 16-bit weights."""
        for weight, state in self.state.items():
            if weight.grad is None:
                continue
            state["step"] += 1
            adamw_update(
                state["master_copy"],
                weight.grad.float(),  # lives for this tensor's update only
                state["momentum"],
                state["variance"],
                step=state["step"],
                lr=self.lr,
                weight_decay=self.weight_decay,
            )
            weight.copy_(state["master_copy"])
