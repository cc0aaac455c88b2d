"""Build 3.11: AdamW written out, with an fp32 master copy of bf16 weights."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from course_lib.checking.build import Step, build
from course_lib.checking.builds.compared import expect_none_of, expect_tensor
from course_lib.checking.exercises import Wrong
from course_lib.checking.races import Race
from course_lib.theory.inputs.recipe import OPTIMIZER_STATE_BYTES

if TYPE_CHECKING:
    from torch import Tensor, nn

_LR, _BETAS, _EPS, _DECAY = 0.1, (0.8, 0.95), 0.05, 0.3
_RATES: dict[str, Any] = {"lr": _LR, "betas": _BETAS, "eps": _EPS, "weight_decay": _DECAY}
_UPDATES = 3
# No size divides another, and two are small: one number, and a tensor that is empty.
_SHAPES = ((7, 5), (3,), (), (0,))
# A bf16 weight of 1 loses an update of this size; its neighbours are 2^-8 and 2^-7 away.
_SMALL_LR = 1e-3
_KEPT = ("master_copy", "momentum", "variance")


def _update(weight: "Tensor", gradient: "Tensor", step: int, old: Any, mistake: str = "") -> Any:
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


def _arithmetic(parts: SimpleNamespace) -> None:
    """Three updates of one tensor, each from right numbers, against a second version of AdamW."""
    import torch

    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 3, generator=generator).double()
    old = torch.zeros_like(weight), torch.zeros_like(weight)
    for step in range(1, 1 + _UPDATES):
        gradient = torch.randn(4, 3, generator=generator).double()
        found = [tensor.float() for tensor in (weight, gradient, *old)]
        parts.adamw_update(*found, step=step, **_RATES)
        _expect_update(found, weight, gradient, step, old)
        weight, *old = _update(weight, gradient, step, old)


def _expect_update(found: "list[Tensor]", weight: Any, gradient: Any, step: int, old: Any) -> None:
    right = _update(weight, gradient, step, old)
    wrong = {words: _update(weight, gradient, step, old, key) for key, words in _MISTAKES.items()}
    in_l2 = wrong[_MISTAKES["decay in the gradient"]]
    named = f"after update {step}"
    if not found[1].double().allclose(gradient, atol=1e-6):
        raise Wrong(f"{named} the gradient has changed, which others may still need")
    for place, name, beta in ((1, "momentum", _BETAS[0]), (2, "variance", _BETAS[1])):
        mistakes = {_MISTAKES["decay in the gradient"]: in_l2[place]}
        what = f"{name} {named}"
        expect_none_of(found[1 + place], mistakes, what)
        if found[1 + place].equal(old[place - 1].float()):
            raise Wrong(f"{what} is the one before: change it in place")
        factors = {}
        if step == 1:
            factors[1 / (1 - beta)] = "all of what is new, not its share"
            factors[beta / (1 - beta)] = "β in place of 1 - β"
        expect_tensor(found[1 + place], right[place], what, factors=factors)
    what = f"the weight {named}"
    if found[0].equal(weight.float()):
        raise Wrong(f"{what} is the one before: change it in place")
    expect_none_of(found[0], {words: one[0] for words, one in wrong.items()}, what)
    expect_tensor(found[0], right[0], what)


def _weights() -> "list[nn.Parameter]":
    """bf16 weights near 1, and one that gets no gradient."""
    import torch
    from torch import nn

    generator = torch.Generator().manual_seed(1)
    numbers = [1 + 0.1 * torch.randn(shape, generator=generator) for shape in (*_SHAPES, (2,))]
    return [nn.Parameter(one.bfloat16()) for one in numbers]


def _master_copy(parts: SimpleNamespace) -> None:
    """20 small updates of bf16 weights beside torch's AdamW in fp32."""
    import torch

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
            _expect_weights(weights, reference, start, ours, step)


