"""AdamW as the check must refuse it: (what was thought, answer, words of the refusal)."""

import torch

from course_lib.scratch.master_copy import MasterAdamW, adamw_update


def _without(mistake):
    """The right arithmetic, with one mistake."""

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
        fast, slow = betas
        if mistake == "l2":
            gradient = gradient + weight_decay * weight
        if mistake == "changes the gradient":
            gradient.add_(0.1)
        if mistake == "swaps beta":
            momentum.mul_(1 - fast).add_(gradient, alpha=fast)
        elif mistake == "adds up":
            momentum.mul_(fast).add_(gradient)
        else:
            momentum.mul_(fast).add_(gradient, alpha=1 - fast)
        if mistake == "not in place":
            variance = slow * variance + (1 - slow) * gradient**2
        else:
            variance.mul_(slow).add_(gradient**2, alpha=1 - slow)
        bias = (1, 1) if mistake == "bias" else (1 - fast**step, 1 - slow**step)
        root = (variance / bias[1]).sqrt() + eps
        if mistake == "eps":
            root = (variance / bias[1] + eps).sqrt()
        decay = {"l2": 0, "no decay": 0, "decay": weight_decay}.get(mistake, lr * weight_decay)
        if mistake == "returns":
            return weight * (1 - decay) - lr * momentum / bias[0] / root
        weight.mul_(1 - decay).sub_(lr * momentum / bias[0] / root)
        return None

    return adamw_update


class _Changed(MasterAdamW):
    """Calls itself as the right one does."""

    def __init_subclass__(cls):
        cls.__name__ = "MasterAdamW"


class NoMaster(_Changed):
    @torch.no_grad()
    def step(self):
        for weight, state in self.state.items():
            if weight.grad is not None:
                state["master_copy"].copy_(weight)
        MasterAdamW.step(self)


class Bf16Moments(_Changed):
    def __init__(self, parameters, lr, weight_decay=0.01):
        super().__init__(parameters, lr, weight_decay)
        for state in self.state.values():
            state["momentum"] = state["momentum"].bfloat16()

    @torch.no_grad()
    def step(self):
        for state in self.state.values():
            state["momentum"] = state["momentum"].float()
        super().step()
        for state in self.state.values():
            state["momentum"] = state["momentum"].bfloat16()


class Fp32Weights(_Changed):
    @torch.no_grad()
    def step(self):
        MasterAdamW.step(self)
        for weight, state in self.state.items():
            weight.data = state["master_copy"].clone()


class ForgetsTheWeights(_Changed):
    @torch.no_grad()
    def step(self):
        before = [weight.detach().clone() for weight in self.state]
        MasterAdamW.step(self)
        for weight, old in zip(self.state, before, strict=True):
            weight.copy_(old)


class DecaysWithoutGradient(_Changed):
    def __init__(self, parameters, lr, weight_decay=0.01):
        super().__init__(parameters, lr, weight_decay)

    @torch.no_grad()
    def step(self):
        for weight in self.state:
            if weight.grad is None:
                weight.mul_(1 - 10 * self.lr)
        MasterAdamW.step(self)


class KeepsTheGradients(_Changed):
    @torch.no_grad()
    def step(self):
        for weight, state in self.state.items():
            if weight.grad is not None:
                state["gradient"] = weight.grad.float()
        MasterAdamW.step(self)


class LeavesTemporaries(_Changed):
    @torch.no_grad()
    def step(self):
        self.left = [*getattr(self, "left", ()), torch.zeros(35)]
        MasterAdamW.step(self)


class ConsumesTwice(_Changed):
    def __init__(self, parameters, lr, weight_decay=0.01):
        self.parameters = parameters
        super().__init__(parameters, lr, weight_decay)
        self.state = {weight: self.state[weight] for weight in parameters}  # an iterator is empty


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
                _plain(
                    self.masters[place],
                    gradient,
                    *self.moments[place],
                    step=self.count,
                    lr=self.lr,
                    weight_decay=self.weight_decay,
                )
                self.weights[place].data.copy_(self.masters[place])


Written.__name__ = "MasterAdamW"


def _plain(weight, gradient, momentum, variance, **rates):
    return _without("nothing")(weight, gradient, momentum, variance, **rates)


def _with(update=adamw_update, optimizer=MasterAdamW):
    update.__name__ = "adamw_update"
    return [update, optimizer]


_FIRST, _SECOND, _THIRD = (f"step {n} of 3.*" for n in (1, 2, 3))
WRONG = [
    ("no correction", _with(_without("bias")), _FIRST + "weight after update 1.*start at zero"),
    ("eps below the root", _with(_without("eps")), _FIRST + "eps below the root"),
    ("no decay", _with(_without("no decay")), _FIRST + "without weight decay"),
    ("decay without lr", _with(_without("decay")), _FIRST + "decay is not multiplied by lr"),
    ("decay in the gradient", _with(_without("l2")), _FIRST + "momentum.*decay is added to the"),
    ("exchanges β", _with(_without("swaps beta")), _FIRST + "momentum.*4 times.*β in place"),
    ("adds gradients up", _with(_without("adds up")), _FIRST + "momentum.*5 times.*not its share"),
    ("new moments", _with(_without("not in place")), _FIRST + "variance.*in place"),
    ("a new weight", _with(_without("returns")), _FIRST + "weight after update 1.*in place"),
    ("changes the gradient", _with(_without("changes the gradient")), _FIRST + "gradient has"),
    ("no master copy", _with(optimizer=NoMaster), _SECOND + "too small for bf16"),
    ("momentum in bf16", _with(optimizer=Bf16Moments), _SECOND + "momentum is bfloat16"),
    ("fp32 weights", _with(optimizer=Fp32Weights), _SECOND + "is float32, expected bfloat16"),
    ("weights stay", _with(optimizer=ForgetsTheWeights), _SECOND + "its master copy has moved"),
    ("decays all", _with(optimizer=DecaysWithoutGradient), _SECOND + "changed without a gradient"),
    ("an iterator twice", _with(optimizer=ConsumesTwice), _SECOND + "dict for each parameter"),
    ("keeps gradients", _with(optimizer=KeepsTheGradients), _THIRD + "16 bytes for each.*more"),
    ("leaves temporaries", _with(optimizer=LeavesTemporaries), _THIRD + "leaves 140 bytes"),
]
RIGHT = [("lists", _with(_without("nothing"), Written))]
