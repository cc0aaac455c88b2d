"""8-bit optimizers that the check must refuse: (what was thought, answer, words of the refusal)."""

import torch

from course_lib.scratch.eight_bit import (
    AdamW8bit,
    dequantise,
    dynamic_levels,
    linear_levels,
    quantise,
)
from course_lib.scratch.master_copy import adamw_update


def one_scale(values, levels, block=256):
    """Of the whole tensor, repeated for each block."""
    blocks = -(-values.numel() // block)
    scale = values.abs().max() if values.numel() else values.new_zeros(())
    shares = values / scale.clamp(min=1e-38)
    codes = torch.bucketize(shares, (levels[1:] + levels[:-1]) / 2)
    return codes.to(torch.uint8), scale.repeat(blocks)


def level_below(values, levels, block=256):
    _, scales = quantise(values, levels, block)
    exact = values / scales.repeat_interleave(block)[: values.numel()].view_as(values).clamp(1e-38)
    return (torch.searchsorted(levels, exact, right=True) - 1).clamp(0).to(torch.uint8), scales


def divides_by_zero(values, levels, block=256):
    pieces = values.flatten().split(block) if values.numel() else []
    codes = [
        (levels - (piece / piece.abs().max()).unsqueeze(1)).abs().argmin(1) for piece in pieces
    ]
    scales = [piece.abs().max() / piece.abs().max() * piece.abs().max() for piece in pieces]
    empty = values.new_zeros(0)
    codes, scales = torch.cat([empty, *codes]), torch.stack(scales) if scales else empty
    return codes.to(torch.uint8).view_as(values), scales


def keeps_the_filling(values, levels, block=256):
    flat = values.flatten()
    whole = torch.cat([flat, flat.new_zeros(-len(flat) % block)])
    return quantise(whole, levels, block)


def whole_numbers(values, levels, block=256):
    codes, scales = quantise(values, levels, block)
    return codes.long(), scales


def signed_scales(values, levels, block=256):
    """The largest value, without its sign's absolute."""
    codes, scales = quantise(values, levels, block)
    largest = [piece.max() for piece in values.flatten().split(block) if piece.numel()]
    return codes, torch.stack(largest) if largest else scales


def a_view(values, levels, block=256):
    """Codes that keep the filling alive."""
    flat = values.flatten()
    whole = torch.cat([flat, flat.new_zeros(-len(flat) % block)])
    codes, scales = quantise(whole, levels, block)
    return codes[: len(flat)].view_as(values), scales


def without_scales(codes, scales, levels, block=256):
    return levels[codes.int()]


def scales_in_turn(codes, scales, levels, block=256):
    """Scales repeated as a whole, not each by itself."""
    repeated = scales.repeat(block)[: codes.numel()]
    return levels[codes.int()] * repeated.view_as(codes)


def block_of_256(codes, scales, levels, block=256):
    return dequantise(codes, scales, levels)


class _Changed(AdamW8bit):
    """Calls itself as the right one does."""

    def __init_subclass__(cls):
        cls.__name__ = "AdamW8bit"


class Linear(_Changed):
    def __init__(self, parameters, lr, weight_decay=0.01, block=256):
        super().__init__(parameters, lr, weight_decay, block)
        self.levels = {"momentum": linear_levels(True), "variance": linear_levels(False)}
        for weight in self.state:
            for name in self.levels:
                self._keep(weight, name, torch.zeros_like(weight))


class LinearVariance(_Changed):
    def __init__(self, parameters, lr, weight_decay=0.01, block=256):
        super().__init__(parameters, lr, weight_decay, block)
        self.levels["variance"] = linear_levels(False)


class KeepsFp32(_Changed):
    @torch.no_grad()
    def step(self):
        AdamW8bit.step(self)
        for state in self.state.values():
            state["last"] = state["momentum"].float()


class ForgetsToQuantise(_Changed):
    """The moments are dequantised, updated and lost."""

    @torch.no_grad()
    def step(self):
        for weight, state in self.state.items():
            state["step"] += 1
            moments = [self._moment(weight, name) for name in self.levels]
            adamw_update(weight, weight.grad, *moments, step=state["step"], lr=self.lr)


class IgnoresBlock(_Changed):
    def __init__(self, parameters, lr, weight_decay=0.01, block=256):
        super().__init__(parameters, lr, weight_decay)


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


_FIRST, _SECOND, _THIRD, _FOURTH = (f"step {n} of 4.*" for n in (1, 2, 3, 4))
WRONG = [
    ("one scale for all", _with(one_scale), _FIRST + "each scale is one for all blocks"),
    ("the level below", _with(level_below), _FIRST + "always takes the one below"),
    ("0 / 0", _with(divides_by_zero), _FIRST + "scales has numbers that are not finite"),
    ("keeps the filling", _with(keeps_the_filling), _FIRST + "codes have shape"),
    ("codes of eight bytes", _with(whole_numbers), _FIRST + "codes are int64, expected uint8"),
    ("the largest, not the largest size", _with(signed_scales), _FIRST + "scale of block 0 is not"),
    ("no scales", _with(numbers=without_scales), _SECOND + "the levels, without their scales"),
    ("scales in turn", _with(numbers=scales_in_turn), _SECOND + "dequantise differs in"),
    ("always 256", _with(numbers=block_of_256), _SECOND + "differs in"),
    ("fp32 beside it", _with(optimizer=KeepsFp32), _THIRD + "more than one for each number"),
    ("blocks of 256", _with(optimizer=IgnoresBlock), _THIRD + "fewer than one for each number"),
    ("linear maps", _with(optimizer=Linear), _FOURTH + "learning rates.*divided by"),
    ("a linear variance", _with(optimizer=LinearVariance), _FOURTH + "learning rates.*divided by"),
    ("loses the moments", _with(optimizer=ForgetsToQuantise), _FOURTH + "are off by"),
]
RIGHT = [("by distances", _with(nearest_by_table, by_blocks, Plain))]