def _expect_weights(weights: Any, reference: Any, start: Any, ours: Any, step: int) -> None:
    import torch

    for weight, right, first in zip(weights, reference, start, strict=True):
        what = f"after update {step} the weight of shape {tuple(weight.shape)}"
        if weight.dtype != torch.bfloat16:
            raise Wrong(f"{what} is {_kind(weight)}, expected bfloat16: round into the weight")
        if weight.grad is None:
            if not weight.equal(first):
                raise Wrong(f"{what} has changed without a gradient")
            continue
        master, *_ = (_kept(ours, weight, name) for name in _KEPT)
        if step == 20 and weight.numel() and weight.equal(first):
            moved = not master.bfloat16().equal(first)
            why = "its master copy has moved" if moved else "each update was too small for bf16"
            raise Wrong(f"{what} is where it began: {why}")
        expect_tensor(master, right, f"{what}: its master copy")
        expect_tensor(weight, master.bfloat16(), f"{what}, beside its master copy,")


def _kept(ours: Any, weight: Any, name: str) -> Any:
    """What an optimizer keeps for a weight, in fp32."""
    import torch

    state = getattr(ours, "state", None)
    if not isinstance(state, dict) or not isinstance(state.get(weight), dict):
        raise Wrong("`state` wants a dict for each parameter, as the class says")
    found = state[weight].get(name)
    if not isinstance(found, torch.Tensor):
        raise Wrong(f"`state` of a parameter has no tensor {name!r}")
    if found.dtype != torch.float32:
        raise Wrong(f"{name} is {_kind(found)}, expected float32")
    return found


def _kind(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _bytes(parts: SimpleNamespace) -> None:
    """What stays after an update: 4 bytes of master copy, and AdamW's 8."""
    from course_lib.measure.peak import log_memory
    from course_lib.measure.storages import tensor_bytes

    weights = _weights()
    ours = parts.MasterAdamW(weights, lr=_SMALL_LR)
    for weight in weights:
        weight.grad = weight.detach().clone()
    ours.step()
    for weight in weights:
        for name in _KEPT:
            _kept(ours, weight, name)
    count = sum(weight.numel() for weight in weights)
    states = [value for kept in ours.state.values() for value in kept.values()]
    found = tensor_bytes(value for value in states if hasattr(value, "dtype"))
    expected = (4 + OPTIMIZER_STATE_BYTES["adamw"]) * count
    if found != expected:
        more = "more" if found > expected else "fewer"
        raise Wrong(f"`state` keeps {found / count:g} bytes for each weight, {more} than expected")
    with log_memory() as log:
        ours.step()
    if stays := log.timeline[-1]:
        raise Wrong(
            f"an update leaves {stays:,} bytes that were not there before it, for {count} weights: "
            "its temporaries do not end with it"
        )


def _prepared(parts: SimpleNamespace) -> Any:
    """One update of a million weights."""
    import torch
    from torch import nn

    weights = [nn.Parameter(torch.ones(1000, 1000, dtype=torch.bfloat16))]
    weights[0].grad = torch.ones_like(weights[0])
    optimizer = parts.MasterAdamW(weights, lr=_SMALL_LR)
    return optimizer.step


def _by_torch() -> Any:
    """torch's AdamW on fp32 weights: it keeps no master copy."""
    import torch
    from torch import nn

    weight = nn.Parameter(torch.ones(1000, 1000))
    weight.grad = torch.ones_like(weight)
    return torch.optim.AdamW([weight], lr=_SMALL_LR, fused=True).step


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
        Step("the arithmetic", ("adamw_update",), _arithmetic),
        Step("the master copy", ("MasterAdamW.__init__", "MasterAdamW.step"), _master_copy),
        Step("twelve bytes", ("MasterAdamW.__init__", "MasterAdamW.step"), _bytes),
    ),
    race=Race("one update of a million bf16 weights (torch's: of fp32)", _prepared, _by_torch, 1),
)
