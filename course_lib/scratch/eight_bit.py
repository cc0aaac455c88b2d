"""AdamW whose two moments take one byte a number, in blocks with a scale each.

Dettmers et al. 2021, 8-bit Optimizers via Block-wise Quantization,
arXiv:2110.02861, sections 2.1 and 2.2.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from course_lib.scratch.master_copy import adamw_update


def linear_levels(signed: bool) -> Tensor:
    """Numbers that a code stands for, at equal distances: from -1, or 0, to 1.

    Without a sign the smallest after 0 is 1/255: what is below half of it
    becomes 0. A momentum may; by the root of a variance the update is divided.
    """
    return torch.linspace(-1, 1, 255) if signed else torch.linspace(0, 1, 256)


def dynamic_levels(signed: bool) -> Tensor:
    """Numbers that a code stands for, from -1, or 0, to 1: many are near 0.

    Seven decades, from 1 down to 1e-7; each has half as many levels as the
    one above, at equal distances. Without a sign there are twice as many. The
    paper's map has a 0 then as well; here no variance is rounded to 0.
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
    """All numbers of an fp8 format, over the largest: from -1 to 1.

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
    """Codes, one byte for each value, and scales, one for each block.

    A block is `block` values in a row of the flattened tensor, the last one
    perhaps fewer; its scale is its largest absolute value. A code is the
    number of the level next to value / scale. Returns the codes in the shape
    of `values`, and the scales: (blocks,).
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
    """The values that the codes stand for, in the shape of the codes."""
    scale = scales.repeat_interleave(block)[: codes.numel()]
    return levels.to(codes.device)[codes.int()] * scale.view_as(codes)


class AdamW8bit:
    """AdamW that keeps its moments quantised between updates.

    `state` has for each parameter the codes and scales of both moments, and
    the number of its updates.
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
        """One update; the moments are fp32 for one tensor at a time."""
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
