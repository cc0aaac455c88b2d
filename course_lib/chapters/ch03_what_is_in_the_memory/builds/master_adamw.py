"""Build 3.11: AdamW written out, with an fp32 master copy of bf16 weights."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from course_lib.checking.build import build
from course_lib.checking.builds.compare import Must, Never, Row, compare_here, later, nn, torch
from course_lib.checking.races import Race
from course_lib.theory.inputs.recipe import OPTIMIZER_STATE_BYTES

_peak, _storages = later("course_lib.measure.peak"), later("course_lib.measure.peak")

_LR, _BETAS, _EPS, _DECAY = 0.1, (0.8, 0.95), 0.05, 0.3
_RATES: dict[str, Any] = {"lr": _LR, "betas": _BETAS, "eps": _EPS, "weight_decay": _DECAY}
_UPDATES = 3
# No size divides another, and two are small: one number, and a tensor that is empty.
_SHAPES = ((7, 5), (3,), (), (0,))
# A bf16 weight of 1 loses an update of this size; its neighbours are 2^-8 and 2^-7 away.
_SMALL_LR = 1e-3
_KEPT = ("master_copy", "momentum", "variance")


def _update(
    weight: "torch.Tensor", gradient: "torch.Tensor", step: int, old: Any, mistake: str = ""
) -> Any:
    """Weight, momentum and variance after one update, with at most one mistake in it."""
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


def _arithmetic(parts: SimpleNamespace) -> Iterator[Row]:
    """Three updates of one tensor, each from right numbers, against a second version of AdamW."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 3, generator=generator).double()
    old = torch.zeros_like(weight), torch.zeros_like(weight)
    for step in range(1, 1 + _UPDATES):
        gradient = torch.randn(4, 3, generator=generator).double()
        before = [tensor.float() for tensor in (weight, gradient, *old)]
        found = [tensor.clone() for tensor in before]
        parts.adamw_update(*found, step=step, **_RATES)
        others = {key: _update(weight, gradient, step, old, key) for key in _MISTAKES}
        weight, *old = _update(weight, gradient, step, old)
        changed = not found[1].double().allclose(gradient, atol=1e-6)
        yield Never(
            changed, f"after update {step} the gradient has changed, which others may still need"
        )
        for place, name in ((2, "momentum"), (3, "variance"), (0, "the weight")):
            what = f"{name} after update {step}"
            stays = found[place].equal(before[place])
            yield Never(stays, f"{what} is the one before: change it in place")
            if place:
                right, beta = old[place - 2], _BETAS[place - 2]
                l2 = "decay in the gradient"
                mistakes = {_MISTAKES[l2]: others[l2][place - 1]}
                factors = {
                    1 / (1 - beta): "all of what is new, not its share",
                    beta / (1 - beta): "β in place of 1 - β",
                }
            else:
                right, factors = weight, {}
                mistakes = {_MISTAKES[key]: one[0] for key, one in others.items()}
            yield Must(what, found[place], right, mistakes, factors if step == 1 else {})


def _weights() -> "list[nn.Parameter]":
    """bf16 weights near 1, and one that gets no gradient."""
    generator = torch.Generator().manual_seed(1)
    numbers = [1 + 0.1 * torch.randn(shape, generator=generator) for shape in (*_SHAPES, (2,))]
    return [nn.Parameter(one.bfloat16()) for one in numbers]


def _master_copy(parts: SimpleNamespace) -> Iterator[Row]:
    """20 small updates of bf16 weights beside torch's AdamW in fp32."""
    weights = _weights()
    start = [weight.detach().clone() for weight in weights]
    reference = [one.float().requires_grad_() for one in start]
    fp32 = torch.optim.AdamW(reference, lr=_SMALL_LR, weight_decay=_DECAY)
    ours = parts.MasterAdamW(iter(weights), lr=_SMALL_LR, weight_decay=_DECAY)
    generator = torch.Generator().manual_seed(2)
    for step in range(1, 21):
        for weight, right in zip(weights[:-1], reference, strict=False):
            weight.grad = torch.randn(weight.shape, generator=generator).bfloat16() + 0.5
            right.grad = weight.grad.float()
        ours.step()
        fp32.step()
        if step in (1, 20):
            yield from _updated(weights, reference, start, ours, step)


