"""Builds of chapter 3: AdamW with an fp32 master copy (3.11), and with 8-bit moments (3.12)."""

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from course_lib.checking.build import build
from course_lib.checking.builds.compare import compare_here
from course_lib.checking.builds.lazily import later, nn, torch
from course_lib.checking.builds.rows import Must, Never, Row
from course_lib.checking.exercises import Unanswered
from course_lib.checking.helpers import described
from course_lib.checking.races import Race
from course_lib.theory.inputs.recipe import OPTIMIZER_STATE_BYTES

_accumulation = later("course_lib.scratch.accumulation")
_eight_bit, _gpt = later("course_lib.scratch.precision"), later("course_lib.scratch.gpt")
_gradients, _peak = later("course_lib.measure.gradients"), later("course_lib.measure.peak")


def _check_states(ours: Any, weight: Any, names: Sequence[str], whose: str) -> Iterator[Row]:
    """Check that the optimizer's state of `weight` is a dict with a tensor for each of `names`."""
    state = getattr(ours, "state", None)
    kept: Any = state.get(weight) if isinstance(state, dict) else None
    no_dict = not isinstance(kept, dict)
    yield Never(no_dict, "`state` wants a dict for each parameter, as the class says")
    for name in names:
        nothing = not isinstance(kept.get(name), torch.Tensor)
        yield Never(nothing, f"`state` of {whose} has no tensor {name!r}")


def _tensor_bytes(kept: dict[str, Any]) -> int:
    size: int = _peak.tensor_bytes(one for one in kept.values() if isinstance(one, torch.Tensor))
    return size


