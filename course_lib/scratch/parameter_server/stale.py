"""What late gradients do: descent in one process, with a delay.

Langford, Smola and Zinkevich 2009, "Slow Learners are Fast", NeurIPS.
"""

from collections.abc import Callable

from torch import Tensor


def descend(
    start: Tensor,
    gradient: Callable[[Tensor], Tensor],
    *,
    lr: float,
    late: int,
    updates: int,
) -> list[Tensor]:
    """The weights before each update and after the last one.

    Each gradient is that of the weights `late` updates ago, as if it had
    travelled for so long; at the beginning, that of the first weights.
    """
    weights = [start]
    for update in range(updates):
        old = weights[max(0, update - late)]
        weights.append(weights[-1] - lr * gradient(old))
    return weights
