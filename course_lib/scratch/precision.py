"""Low precision: master weights, loss scaling, 8-bit states, emulated fp8."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

# AdamW for bf16 weights: updates are applied to an fp32 master copy.


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
    """Update `weight` and both moments in place; `step` counts from 1.

    The moments start at zero, so after n updates their weights add up to only
    1 - β^n; dividing by that corrects the bias (Kingma and Ba 2014,
    arXiv:1412.6980, section 3). The decay applies to the weight directly, not
    via the moments (Loshchilov and Hutter 2017, arXiv:1711.05101,
    algorithm 2).
    """
    momentum.lerp_(gradient, 1 - betas[0])
    variance.lerp_(gradient.square(), 1 - betas[1])
    mean = momentum / (1 - betas[0] ** step)
    root = (variance / (1 - betas[1] ** step)).sqrt_()
    weight.mul_(1 - lr * weight_decay)
    weight.sub_(mean.div_(root.add_(eps)), alpha=lr)


class MasterAdamW:
    """AdamW on fp32 copies of 16-bit weights, copied back after each step.

    bf16 has 8 significant bits: 1.0 + 0.001 is 1.0, so an update of 0.001 is
    lost. Micikevicius et al. 2018, arXiv:1710.03740, section 3.1.

    `state` maps each parameter to its master copy, momentum and variance in
    fp32, and its number of updates.
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
                weight.grad.float(),  # allocated for this tensor's update only
                state["momentum"],
                state["variance"],
                step=state["step"],
                lr=self.lr,
                weight_decay=self.weight_decay,
            )
            weight.copy_(state["master_copy"])


# Loss scaling: backward works on gradients scaled into the range of fp16.


class LossScaler:
    """Multiplies the loss by `scale`, and divides the gradients by it again.

    By the chain rule all gradients of the backward pass are scaled as well.
    When one overflows, `scale` is halved and the update is skipped; after
    `growth_interval` updates in a row it doubles: the rules of
    torch.amp.GradScaler. Loss scaling: arXiv:1710.03740, section 3.2.
    """

    def __init__(
        self, scale: float = 2.0**16, growth_interval: int = 2000
    ) -> None:
        self.scale, self.growth_interval = scale, growth_interval
        self.in_a_row = 0

    def scaled(self, loss: Tensor) -> Tensor:
        """The scaled loss, to call `backward` on."""
        return loss * self.scale

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Unscale and update; returns False if an overflow skipped it."""
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


# AdamW with 8-bit moments, quantised in blocks with one scale each.
#
# Dettmers et al. 2021, 8-bit Optimizers via Block-wise Quantization,
# arXiv:2110.02861, sections 2.1 and 2.2.


def linear_levels(signed: bool) -> Tensor:
    """Evenly spaced quantisation levels from -1 (unsigned: 0) to 1.

    The smallest positive unsigned level is 1/255: values below half of it
    become 0, which is no problem for a momentum, but variances are divided by.
    """
    return torch.linspace(-1, 1, 255) if signed else torch.linspace(0, 1, 256)


def dynamic_levels(signed: bool) -> Tensor:
    """Quantisation levels from -1 (unsigned: 0) to 1, denser near 0.

    Seven decades, from 1 down to 1e-7; each has half as many levels as the
    one above, evenly spaced. Unsigned, there are twice as many. The paper's
    unsigned map includes 0; here no variance is rounded to 0.
    """
    most = 64 if signed else 128
    decades = []
    for decade in range(7):
        edges = torch.linspace(0.1, 1, 1 + (most >> decade))
        decades.append(10.0**-decade * (edges[1:] + edges[:-1]) / 2)
    levels = torch.cat([*decades, torch.ones(1)])
    if signed:
        levels = torch.cat([-torch.cat(decades), torch.zeros(1), levels])
    return levels.sort().values


def fp8_levels(dtype: torch.dtype) -> Tensor:
    """All finite values of an fp8 format, divided by the largest: -1 to 1.

    `dtype` is torch.float8_e4m3fn or torch.float8_e5m2. Micikevicius et al.
    2022, arXiv:2209.05433, table 1.
    """
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    numbers = codes[codes.isfinite()]
    return (
        numbers / torch.finfo(dtype).max
    ).unique()  # sorted; 0 and -0 are one


def quantise(
    values: Tensor, levels: Tensor, block: int = 256
) -> tuple[Tensor, Tensor]:
    """Block-wise quantisation: one byte per value, one scale per block.

    A block is `block` consecutive values of the flattened tensor (the last
    may be shorter); its scale is its largest absolute value. A code is the
    index of the level nearest to value / scale. Returns the codes in the
    shape of `values`, and the scales: (blocks,).
    """
    count = values.numel()
    blocks = pad(values.flatten(), (0, -count % block)).view(-1, block)
    scales = blocks.abs().amax(dim=1)
    smallest = torch.finfo(scales.dtype).tiny  # 0 / 0 is not a number
    shares = blocks / scales.clamp(min=smallest).unsqueeze(1)
    levels = levels.to(values.device)
    borders = (levels[1:] + levels[:-1]) / 2
    codes = torch.bucketize(shares, borders).flatten()[:count]
    return codes.to(torch.uint8).view_as(values), scales


def dequantise(
    codes: Tensor, scales: Tensor, levels: Tensor, block: int = 256
) -> Tensor:
    """The values that the codes represent, in the shape of the codes."""
    scale = scales.repeat_interleave(block)[: codes.numel()]
    return levels.to(codes.device)[codes.int()] * scale.view_as(codes)


class AdamW8bit:
    """AdamW that keeps its moments quantised between updates.

    `state` maps each parameter to the codes and scales of both moments, and
    its number of updates.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        weight_decay: float = 0.01,
        block: int = 256,
    ) -> None:
        self.lr, self.weight_decay, self.block = lr, weight_decay, block
        self.levels = {
            "momentum": dynamic_levels(signed=True),
            "variance": dynamic_levels(signed=False),
        }
        self.state: dict[nn.Parameter, dict[str, Any]] = {}
        for weight in parameters:
            self.state[weight] = {"step": 0}
            for name in self.levels:
                self._keep(weight, name, torch.zeros_like(weight))

    @torch.no_grad()
    def step(self) -> None:
        """One update; dequantises the moments of one tensor at a time."""
        for weight, state in self.state.items():
            if weight.grad is None:
                continue
            state["step"] += 1
            moments = {
                name: self._moment(weight, name) for name in self.levels
            }
            adamw_update(
                weight,
                weight.grad,
                *moments.values(),
                step=state["step"],
                lr=self.lr,
                weight_decay=self.weight_decay,
            )
            for name, values in moments.items():
                self._keep(weight, name, values)

    def _keep(self, weight: nn.Parameter, name: str, values: Tensor) -> None:
        codes, scales = quantise(values, self.levels[name], self.block)
        self.state[weight] |= {name: codes, f"{name}_scales": scales}

    def _moment(self, weight: nn.Parameter, name: str) -> Tensor:
        codes, scales = (
            self.state[weight][key] for key in (name, f"{name}_scales")
        )
        return dequantise(codes, scales, self.levels[name], self.block)