def _kind(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _raced_weights(*shape: int, dtype: Any = None) -> Any:
    weight = nn.Parameter(torch.ones(*shape, dtype=dtype))
    weight.grad = torch.ones_like(weight)
    return weight


def _adamw(*shape: int, lr: float) -> Callable[[], object]:
    """torch's AdamW in fp32: it has neither a master copy nor 8-bit moments."""
    return torch.optim.AdamW([_raced_weights(*shape)], lr=lr, fused=True).step


# --- 3.11: a master copy ------------------------------------------------------------------------

_LR, _BETAS, _EPS, _DECAY = 0.1, (0.8, 0.95), 0.05, 0.3
_RATES: dict[str, Any] = {"lr": _LR, "betas": _BETAS, "eps": _EPS, "weight_decay": _DECAY}
_UPDATES = 3
# No size divides another. The last two are a scalar and an empty tensor.
_SHAPES = ((7, 5), (3,), (), (0,))
# An update of this size rounds away on a bf16 weight of 1: its neighbours are 2^-8 and 2^-7 away.
_SMALL_LR = 1e-3
_KEPT = ("master_copy", "momentum", "variance")


def _update(
    weight: "torch.Tensor", gradient: "torch.Tensor", step: int, old: Any, mistake: str = ""
) -> Any:
    """Weight, momentum and variance after one AdamW update that makes at most one `mistake`."""
    momentum, variance = old
    if mistake == "decay in the gradient":
        gradient = gradient + _DECAY * weight
    fast, slow = _BETAS
    momentum = fast * momentum + (1 - fast) * gradient
    variance = slow * variance + (1 - slow) * gradient**2
    corrected = mistake != "no correction"
    mean = momentum / (1 - fast**step if corrected else 1)
    square = variance / (1 - slow**step if corrected else 1)
    root = (square + _EPS).sqrt() if mistake == "eps below the root" else square.sqrt() + _EPS
    decay = {"no decay": 0, "decay in the gradient": 0, "decay without lr": _DECAY}
    new = weight * (1 - decay.get(mistake, _LR * _DECAY)) - _LR * mean / root
    return new, momentum, variance


_MISTAKES = {
    "no correction": "what comes out if the moments' start at zero is not corrected",
    "eps below the root": "what comes out with eps below the root",
    "no decay": "what comes out without weight decay",
    "decay without lr": "what comes out if the decay is not multiplied by lr",
    "decay in the gradient": "what comes out if the decay is added to the gradient: it then goes "
    "through the moments",
}


def _check_arithmetic(parts: SimpleNamespace) -> Iterator[Row]:
    """Compare three updates of one tensor, each from correct inputs, with `_update` in fp64."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 3, generator=generator).double()
    old = torch.zeros_like(weight), torch.zeros_like(weight)
    for step in range(1, 1 + _UPDATES):
        gradient = torch.randn(4, 3, generator=generator).double()
        before = [tensor.float() for tensor in (weight, gradient, *old)]
        after = [tensor.clone() for tensor in before]
        parts.adamw_update(*after, step=step, **_RATES)
        others = {key: _update(weight, gradient, step, old, key) for key in _MISTAKES}
        weight, *old = _update(weight, gradient, step, old)
        changed = not after[1].double().allclose(gradient, atol=1e-6)
        yield Never(
            changed, f"after update {step} the gradient has changed, which others may still need"
        )
        for index, name in ((2, "momentum"), (3, "variance"), (0, "the weight")):
            what = f"{name} after update {step}"
            unchanged = after[index].equal(before[index])
            yield Never(unchanged, f"{what} is the one before: change it in place")
            if index:
                expected, beta = old[index - 2], _BETAS[index - 2]
                l2 = "decay in the gradient"
                mistakes = {_MISTAKES[l2]: others[l2][index - 1]}
                factors = {
                    1 / (1 - beta): "all of what is new, not its share",
                    beta / (1 - beta): "β in place of 1 - β",
                }
            else:
                expected, factors = weight, {}
                mistakes = {_MISTAKES[key]: one[0] for key, one in others.items()}
            yield Must(what, after[index], expected, mistakes, factors if step == 1 else {})


def _weights() -> "list[nn.Parameter]":
    """bf16 weights near 1; the last one gets no gradient."""
    generator = torch.Generator().manual_seed(1)
    numbers = [1 + 0.1 * torch.randn(shape, generator=generator) for shape in (*_SHAPES, (2,))]
    return [nn.Parameter(one.bfloat16()) for one in numbers]


def _check_master_copy(parts: SimpleNamespace) -> Iterator[Row]:
    """Compare 20 small updates of bf16 weights with torch's AdamW in fp32."""
    weights = _weights()
    start = [weight.detach().clone() for weight in weights]
    reference = [one.float().requires_grad_() for one in start]
    fp32 = torch.optim.AdamW(reference, lr=_SMALL_LR, weight_decay=_DECAY)
    ours = parts.MasterAdamW(iter(weights), lr=_SMALL_LR, weight_decay=_DECAY)
    generator = torch.Generator().manual_seed(2)
    for step in range(1, 21):
        for weight, fp32_weight in zip(weights[:-1], reference, strict=False):
            weight.grad = torch.randn(weight.shape, generator=generator).bfloat16() + 0.5
            fp32_weight.grad = weight.grad.float()
        ours.step()
        fp32.step()
        if step in (1, 20):
            yield from _check_updated(weights, reference, start, ours, step)


def _check_updated(weights: Any, reference: Any, start: Any, ours: Any, step: int) -> Iterator[Row]:
    for weight, fp32_weight, initial in zip(weights, reference, start, strict=True):
        what = f"after update {step} the weight of shape {tuple(weight.shape)}"
        wrong = weight.dtype != torch.bfloat16
        yield Never(wrong, f"{what} is {_kind(weight)}, expected bfloat16: round into the weight")
        unchanged = weight.equal(initial)
        if weight.grad is None:
            yield Never(not unchanged, f"{what} has changed without a gradient")
            continue
        yield from _check_kept(ours, weight)
        master = ours.state[weight]["master_copy"]
        moved = not master.bfloat16().equal(initial)
        why = "its master copy has moved" if moved else "each update was too small for bf16"
        never_moved = step == 20 and weight.numel() and unchanged
        yield Never(never_moved, f"{what} is where it began: {why}")
        yield Must(f"{what}: its master copy", master, fp32_weight)
        yield Must(f"{what}, beside its master copy,", weight, master.bfloat16())


def _check_kept(ours: Any, weight: Any) -> Iterator[Row]:
    """Check that the optimizer keeps each state tensor of a weight, in fp32."""
    yield from _check_states(ours, weight, _KEPT, "a parameter")
    for name in _KEPT:
        tensor = ours.state[weight][name]
        yield Never(tensor.dtype != torch.float32, f"{name} is {_kind(tensor)}, expected float32")


def _check_bytes(parts: SimpleNamespace) -> Iterator[Row]:
    """Bytes per weight that stay after an update: 4 for the master copy, 8 for AdamW's moments."""
    weights = _weights()
    ours = parts.MasterAdamW(weights, lr=_SMALL_LR)
    for weight in weights:
        weight.grad = weight.detach().clone()
    ours.step()
    for weight in weights:
        yield from _check_kept(ours, weight)
    count = sum(weight.numel() for weight in weights)
    kept = sum(map(_tensor_bytes, ours.state.values()))
    expected = (4 + OPTIMIZER_STATE_BYTES["adamw"]) * count
    comparison = "more" if kept > expected else "fewer"
    message = f"`state` keeps {kept / count:g} bytes for each weight, {comparison} than expected"
    yield Never(kept != expected, message)
    with _peak.log_memory() as log:
        ours.step()
    stays = log.timeline[-1]
    yield Never(
        stays,
        f"an update leaves {stays:,} bytes that were not there before it, for {count} weights: its "
        "temporaries do not end with it",
    )


_CLASS = ("MasterAdamW.__init__", "MasterAdamW.step")

MASTER_ADAMW = build(
    "master_adamw",
    steps=(
        compare_here("the arithmetic", ("adamw_update",), _check_arithmetic),
        compare_here("the master copy", _CLASS, _check_master_copy),
        compare_here("twelve bytes", _CLASS, _check_bytes),
    ),
    race=Race(
        "one update of a million bf16 weights (torch's: of fp32)",
        lambda parts: (
            parts.MasterAdamW([_raced_weights(1000, 1000, dtype=torch.bfloat16)], lr=1e-3).step
        ),
        lambda: _adamw(1000, 1000, lr=1e-3),
        ranks=1,
    ),
)


# --- 3.12: 8-bit moments ------------------------------------------------------------------------

_BLOCK = 64
# Full blocks only, a short last block, less than one block, a scalar, an empty tensor.
_BIT_SHAPES = ((2, 64), (5, 30), (7,), (), (0,))
_BIT_UPDATES, _BIT_LR = 20, 3e-3
# Relative to the change of the fp32 weights. Measured: 0.02 for the course's own optimizer, 0.6
# for one that loses its moments, 2.4 for linear maps.
_FARTHEST = 0.2


def _values(shape: tuple[int, ...], signed: bool = True) -> "torch.Tensor":
    """Values with a different magnitude in each block; the second block is all zeros."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))
    if not signed:
        values = values.square()
    flat = values.view(-1)
    if signed:
        flat[:1] = -9.0  # the largest magnitude of its block
    for number, start in enumerate(range(0, len(flat), _BLOCK)):
        flat[start : start + _BLOCK].mul_(0.0 if number == 1 else 10.0 ** (3 * number - 5))
    return values


def _scales(values: "torch.Tensor") -> "torch.Tensor":
    largest = [block.max() for block in values.flatten().abs().split(_BLOCK) if len(block)]
    return torch.stack(largest) if largest else torch.zeros(0)


def _spread(scales: "torch.Tensor", like: "torch.Tensor") -> "torch.Tensor":
    """The scale of its block for each number, in the shape of `like`."""
    return scales.repeat_interleave(_BLOCK)[: like.numel()].view_as(like)


def _check_quantise(parts: SimpleNamespace) -> Iterator[Row]:
    """Scales and codes for tensors of several sizes, with the signed and the unsigned map."""
    for signed in (True, False):
        for shape in _BIT_SHAPES:
            values, levels = _values(shape, signed), _eight_bit.dynamic_levels(signed)
            result = parts.quantise(values, levels, _BLOCK)
            if result is None:
                raise Unanswered("quantise returns None")
            is_pair = isinstance(result, tuple | list) and len(result) == 2
            message = f"quantise wants to return codes and scales, got {described(result)}"
            yield Never(not is_pair, message)
            what = f"{values.numel()} values of shape {shape} in blocks of {_BLOCK}: "
            yield from _check_scales(what, values, result[1])
            yield from _check_codes(what, values, levels, result[0])


def _check_scales(what: str, values: "torch.Tensor", scales: Any) -> Iterator[Row]:
    expected = _scales(values)
    if len(expected) > 1 and isinstance(scales, torch.Tensor) and scales.shape == expected.shape:
        shared = scales.allclose(values.abs().max().expand(expected.shape))
        yield Never(shared, f"{what}each scale is one for all blocks")
    yield Must(f"{what}scales", scales, expected, tolerance=1.0)
    wrong = ((scales - expected).abs() > 1e-5 * expected).nonzero()
    for block in wrong[:1]:
        yield Never(True, f"{what}the scale of block {int(block)} is not the largest size in it")


def _check_codes(what: str, values: Any, levels: Any, codes: Any) -> Iterator[Row]:
    other = not isinstance(codes, torch.Tensor)
    yield Never(other, f"{what}codes want a tensor, got {described(codes)}")
    kind, shape = _kind(codes), tuple(codes.shape)
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


def _check_dequantise(parts: SimpleNamespace) -> Iterator[Row]:
    """Values from codes, each with the scale of its block."""
    for shape in _BIT_SHAPES:
        values, levels = _values(shape), _eight_bit.dynamic_levels(signed=True)
        scales = 2 + torch.arange(float(len(_scales(values))))
        codes = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(3))
        result = parts.dequantise(codes.to(torch.uint8), scales, levels, _BLOCK)
        what = f"{codes.numel()} codes of shape {shape} in blocks of {_BLOCK}: dequantise"
        others = {"the levels, without their scales": levels[codes]}
        yield Must(what, result, levels[codes] * _spread(scales, codes), others)


def _model() -> Any:
    """A small GPT with tensors that do not fill their last blocks."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _gpt.GPT(layers=1, hidden=36, heads=4, vocab=50, context=12)


def _train(optimizer_of: Any, updates: int) -> tuple[Any, Any, list[float]]:
    """Train on a simple rule; return the model, its optimizer, and the loss before each update."""
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


def _check_state_bytes(parts: SimpleNamespace) -> Iterator[Row]:
    """State bytes: two per weight, and one scale for each block of both moments."""
    model, ours, _ = _train(lambda p: parts.AdamW8bit(p, lr=_BIT_LR, block=_BLOCK), 2)
    names = [f"{name}{end}" for name in ("momentum", "variance") for end in ("", "_scales")]
    for name, weight in model.named_parameters():
        yield from _check_states(ours, weight, names, name)
        kept, size = _tensor_bytes(ours.state[weight]), weight.numel()
        right = OPTIMIZER_STATE_BYTES["adamw-8bit"] * size + 2 * 4 * -(-size // _BLOCK)
        yield Never(
            kept != right,
            f"`state` of {name}, {size} weights in blocks of {_BLOCK}, keeps {kept} bytes, "
            f"{'fewer' if kept < right else 'more'} than one for each number of both moments and "
            "four for each scale" + "; a view keeps all that it is a view of" * (kept > right),
        )


def _check_training(parts: SimpleNamespace) -> Iterator[Row]:
    """A few updates of a small GPT end near the weights of fp32 AdamW."""
    start = _flat(_model())
    fp32, _, fp32_losses = _train(lambda p: torch.optim.AdamW(p, lr=_BIT_LR), _BIT_UPDATES)
    ours, _, losses = _train(lambda p: parts.AdamW8bit(p, lr=_BIT_LR, block=_BLOCK), _BIT_UPDATES)
    fp32_change, change = _flat(fp32) - start, _flat(ours) - start
    after = f"after {_BIT_UPDATES} updates"
    yield Never(not bool(change.any()), f"{after} the weights are where they began")
    yield Never(not bool(change.isfinite().all()), f"{after} some weights are not finite")
    gap = _gradients.relative_difference(change, fp32_change)
    longest, usual = change.abs().max() / _BIT_LR, fp32_change.abs().max() / _BIT_LR
    hint = (
        f"; a weight moved by {longest:.3g} learning rates, in fp32 at most {usual:.3g}: what is "
        "it divided by?"
    )
    yield Never(
        gap > _FARTHEST,
        f"{after} the weights are off by {gap:.2g} of the way that fp32 AdamW's went, and the loss "
        f"is {losses[-1]:.2f} beside {fp32_losses[-1]:.2f}{hint if longest > 2 * usual else ''}",
    )


def _flat(model: "nn.Module") -> "torch.Tensor":
    return torch.cat([p.detach().flatten() for p in model.parameters()])


_BIT_CLASS = ("AdamW8bit.__init__", "AdamW8bit.step")


def _raced_eight_bit(parts: SimpleNamespace) -> Any:
    weight = _raced_weights(300, 300)
    weight.grad = torch.randn(300, 300, generator=torch.Generator().manual_seed(0))
    return parts.AdamW8bit([weight], lr=3e-3).step


EIGHT_BIT = build(
    "eight_bit",
    steps=(
        compare_here("codes and scales", ("quantise",), _check_quantise),
        compare_here("back to numbers", ("dequantise",), _check_dequantise),
        compare_here("two bytes", _BIT_CLASS, _check_state_bytes),
        compare_here("training", _BIT_CLASS, _check_training),
    ),
    race=Race(
        "one update of 90,000 weights (torch's: fp32)",
        _raced_eight_bit,
        lambda: _adamw(300, 300, lr=3e-3),
        ranks=1,
    ),
)
