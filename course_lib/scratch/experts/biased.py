"""A router that is balanced by a bias instead of a loss."""

import torch
from torch import Tensor

from course_lib.scratch.experts.router import Router


class BiasedRouter(Router):
    """Adds a number for each expert to its probability, for the choice only.

    The weights of the chosen experts stay those of the probabilities, and no
    gradient reaches the bias: `nudge` moves it after each update. DeepSeek-V3,
    arXiv:2412.19437, section 2.1.2; Wang et al. 2024, arXiv:2408.15664.
    """

    bias: Tensor

    def __init__(self, hidden: int, experts: int, top_k: int) -> None:
        super().__init__(hidden, experts, top_k)
        self.register_buffer("bias", torch.zeros(experts))

    def choose(self, probabilities: Tensor) -> Tensor:
        """The `top_k` best experts of each token, by probability plus bias."""
        return super().choose(probabilities + self.bias)

    def nudge(self, load: Tensor, speed: float) -> None:
        """Up by `speed` for experts below the mean load, down for those above.

        `load` counts the choices that fell on each expert, of all ranks: so
        all of them move the bias alike, without a message.
        """
        load = load.to(self.bias)
        self.bias += speed * (load.mean() - load).sign()
