"""A small mixture of experts that learns, and how busy its experts are meanwhile."""

import torch
from torch import Tensor

from course_lib.scratch.experts import BiasedRouter, MoE

EXPERTS, TOKENS, UPDATES = 4, 512, 60


def task() -> tuple[MoE, Tensor, Tensor]:
    """A mixture with top-1, its tokens, and the random function that it learns to imitate."""
    torch.manual_seed(0)
    moe = MoE(hidden=16, experts=EXPERTS, top_k=1)
    x = torch.randn(TOKENS, 16) + 1.0  # tokens that are somewhat alike
    return moe, x, torch.tanh(x @ torch.randn(16, 16))


def train(
    moe: MoE, x: Tensor, wanted: Tensor, *, alpha: float = 0.0, speed: float = 0.0, z: float = 0.0
) -> tuple[list[float], list[int], float]:
    """The busiest expert over the mean at each update; the last loads, and the last error.

    `alpha` and `z` multiply the balance loss and the z-loss; `speed` is the step of a
    BiasedRouter's biases.
    """
    optimizer, imbalance = torch.optim.Adam(moe.parameters(), lr=1e-2), []
    for _ in range(UPDATES):
        error = (moe(x) - wanted).square().mean()
        z_loss = moe.router.scores(x).logsumexp(-1).square().mean()
        (error + alpha * moe.balance + z * z_loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        load = moe.counts.sum(0)
        imbalance.append(EXPERTS * int(load.max()) / TOKENS)
        if isinstance(moe.router, BiasedRouter):
            moe.router.nudge(load, speed)
    return imbalance, load.tolist(), error.item()


def with_biases(moe: MoE) -> MoE:
    """The same mixture with a BiasedRouter that starts from the same scores."""
    router = BiasedRouter(hidden=16, experts=EXPERTS, top_k=1)
    router.scores = moe.router.scores
    moe.router = router
    return moe
