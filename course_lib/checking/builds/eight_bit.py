"""Build 3.12: AdamW with moments of one byte, quantised by blocks."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from course_lib.checking.build import Step, build
from course_lib.checking.builds.compared import expect_none_of, expect_tensor
from course_lib.checking.exercises import Unanswered, Wrong
from course_lib.checking.helpers import described
from course_lib.checking.races import Race
from course_lib.theory.inputs.recipe import OPTIMIZER_STATE_BYTES

if TYPE_CHECKING:
    from torch import Tensor, nn

_BLOCK = 64
# Whole blocks, a short last one, less than one, one number, none.
_SHAPES = ((2, 64), (5, 30), (7,), (), (0,))
_UPDATES, _LR = 20, 3e-3
# Relative to the way that fp32 weights go. Measured: the course's own is 0.02 off, one that loses
# its moments 0.6, linear maps 2.4.
_FARTHEST = 0.2


def _values(shape: tuple[int, ...], signed: bool = True) -> "Tensor":
    """Numbers of which every block has its own size; the second block is all zeros."""
    import torch

    values = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))
    if not signed:
        values = values.square()
    flat = values.view(-1)
    if signed:
        flat[:1] = -9.0  # the largest of its block in size
    for number, start in enumerate(range(0, len(flat), _BLOCK)):
        flat[start : start + _BLOCK].mul_(0.0 if number == 1 else 10.0 ** (3 * number - 5))
    return values


def _levels(signed: bool) -> "Tensor":
    from course_lib.scratch.eight_bit import dynamic_levels

    return dynamic_levels(signed)


def _scales(values: "Tensor") -> "Tensor":
    import torch

    flat = values.flatten().abs()
    starts = range(0, len(flat), _BLOCK)
    largest = [flat[start : start + _BLOCK].max() for start in starts]
    return torch.stack(largest) if largest else torch.zeros(0)


def _quantised(parts: SimpleNamespace) -> None:
    """Scales and codes of tensors of several sizes, with both maps."""
    for signed in (True, False):
        for shape in _SHAPES:
            values = _values(shape, signed)
            found = parts.quantise(values, _levels(signed), _BLOCK)
            if found is None:
                raise Unanswered("quantise returns None")
            if not isinstance(found, tuple | list) or len(found) != 2:
                raise Wrong(f"quantise wants to return codes and scales, got {described(found)}")
            _expect_quantised(values, _levels(signed), *found)


def _expect_quantised(values: "Tensor", levels: "Tensor", codes: Any, scales: Any) -> None:
    import torch

    what = f"{values.numel()} values of shape {tuple(values.shape)} in blocks of {_BLOCK}"
    right = _scales(values)
    if isinstance(scales, torch.Tensor) and values.numel():
        one = values.abs().max().expand(scales.shape)
        if len(right) > 1:
            expect_none_of(scales, {"one for all blocks": one}, f"{what}: each scale")
    expect_tensor(scales, right, f"{what}: scales", tolerance=1.0)
    if bool((wrong := ((scales - right).abs() > 1e-5 * right)).any()):
        raise Wrong(
            f"{what}: the scale of block {int(wrong.nonzero()[0])} is not the largest size in it"
        )
    if not isinstance(codes, torch.Tensor):
        raise Wrong(f"{what}: codes want a tensor, got {described(codes)}")
    if codes.dtype != torch.uint8:
        kind = str(codes.dtype).removeprefix("torch.")
        raise Wrong(f"{what}: codes are {kind}, expected uint8: one byte each, 0 to 255")
    if codes.shape != values.shape:
        raise Wrong(f"{what}: codes have shape {tuple(codes.shape)}, expected that of the values")
    scale = right.repeat_interleave(_BLOCK)[: values.numel()].view_as(values)
    safe = scale.clamp(min=torch.finfo(scale.dtype).tiny)
    shares = values / safe
    if codes.numel() and int(codes.max()) >= len(levels):
        raise Wrong(f"{what}: code {int(codes.max())} stands for no level, there are {len(levels)}")
    error = (levels[codes.int()] - shares).abs()
    nearest = (levels - shares.unsqueeze(-1)).abs().amin(-1)
    far = (error > nearest + 1e-6).flatten()
    if bool(far.any()):
        first = int(far.nonzero()[0])
        below = bool(((levels[codes.int()] <= shares + 1e-6) | (codes == 0)).all())
        side = ": it always takes the one below" if below else ""
        raise Wrong(
            f"{what}: {int(far.sum())} codes stand for a level that is not the nearest one to "
            f"value / scale, first that of value {first}{side}"
        )


def _dequantised(parts: SimpleNamespace) -> None:
    """The values of codes, by their own block's scale."""
    import torch

    for shape in _SHAPES:
        values, levels = _values(shape), _levels(signed=True)
        scales = 2 + torch.arange(float(len(_scales(values))))
        codes = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(3))
        scale = scales.repeat_interleave(_BLOCK)[: codes.numel()].view(shape)
        found = parts.dequantise(codes.to(torch.uint8), scales, levels, _BLOCK)
        what = f"{codes.numel()} codes of shape {shape} in blocks of {_BLOCK}: dequantise"
        if codes.numel():
            expect_none_of(found, {"the levels, without their scales": levels[codes]}, what)
        expect_tensor(found, levels[codes] * scale, what)


def _model() -> "nn.Module":
    """A small GPT; its tensors do not fill their last blocks."""
    import torch

    from course_lib.scratch.gpt import GPT

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GPT(layers=1, hidden=36, heads=4, vocab=50, context=12)


