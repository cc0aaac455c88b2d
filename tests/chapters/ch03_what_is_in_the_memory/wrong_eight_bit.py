"""8-bit optimizers that the check must refuse: (what was thought, answer, words of the refusal)."""

import torch

from course_lib.scratch.precision import (
    AdamW8bit,
    adamw_update,
    dequantise,
    dynamic_levels,
    quantise,
)
from tests.checking.builds.patches import versions


def nearest_by_table(values, levels, block=256):
    """Every distance to every level, block by block."""
    pieces = values.reshape(-1).split(block) if values.numel() else ()
    codes, scales = [torch.zeros(0, dtype=torch.uint8)], [values.new_zeros(0)]
    for piece in pieces:
        scale = piece.abs().max()
        shares = piece / scale if scale > 0 else piece
        codes.append((levels - shares[:, None]).abs().argmin(1).to(torch.uint8))
        scales.append(scale[None])
    return torch.cat(codes).reshape(values.shape), torch.cat(scales)


def by_blocks(codes, scales, levels, block=256):
    pieces = codes.reshape(-1).split(block) if codes.numel() else ()
    found = [levels[piece.long()] * scale for piece, scale in zip(pieces, scales, strict=True)]
    return torch.cat([scales.new_zeros(0), *found]).reshape(codes.shape)


class Plain:
    """Without subclasses, and with a map of squares for the variance."""

    def __init__(self, parameters, lr, weight_decay=0.01, block=256):
        self.lr, self.weight_decay, self.block = lr, weight_decay, block
        self.maps = dynamic_levels(True), torch.linspace(0, 1, 257)[1:] ** 2
        self.state, self.count = {weight: {} for weight in parameters}, 0

    def step(self):
        self.count += 1
        with torch.no_grad():
            for weight, kept in self.state.items():
                moments = []
                for name, levels in zip(("momentum", "variance"), self.maps, strict=True):
                    codes, scales = kept.get(name), kept.get(f"{name}_scales")
                    moments.append(
                        torch.zeros_like(weight)
                        if codes is None
                        else by_blocks(codes, scales, levels, self.block)
                    )
                adamw_update(
                    weight,
                    weight.grad,
                    *moments,
                    step=self.count,
                    lr=self.lr,
                    weight_decay=self.weight_decay,
                )
                for name, levels, moment in zip(
                    ("momentum", "variance"), self.maps, moments, strict=True
                ):
                    kept[name], kept[f"{name}_scales"] = nearest_by_table(
                        moment, levels, self.block
                    )


Plain.__name__ = "AdamW8bit"


def _with(codes=quantise, numbers=dequantise, optimizer=AdamW8bit):
    codes.__name__, numbers.__name__ = "quantise", "dequantise"
    return [codes, numbers, optimizer]


_CODES = r"""
    one scale for all
    - scales = blocks.abs().amax(dim=1)
    + largest = values.abs().max() if count else values.new_zeros(())
    + scales = largest.repeat(-(-count // block))
    ? 1 each scale is one for all blocks
    the level below
    - codes = torch.bucketize(shares, borders).flatten()[:count]
    + below = torch.searchsorted(levels, shares, right=True) - 1
    + codes = below.clamp(0).flatten()[:count]
    ? 1 always takes the one below
    0 / 0
    - scales = blocks.abs().amax(dim=1)
    + scales = blocks.abs().amax(dim=1)
    + scales = scales / scales * scales
    ? 1 scales has numbers that are not finite
    keeps the filling
    - torch.bucketize(shares, borders).flatten()[:count]
    - return codes.to(torch.uint8).view_as(values), scales
    + torch.bucketize(shares, borders).flatten()
    + return codes.to(torch.uint8), scales
    ? 1 codes have shape
    codes of eight bytes
    - codes.to(torch.uint8)
    + codes
    ? 1 codes are int64, expected uint8
    the largest, not the largest size
    - return codes.to(torch.uint8).view_as(values), scales
    + return codes.to(torch.uint8).view_as(values), blocks.amax(dim=1)
    ? 1 scale of block 0 is not
"""
_NUMBERS = """
    no scales
    - [codes.int()] * scale.view_as(codes)
    + [codes.int()]
    ? 2 the levels, without their scales
    always 256
    - scales.repeat_interleave(block)
    + scales.repeat_interleave(256)
    ? 2 differs in
"""
_OPTIMIZERS = """
    fp32 beside it
    - for name, values in moments.items():
    + state["last"] = moments["momentum"]
    + for name, values in moments.items():
    ? 3 more than one for each number
    blocks of 256
    - = lr, weight_decay, block
    + = lr, weight_decay, 256
    ? 3 fewer than one for each number
    a linear variance
    - dynamic_levels(signed=False)
    + torch.linspace(0, 1, 256)
    ? 4 learning rates.*divided by
    loses the moments
    - for name, values in moments.items():
    -     self._keep(weight, name, values)
    ? 4 are off by
"""
WRONG = [
    *versions(quantise, _with, _CODES),
    *versions(dequantise, lambda wrong: _with(numbers=wrong), _NUMBERS),
    *versions(AdamW8bit, lambda wrong: _with(optimizer=wrong), _OPTIMIZERS),
]
RIGHT = [("by distances", _with(nearest_by_table, by_blocks, Plain))]
