"""AdamW as the check must refuse it: (what was thought, answer, words of the refusal)."""

import torch

from course_lib.scratch import precision
from tests.checking.builds.patches import versions


def adamw_update(
    weight,
    gradient,
    momentum,
    variance,
    *,
    step,
    lr,
    betas=(0.9, 0.999),
    eps=1e-8,
    weight_decay=0.01,
):
    """Right."""
    fast, slow = betas
    momentum.mul_(fast).add_(gradient, alpha=1 - fast)
    variance.mul_(slow).add_(gradient**2, alpha=1 - slow)
    bias = 1 - fast**step, 1 - slow**step
    root = (variance / bias[1]).sqrt() + eps
    weight.mul_(1 - lr * weight_decay).sub_(lr * momentum / bias[0] / root)


class Written:
    """Another way to write it: lists, and a list of fp32 gradients while it steps."""

    def __init__(self, parameters, lr, weight_decay=0.01):
        self.weights, self.lr, self.weight_decay, self.count = list(parameters), lr, weight_decay, 0
        self.masters = [w.detach().clone().to(torch.float32) for w in self.weights]
        self.moments = [(torch.zeros_like(m), torch.zeros_like(m)) for m in self.masters]

    @property
    def state(self):
        rows = zip(self.weights, self.masters, self.moments, strict=True)
        return {
            weight: {"master_copy": master, "momentum": one, "variance": two}
            for weight, master, (one, two) in rows
        }

    def step(self):
        self.count += 1
        gradients = [None if w.grad is None else w.grad.float() for w in self.weights]
        for place, gradient in enumerate(gradients):
            if gradient is not None:
                adamw_update(
                    self.masters[place],
                    gradient,
                    *self.moments[place],
                    step=self.count,
                    lr=self.lr,
                    weight_decay=self.weight_decay,
                )
                self.weights[place].data.copy_(self.masters[place])


Written.__name__ = "MasterAdamW"
_UPDATES = """
    no correction
    - bias = 1 - fast**step, 1 - slow**step
    + bias = 1, 1
    ? 1 weight after update 1.*start at zero
    eps below the root
    - (variance / bias[1]).sqrt() + eps
    + (variance / bias[1] + eps).sqrt()
    ? 1 eps below the root
    no decay
    - weight.mul_(1 - lr * weight_decay).sub_
    + weight.sub_
    ? 1 without weight decay
    decay without lr
    - 1 - lr * weight_decay
    + 1 - weight_decay
    ? 1 decay is not multiplied by lr
    decay in the gradient
    - fast, slow = betas
    + fast, slow = betas
    + gradient = gradient + weight_decay * weight
    - weight.mul_(1 - lr * weight_decay).sub_
    + weight.sub_
    ? 1 momentum.*decay is added to the
    exchanges β
    - momentum.mul_(fast).add_(gradient, alpha=1 - fast)
    + momentum.mul_(1 - fast).add_(gradient, alpha=fast)
    ? 1 momentum.*4 times.*β in place
    adds gradients up
    - add_(gradient, alpha=1 - fast)
    + add_(gradient)
    ? 1 momentum.*5 times.*not its share
    new moments
    - variance.mul_(slow).add_(gradient**2, alpha=1 - slow)
    + variance = slow * variance + (1 - slow) * gradient**2
    ? 1 variance.*in place
    changes the gradient
    - fast, slow = betas
    + fast, slow = betas
    + gradient.add_(0.1)
    ? 1 gradient has
"""
_OPTIMIZERS = """
    no master copy
    - state["step"] += 1
    + state["step"] += 1
    + state["master_copy"].copy_(weight)
    ? 2 too small for bf16
    momentum in bf16
    - state["step"] += 1
    + state["step"] += 1
    + state["momentum"] = state["momentum"].float()
    - weight.copy_(state["master_copy"])
    + weight.copy_(state["master_copy"])
    + state["momentum"] = state["momentum"].bfloat16()
    ? 2 momentum is bfloat16
    fp32 weights
    - weight.copy_(state["master_copy"])
    + weight.data = state["master_copy"].clone()
    ? 2 is float32, expected bfloat16
    weights stay
    - weight.copy_(state["master_copy"])
    ? 2 its master copy has moved
    decays all
    - continue
    + weight.mul_(1 - 10 * self.lr)
    + continue
    ? 2 changed without a gradient
    an iterator twice
    - self.lr, self.weight_decay = lr, weight_decay
    + self.lr, self.weight_decay, empty = lr, weight_decay, list(parameters)
    ? 2 dict for each parameter
    keeps gradients
    - weight.copy_(state["master_copy"])
    + weight.copy_(state["master_copy"])
    + state["gradient"] = weight.grad.float()
    ? 3 16 bytes for each.*more
    leaves temporaries
    - for weight, state in self.state.items():
    + self.left = [*getattr(self, "left", ()), torch.zeros(35)]
    + for weight, state in self.state.items():
    ? 3 leaves 140 bytes
"""
WRONG = [
    *versions(adamw_update, lambda update: [update, precision.MasterAdamW], _UPDATES),
    *versions(precision.MasterAdamW, lambda kind: [precision.adamw_update, kind], _OPTIMIZERS),
]
RIGHT = [("lists", [adamw_update, Written])]
