"""AdamW for bf16 weights: small updates go to an fp32 master copy."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn


class MasterAdamW:
    """AdamW on fp32 copies of 16-bit weights, copied back after each step.

    bf16 keeps 8 binary digits: 1.0 + 0.001 is 1.0, so an update of one
    thousandth is lost.
    Micikevicius et al. 2018, arXiv:1710.03740, section 3.1.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        self.parameters = list(parameters)
        self.master = [
            p.detach().float().requires_grad_() for p in self.parameters
        ]
        self.adamw = torch.optim.AdamW(self.master, lr=lr)

    @torch.no_grad()
    def step(self) -> None:
        """One update of the master copy, rounded into the 16-bit weights."""
        for weight, master in self._pairs():
            if weight.grad is not None:
                master.grad = weight.grad.float()
        self.adamw.step()
        for weight, master in self._pairs():
            weight.copy_(master)
            master.grad = None  # the fp32 gradient lives only during the step

    @property
    def state(self) -> dict[Tensor, dict[str, Tensor]]:
        """AdamW's moments, and the master copy itself, for each tensor."""
        return {
            master: {**self.adamw.state[master], "master_copy": master}
            for master in self.master
        }

    def _pairs(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        return zip(self.parameters, self.master, strict=True)