def _trained(optimizer_of: Any, updates: int) -> tuple[Any, Any, list[float]]:
    """The model, its optimizer, and the loss before each update of a text with a simple rule."""
    import torch

    from course_lib.scratch.accumulation import loss_sum

    model = _model()
    optimizer, losses = optimizer_of(model.parameters()), []
    inputs = torch.randint(0, 50, (8, 12), generator=torch.Generator().manual_seed(0))
    labels = (7 * inputs + 3) % 50
    for _ in range(updates):
        model.zero_grad()
        loss = loss_sum(model(inputs), labels) / labels.numel()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return model, optimizer, losses


def _bytes(parts: SimpleNamespace) -> None:
    """Two bytes for each weight, and a scale of each block of both moments."""
    from course_lib.measure.storages import tensor_bytes

    model, ours, _ = _trained(lambda p: parts.AdamW8bit(p, lr=_LR, block=_BLOCK), 2)
    state = getattr(ours, "state", None)
    wanted = [f"{name}{end}" for name in ("momentum", "variance") for end in ("", "_scales")]
    for name, weight in model.named_parameters():
        kept = state.get(weight) if isinstance(state, dict) else None
        if not isinstance(kept, dict):
            raise Wrong("`state` wants a dict for each parameter, as the class says")
        if missing := [one for one in wanted if not hasattr(kept.get(one), "dtype")]:
            raise Wrong(f"`state` of {name} has no tensor {missing[0]!r}")
        found = tensor_bytes(value for value in kept.values() if hasattr(value, "dtype"))
        size = weight.numel()
        right = OPTIMIZER_STATE_BYTES["adamw-8bit"] * size + 2 * 4 * -(-size // _BLOCK)
        if found != right:
            more = "fewer" if found < right else "more"
            views = "" if found < right else "; a view keeps all that it is a view of"
            raise Wrong(
                f"`state` of {name}, {size} weights in blocks of {_BLOCK}, keeps {found} bytes, "
                f"{more} than one for each number of both moments and four for each scale{views}"
            )


def _training(parts: SimpleNamespace) -> None:
    """A few updates of a small GPT end near those of fp32 AdamW."""
    import torch

    from course_lib.measure.gradients import relative_difference

    start = _flat(_model())
    fp32, _, right = _trained(lambda p: torch.optim.AdamW(p, lr=_LR), _UPDATES)
    ours, _, losses = _trained(lambda p: parts.AdamW8bit(p, lr=_LR, block=_BLOCK), _UPDATES)
    way, own = _flat(fp32) - start, _flat(ours) - start
    if not bool(own.any()):
        raise Wrong(f"after {_UPDATES} updates the weights are where they began")
    if not bool(own.isfinite().all()):
        raise Wrong(f"after {_UPDATES} updates some weights are not finite")
    if (gap := relative_difference(own, way)) > _FARTHEST:
        longest, usual = own.abs().max() / _LR, way.abs().max() / _LR
        kind = ""
        if longest > 2 * usual:
            kind = (
                f"; a weight moved by {longest:.3g} learning rates, in fp32 at most {usual:.3g}: "
                "what is it divided by?"
            )
        raise Wrong(
            f"after {_UPDATES} updates the weights are off by {gap:.2g} of the way that fp32 "
            f"AdamW's went, and the loss is {losses[-1]:.2f} beside {right[-1]:.2f}{kind}"
        )


def _flat(model: "nn.Module") -> "Tensor":
    import torch

    return torch.cat([p.detach().flatten() for p in model.parameters()])


def _prepared(parts: SimpleNamespace) -> Any:
    """One update of 90,000 weights."""
    import torch
    from torch import nn

    weight = nn.Parameter(torch.ones(300, 300))
    weight.grad = torch.randn(300, 300, generator=torch.Generator().manual_seed(0))
    return parts.AdamW8bit([weight], lr=_LR).step


def _by_torch() -> Any:
    """torch's AdamW, in fp32: it has no 8-bit one."""
    import torch
    from torch import nn

    weight = nn.Parameter(torch.ones(300, 300))
    weight.grad = torch.ones_like(weight)
    return torch.optim.AdamW([weight], lr=_LR, fused=True).step


EIGHT_BIT = build(
    "eight_bit",
    title="moments of one byte",
    hints=(
        "Flatten, fill the last block with zeros (`torch.nn.functional.pad`), and make it a table "
        "of one block a row. A block of zeros has scale 0: divide by something else there.",
        "Between two neighbouring levels lies the border at which the nearer one changes; "
        "`torch.bucketize(shares, borders)` counts the borders below each share.",
        "dequantise: `levels[codes.int()]`, times `scales.repeat_interleave(block)` without what "
        "is too much at the end.",
        "One update of a tensor: dequantise both moments, `mine.adamw_update(…)`, quantise both. "
        "Which of the two is divided by, and what happens to its small numbers on either map?",
    ),
    steps=(
        Step("codes and scales", ("quantise",), _quantised),
        Step("back to numbers", ("dequantise",), _dequantised),
        Step("two bytes", ("AdamW8bit.__init__", "AdamW8bit.step"), _bytes),
        Step("training", ("AdamW8bit.__init__", "AdamW8bit.step"), _training),
    ),
    race=Race("one update of 90,000 weights (torch's: fp32)", _prepared, _by_torch, 1),
)
