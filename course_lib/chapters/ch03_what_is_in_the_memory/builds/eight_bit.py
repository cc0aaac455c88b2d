"""Build 3.12: AdamW with moments of one byte, quantised by blocks."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from course_lib.checking.build import build
from course_lib.checking.builds.compare import Must, Never, Row, compare_here, later, nn, torch
from course_lib.checking.exercises import Unanswered
from course_lib.checking.helpers import described
from course_lib.checking.races import Race
from course_lib.theory.inputs.recipe import OPTIMIZER_STATE_BYTES

_accumulation = later("course_lib.scratch.accumulation")
_eight_bit, _gpt = later("course_lib.scratch.precision"), later("course_lib.scratch.gpt")
_gradients, _storages = later("course_lib.measure.gradients"), later("course_lib.measure.peak")

_BLOCK = 64
# Whole blocks, a short last one, less than one, one number, none.
_SHAPES = ((2, 64), (5, 30), (7,), (), (0,))
_UPDATES, _LR = 20, 3e-3
# Relative to the way that fp32 weights go. Measured: the course's own is 0.02 off, one that loses
# its moments 0.6, linear maps 2.4.
_FARTHEST = 0.2


def _values(shape: tuple[int, ...], signed: bool = True) -> "torch.Tensor":
    """Numbers of which every block has its own size; the second block is all zeros."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))
    if not signed:
        values = values.square()
    flat = values.view(-1)
    if signed:
        flat[:1] = -9.0  # the largest of its block in size
    for number, start in enumerate(range(0, len(flat), _BLOCK)):
        flat[start : start + _BLOCK].mul_(0.0 if number == 1 else 10.0 ** (3 * number - 5))
    return values


def _scales(values: "torch.Tensor") -> "torch.Tensor":
    largest = [block.max() for block in values.flatten().abs().split(_BLOCK) if len(block)]
    return torch.stack(largest) if largest else torch.zeros(0)


def _spread(scales: "torch.Tensor", like: "torch.Tensor") -> "torch.Tensor":
    """For each number the scale of its block."""
    return scales.repeat_interleave(_BLOCK)[: like.numel()].view_as(like)


def _quantised(parts: SimpleNamespace) -> Iterator[Row]:
    """Scales and codes of tensors of several sizes, with both maps."""
    for signed in (True, False):
        for shape in _SHAPES:
            values, levels = _values(shape, signed), _eight_bit.dynamic_levels(signed)
            found = parts.quantise(values, levels, _BLOCK)
            if found is None:
                raise Unanswered("quantise returns None")
            two = isinstance(found, tuple | list) and len(found) == 2
            both = f"quantise wants to return codes and scales, got {described(found)}"
            yield Never(not two, both)
            what = f"{values.numel()} values of shape {shape} in blocks of {_BLOCK}: "
            yield from _of_scales(what, values, found[1])
            yield from _of_codes(what, values, levels, found[0])


def _of_scales(what: str, values: "torch.Tensor", scales: Any) -> Iterator[Row]:
    right = _scales(values)
    if len(right) > 1 and isinstance(scales, torch.Tensor) and scales.shape == right.shape:
        one = scales.allclose(values.abs().max().expand(right.shape))
        yield Never(one, f"{what}each scale is one for all blocks")
    yield Must(f"{what}scales", scales, right, tolerance=1.0)
    wrong = ((scales - right).abs() > 1e-5 * right).nonzero()
    for block in wrong[:1]:
        yield Never(True, f"{what}the scale of block {int(block)} is not the largest size in it")


def _of_codes(what: str, values: Any, levels: Any, codes: Any) -> Iterator[Row]:
    other = not isinstance(codes, torch.Tensor)
    yield Never(other, f"{what}codes want a tensor, got {described(codes)}")
    kind, shape = str(codes.dtype).removeprefix("torch."), tuple(codes.shape)
    byte = codes.dtype == torch.uint8
    yield Never(not byte, f"{what}codes are {kind}, expected uint8: one byte each, 0 to 255")
    another = codes.shape != values.shape
    yield Never(another, f"{what}codes have shape {shape}, expected that of the values")
    most = int(codes.max()) if codes.numel() else 0
    no_level = f"{what}code {most} stands for no level, there are {len(levels)}"
    yield Never(most >= len(levels), no_level)
    shares = values / _spread(_scales(values), values).clamp(min=torch.finfo(values.dtype).tiny)
    error = (levels[codes.int()] - shares).abs()
    nearest = (levels - shares.unsqueeze(-1)).abs().amin(-1)
    far = (error > nearest + 1e-6).flatten().nonzero()
    below = bool(((levels[codes.int()] <= shares + 1e-6) | (codes == 0)).all())
    for first in far[:1]:
        yield Never(
            True,
            f"{what}{len(far)} codes stand for a level that is not the nearest one to value / "
            f"scale, first that of value {int(first)}" + ": it always takes the one below" * below,
        )