# Linear layers whose matrix products take rounded operands, as fp8 units do.
#
# Emulated: the rounded operands are multiplied in fp32, so no time is saved.


@dataclass(frozen=True)
class Formats:
    """The formats of the operands, and whether there is a scale per tensor.

    The defaults are Transformer Engine's `Format.HYBRID`: E4M3, and E5M2 for
    gradients.
    """

    forward: torch.dtype = torch.float8_e4m3fn  # inputs and weights
    backward: torch.dtype = torch.float8_e5m2  # gradients of the outputs
    scaled: bool = True


def round_to(
    values: Tensor, dtype: torch.dtype, scaled: bool = True
) -> Tensor:
    """Round the values to `dtype` and back; same shape and dtype as before.

    `scaled`: scale the largest value to the largest number of `dtype`, and
    scale back afterwards. Values beyond that number are clamped to it.
    Micikevicius et al. 2022, arXiv:2209.05433, section 3.
    """
    most = torch.finfo(dtype).max
    smallest = torch.finfo(values.dtype).tiny  # 0 / 0 is not a number
    scale = values.abs().amax().clamp(min=smallest) / most if scaled else 1
    inside = (values / scale).clamp(-most, most)
    return inside.to(dtype).to(values.dtype) * scale


class RoundedProduct(torch.autograd.Function):
    """x · weightᵀ with rounded operands, in forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, how: Formats) -> Tensor:
        x = round_to(x, how.forward, how.scaled)
        weight = round_to(weight, how.forward, how.scaled)
        ctx.save_for_backward(x, weight)
        ctx.how = how
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        gradient = round_to(gradient, ctx.how.backward, ctx.how.scaled)
        rows = gradient.flatten(0, -2)  # (tokens, out)
        return gradient @ weight, rows.T @ x.flatten(0, -2), None


class RoundedLinear(nn.Module):
    """A linear layer with rounded products; the stored weight is unrounded."""

    def __init__(self, layer: nn.Linear, how: Formats) -> None:
        super().__init__()
        self.weight, self.bias, self.how = layer.weight, layer.bias, how

    def forward(self, x: Tensor) -> Tensor:
        product = RoundedProduct.apply(x, self.weight, self.how)
        return product if self.bias is None else product + self.bias


def round_products(model: nn.Module, how: Formats) -> None:
    """Replace every nn.Linear in `model` by a RoundedLinear, in place."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear):
            model.set_submodule(name, RoundedLinear(layer, how))