def _updated(weights: Any, reference: Any, start: Any, ours: Any, step: int) -> Iterator[Row]:
    for weight, right, first in zip(weights, reference, start, strict=True):
        what = f"after update {step} the weight of shape {tuple(weight.shape)}"
        other = weight.dtype != torch.bfloat16
        yield Never(other, f"{what} is {_kind(weight)}, expected bfloat16: round into the weight")
        stays = weight.equal(first)
        if weight.grad is None:
            yield Never(not stays, f"{what} has changed without a gradient")
            continue
        for name in _KEPT:
            yield from _keeps(ours, weight, name)
        master = ours.state[weight]["master_copy"]
        moved = not master.bfloat16().equal(first)
        why = "its master copy has moved" if moved else "each update was too small for bf16"
        never = step == 20 and weight.numel() and stays
        yield Never(never, f"{what} is where it began: {why}")
        yield Must(f"{what}: its master copy", master, right)
        yield Must(f"{what}, beside its master copy,", weight, master.bfloat16())


def _keeps(ours: Any, weight: Any, name: str) -> Iterator[Row]:
    """What an optimizer keeps for a weight, in fp32."""
    state = getattr(ours, "state", None)
    kept = state.get(weight) if isinstance(state, dict) else None
    no_dict = not isinstance(kept, dict)
    yield Never(no_dict, "`state` wants a dict for each parameter, as the class says")
    found: Any = kept.get(name) if isinstance(kept, dict) else None
    nothing = not isinstance(found, torch.Tensor)
    yield Never(nothing, f"`state` of a parameter has no tensor {name!r}")
    yield Never(found.dtype != torch.float32, f"{name} is {_kind(found)}, expected float32")


def _kind(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _bytes(parts: SimpleNamespace) -> Iterator[Row]:
    """What stays after an update: 4 bytes of master copy, and AdamW's 8."""
    weights = _weights()
    ours = parts.MasterAdamW(weights, lr=_SMALL_LR)
    for weight in weights:
        weight.grad = weight.detach().clone()
    ours.step()
    for weight in weights:
        for name in _KEPT:
            yield from _keeps(ours, weight, name)
    count = sum(weight.numel() for weight in weights)
    states = [value for kept in ours.state.values() for value in kept.values()]
    found = _storages.tensor_bytes(value for value in states if hasattr(value, "dtype"))
    expected = (4 + OPTIMIZER_STATE_BYTES["adamw"]) * count
    more = "more" if found > expected else "fewer"
    keeps = f"`state` keeps {found / count:g} bytes for each weight, {more} than expected"
    yield Never(found != expected, keeps)
    with _peak.log_memory() as log:
        ours.step()
    stays = log.timeline[-1]
    yield Never(
        stays,
        f"an update leaves {stays:,} bytes that were not there before it, for {count} weights: its "
        "temporaries do not end with it",
    )


_CLASS = ("MasterAdamW.__init__", "MasterAdamW.step")


def _raced_weights(*shape: int, dtype: Any = None) -> Any:
    weight = nn.Parameter(torch.ones(*shape, dtype=dtype))
    weight.grad = torch.ones_like(weight)
    return weight


def _adamw(*shape: int, lr: float) -> Callable[[], object]:
    """torch's AdamW in fp32: it keeps no master copy, and has no moments of 8 bits."""
    return torch.optim.AdamW([_raced_weights(*shape)], lr=lr, fused=True).step


MASTER_ADAMW = build(
    "master_adamw",
    title="AdamW with a master copy",
    hints=(
        "momentum = β₁ · momentum + (1 - β₁) · gradient, and the same of the gradient's square "
        "with β₂. Both began at zero: after n updates, which part of a mean do they hold?",
        "Divide each by 1 - β^step, but keep the moments themselves as they are. "
        "The weight shrinks by lr · weight_decay of itself, and loses lr · mean / (root + eps).",
        "In place: `momentum.mul_(β).add_(gradient, alpha=1 - β)`; `weight.sub_(…)`.",
        "`weight.detach().float()` is made once, in `__init__`. In `step`, under "
        "`@torch.no_grad()`: update it with the gradient in fp32, then `weight.copy_(…)` rounds.",
    ),
    steps=(
        compare_here("the arithmetic", ("adamw_update",), _arithmetic),
        compare_here("the master copy", _CLASS, _master_copy),
        compare_here("twelve bytes", _CLASS, _bytes),
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