def _dequantised(parts: SimpleNamespace) -> Iterator[Row]:
    """The values of codes, by their own block's scale."""
    for shape in _SHAPES:
        values, levels = _values(shape), _eight_bit.dynamic_levels(signed=True)
        scales = 2 + torch.arange(float(len(_scales(values))))
        codes = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(3))
        found = parts.dequantise(codes.to(torch.uint8), scales, levels, _BLOCK)
        what = f"{codes.numel()} codes of shape {shape} in blocks of {_BLOCK}: dequantise"
        others = {"the levels, without their scales": levels[codes]}
        yield Must(what, found, levels[codes] * _spread(scales, codes), others)


def _model() -> Any:
    """A small GPT; its tensors do not fill their last blocks."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _gpt.GPT(layers=1, hidden=36, heads=4, vocab=50, context=12)


def _trained(optimizer_of: Any, updates: int) -> tuple[Any, Any, list[float]]:
    """The model, its optimizer, and the loss before each update of a text with a simple rule."""
    model = _model()
    optimizer, losses = optimizer_of(model.parameters()), []
    inputs = torch.randint(0, 50, (8, 12), generator=torch.Generator().manual_seed(0))
    labels = (7 * inputs + 3) % 50
    for _ in range(updates):
        model.zero_grad()
        loss = _accumulation.loss_sum(model(inputs), labels) / labels.numel()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, optimizer, losses


def _bytes(parts: SimpleNamespace) -> Iterator[Row]:
    """Two bytes for each weight, and a scale of each block of both moments."""
    model, ours, _ = _trained(lambda p: parts.AdamW8bit(p, lr=_LR, block=_BLOCK), 2)
    state = getattr(ours, "state", None)
    wanted = [f"{name}{end}" for name in ("momentum", "variance") for end in ("", "_scales")]
    for name, weight in model.named_parameters():
        kept: Any = state.get(weight) if isinstance(state, dict) else None
        no_dict = not isinstance(kept, dict)
        yield Never(no_dict, "`state` wants a dict for each parameter, as the class says")
        for one in wanted:
            nothing = not hasattr(kept.get(one), "dtype")
            yield Never(nothing, f"`state` of {name} has no tensor {one!r}")
        tensors = (value for value in kept.values() if hasattr(value, "dtype"))
        found, size = _storages.tensor_bytes(tensors), weight.numel()
        right = OPTIMIZER_STATE_BYTES["adamw-8bit"] * size + 2 * 4 * -(-size // _BLOCK)
        yield Never(
            found != right,
            f"`state` of {name}, {size} weights in blocks of {_BLOCK}, keeps {found} bytes, "
            f"{'fewer' if found < right else 'more'} than one for each number of both moments and "
            "four for each scale" + "; a view keeps all that it is a view of" * (found > right),
        )


def _training(parts: SimpleNamespace) -> Iterator[Row]:
    """A few updates of a small GPT end near those of fp32 AdamW."""
    start = _flat(_model())
    fp32, _, right = _trained(lambda p: torch.optim.AdamW(p, lr=_LR), _UPDATES)
    ours, _, losses = _trained(lambda p: parts.AdamW8bit(p, lr=_LR, block=_BLOCK), _UPDATES)
    way, own = _flat(fp32) - start, _flat(ours) - start
    after = f"after {_UPDATES} updates"
    yield Never(not bool(own.any()), f"{after} the weights are where they began")
    yield Never(not bool(own.isfinite().all()), f"{after} some weights are not finite")
    gap = _gradients.relative_difference(own, way)
    longest, usual = own.abs().max() / _LR, way.abs().max() / _LR
    kind = (
        f"; a weight moved by {longest:.3g} learning rates, in fp32 at most {usual:.3g}: what is "
        "it divided by?"
    )
    yield Never(
        gap > _FARTHEST,
        f"{after} the weights are off by {gap:.2g} of the way that fp32 AdamW's went, and the loss "
        f"is {losses[-1]:.2f} beside {right[-1]:.2f}{kind if longest > 2 * usual else ''}",
    )


def _flat(model: "nn.Module") -> "torch.Tensor":
    return torch.cat([p.detach().flatten() for p in model.parameters()])


_CLASS = ("AdamW8bit.__init__", "AdamW8bit.step")


def _weights(*shape: int, dtype: Any = None) -> Any:
    weight = nn.Parameter(torch.ones(*shape, dtype=dtype))
    weight.grad = torch.ones_like(weight)
    return weight


def _adamw(*shape: int, lr: float) -> Callable[[], object]:
    """torch's AdamW in fp32: it keeps no master copy, and has no moments of 8 bits."""
    return torch.optim.AdamW([_weights(*shape)], lr=lr, fused=True).step


def _raced_eight_bit(parts: SimpleNamespace) -> Any:
    weight = _weights(300, 300)
    weight.grad = torch.randn(300, 300, generator=torch.Generator().manual_seed(0))
    return parts.AdamW8bit([weight], lr=3e-3).step


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
        compare_here("codes and scales", ("quantise",), _quantised),
        compare_here("back to numbers", ("dequantise",), _dequantised),
        compare_here("two bytes", _CLASS, _bytes),
        compare_here("training", _CLASS, _training),
    ),
    race=Race(
        "one update of 90,000 weights (torch's: fp32)",
        _raced_eight_bit,
        lambda: _adamw(300, 300, lr=3e-3),
        ranks=1,
    ),
)
