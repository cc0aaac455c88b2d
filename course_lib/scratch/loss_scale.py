"""Loss scaling: gradients too small for fp16 are made larger on their way."""

import torch
from torch import Tensor


class LossScaler:
    """Multiplies the loss by `scale`, and divides the gradients by it again.

    By the chain rule all gradients of the backward pass are multiplied as
    well. `scale` is halved when one of them overflows, and that update is left
    out; after `growth_interval` updates in a row it doubles: the rules of
    torch.amp.GradScaler. Scaled losses: arXiv:1710.03740, section 3.2.
    """

    def __init__(
        self, scale: float = 2.0**16, growth_interval: int = 2000
    ) -> None:
        self.scale, self.growth_interval = scale, growth_interval
        self.in_a_row = 0

    def scaled(self, loss: Tensor) -> Tensor:
        """What `backward` is called on."""
        return loss * self.scale

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Update by the true gradients. False: no update, after overflow."""
        weights = [
            w for group in optimizer.param_groups for w in group["params"]
        ]
        gradients = [
            w.grad.div_(self.scale) for w in weights if w.grad is not None
        ]
        if not all(bool(gradient.isfinite().all()) for gradient in gradients):
            self.scale, self.in_a_row = self.scale / 2, 0
            return False
        optimizer.step()
        self.in_a_row += 1
        if self.in_a_row == self.growth_interval:
            self.scale, self.in_a_row = self.scale * 2, 0
        return True
