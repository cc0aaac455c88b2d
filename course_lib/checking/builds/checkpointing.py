"""Build 4.6: layers that run again in the backward pass, from their input."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from course_lib.checking.build import Step, build
from course_lib.checking.builds.compared import expect_tensor
from course_lib.checking.exercises import Wrong
from course_lib.checking.helpers import described
from course_lib.checking.races import Race

if TYPE_CHECKING:
    from torch import Tensor, nn

_WIDTH, _ROWS = 48, 96
# A generator's state, and the like.
_SMALL_BYTES = 8192


def _segment(dropout: float = 0.0, frozen: bool = False) -> "nn.Module":
    """Layers that keep several times what their input takes."""
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Sequential(
            nn.Linear(_WIDTH, 2 * _WIDTH),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(2 * _WIDTH, _WIDTH),
            nn.Dropout(dropout),
        )
    if frozen:
        layers[0].bias.requires_grad_(False)
    return layers


def _data() -> "Tensor":
    import torch

    return torch.randn(_ROWS, _WIDTH, generator=torch.Generator().manual_seed(1))


def _run(parts: SimpleNamespace, layers: "nn.Module", x: "Tensor") -> "Tensor":
    """The output of the learner's Function."""
    import torch

    if not issubclass(parts.Checkpoint, torch.autograd.Function):
        raise Wrong(f"wants an autograd.Function, got {described(parts.Checkpoint)}")
    output = parts.Checkpoint.apply(layers, x, *_trained(layers).values())
    if not isinstance(output, torch.Tensor) or output.shape != x.shape:
        raise Wrong(f"forward gives {described(output)}, expected the output of the layers")
    if not output.requires_grad:
        raise Wrong("the output of forward has no graph: no gradient goes back through it")
    return output


def _trained(layers: "nn.Module") -> "dict[str, nn.Parameter]":
    return {name: p for name, p in layers.named_parameters() if p.requires_grad}


def _go_back(output: "Tensor") -> None:
    """Run the backward pass; Wrong where torch refuses what backward returned."""
    import torch

    try:
        torch.autograd.backward(output.square().sum())
    except RuntimeError as error:
        if "gradient" not in str(error):
            raise
        wants = "backward wants a gradient, or None, for each argument of forward after ctx"
        raise Wrong(f"{wants}; torch says: {error}") from None


def _expect_gradients(
    found: "Mapping[str, Tensor | None]", right: "Mapping[str, Tensor]", why: str = ""
) -> None:
    for name, expected in right.items():
        gradient = found.get(name)
        if gradient is None:
            raise Wrong(f"{name} gets no gradient")
        what = f"{why}the gradient of {name}"
        expect_tensor(gradient, expected, what, factors={2.0: "it is added twice"})


def _gradients(layers: "nn.Module", x: "Tensor | None" = None) -> "dict[str, Any]":
    found: dict[str, Any] = {name: p.grad for name, p in _trained(layers).items()}
    return found if x is None else found | {"x": x.grad}


def _right(parts: SimpleNamespace) -> None:
    """Gradients of parameters and of x, as without checkpointing."""
    for frozen, of_x in ((False, True), (True, True), (False, False)):
        plain, layers = _segment(frozen=frozen), _segment(frozen=frozen)
        x, own = (_data().requires_grad_(of_x) for _ in range(2))
        expected = plain(x)
        _go_back(expected)
        output = _run(parts, layers, own)
        expect_tensor(output, expected, "the output of forward")
        _go_back(output)
        right = _gradients(plain, x if of_x else None)
        why = "" if of_x else "where x needs no gradient, "
        why = "where one parameter is frozen, " if frozen else why
        _expect_gradients(_gradients(layers, own if of_x else None), right, why)
        if any(p.grad is not None for p in layers.parameters() if not p.requires_grad):
            raise Wrong("a frozen parameter has got a gradient")
        if own.requires_grad != of_x or (not of_x and own.grad is not None):
            raise Wrong("x, which needs no gradient, has changed: detach a copy of it")
        if not own.detach().equal(_data()):
            raise Wrong("x has other numbers afterwards")
    _expect_others(parts)
    _expect_returned(parts)


def _expect_others(parts: SimpleNamespace) -> None:
    """One segment that runs twice; one without trained parameters; one in bf16."""
    import torch

    twice, of_none, half = _segment(), _segment(), _segment().bfloat16()
    of_none.requires_grad_(False)
    for layers, runs, why in (
        (twice, 2, "where a segment runs twice, "),
        (of_none, 1, "where all parameters are frozen, "),
        (half, 1, "in bf16, "),
    ):
        found = []
        for checkpointed in (False, True):
            layers.zero_grad()
            x = _data().to(next(layers.parameters()).dtype).requires_grad_()
            y = x
            for _ in range(runs):
                y = _run(parts, layers, y) if checkpointed else layers(y)
            torch.autograd.backward(y.square().sum())
            found.append({key: one.clone() for key, one in _gradients(layers, x).items()})
        _expect_gradients(found[1], found[0], why)


def _expect_returned(parts: SimpleNamespace) -> None:
    """Parameters get their gradients from autograd, not from a pass inside of backward."""
    import torch

    layers, x = _segment(), _data().requires_grad_()
    output, trained = _run(parts, layers, x), _trained(layers)
    torch.autograd.grad(output.sum(), [x, *trained.values()], allow_unused=True)
    if any(p.grad is not None for p in trained.values()):
        raise Wrong(
            "backward adds to .grad by itself: parameters' gradients are for autograd to hand "
            "over, else DDP's hooks are called in the middle of it"
        )


def _kept(parts: SimpleNamespace) -> None:
    """Between forward and backward only x is there, and the layers run twice."""
    from course_lib.measure.peak import log_memory
    from course_lib.measure.saved_tensors import saved_bytes

    layers, x = _segment(), _data().requires_grad_()
    runs: list[str] = []
    layers.register_forward_hook(lambda *_: runs.append("a run"))
    with log_memory() as log:
        output = _run(parts, layers, x)
    stays = log.timeline[-1] - output.nbytes
    if stays > _SMALL_BYTES:
        raise Wrong(
            f"after the forward pass {stays:,} bytes stay beside x and the output, where x has "
            f"{x.nbytes:,}: what the layers have computed is still there"
        )
    if len(runs) != 1:
        raise Wrong(f"the layers run {len(runs)} times in forward, expected once")
    with log_memory() as log:
        _go_back(output)
    stays = log.timeline[-1] - sum(one.nbytes for one in _gradients(layers, x).values())
    if stays > _SMALL_BYTES:
        raise Wrong(
            f"after the backward pass {stays:,} bytes stay beside the gradients: nothing of the "
            "second run is needed any more"
        )
    if len(runs) != 2:
        again = len(runs) - 1
        raise Wrong(f"the layers run {again} times in backward, expected once more from x")
    kept = saved_bytes(lambda: _run(parts, layers, x), layers)
    if kept != x.nbytes:
        raise Wrong(
            f"autograd keeps {kept:,} bytes by its own account, expected x with {x.nbytes:,}: what "
            "backward needs is given to ctx.save_for_backward"
        )


def _masks(parts: SimpleNamespace) -> None:
    """Two segments with dropout, one after the other."""
    import torch

    right: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for checkpointed, results in ((False, right), (True, found)):
        x, segments = _data().requires_grad_(), (_segment(0.5), _segment(0.3))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(2)
            y = x
            for layers in segments:
                y = _run(parts, layers, y) if checkpointed else layers(y)
            torch.rand(5)  # as what comes after would
            _go_back(y)
        results += [_gradients(segments[1]), _gradients(segments[0], x)]
    why = "with dropout, "
    for own, expected, segment in zip(found, right, ("the second", "the first"), strict=True):
        for name, gradient in expected.items():
            if own.get(name) is None or not own[name].allclose(gradient, rtol=1e-4, atol=1e-4):
                raise Wrong(
                    f"{why}the gradient of {name} in {segment} of two segments is another than "
                    "without checkpointing, from the same seed: one of the two runs draws other "
                    "masks, or runs other layers"
                )


def _generator(parts: SimpleNamespace) -> None:
    """What others draw is as without checkpointing."""
    import torch

    after: dict[bool, list[Tensor]] = {}
    for checkpointed in (False, True):
        x, layers = _data().requires_grad_(), _segment(0.5)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            y = _run(parts, layers, x) if checkpointed else layers(x)
            after[checkpointed] = [torch.rand(4)]
            _go_back(y)
            after[checkpointed].append(torch.rand(4))
    for right, found, when in zip(after[False], after[True], ("forward", "backward"), strict=True):
        if not found.equal(right):
            raise Wrong(
                f"after {when} the generator of random numbers gives others than without "
                "checkpointing: all that draws later is changed"
            )


def _prepared(parts: SimpleNamespace) -> Any:
    """A segment of two blocks, forward and backward."""
    segment, x = _blocks()
    parameters = list(segment.parameters())
    return lambda: _there_and_back(parts.Checkpoint.apply(segment, x, *parameters))


def _by_torch() -> Any:
    """The same by torch.utils.checkpoint."""
    from torch.utils.checkpoint import checkpoint

    segment, x = _blocks()
    return lambda: _there_and_back(checkpoint(segment, x, use_reentrant=False))


def _blocks() -> "tuple[nn.Module, Tensor]":
    import torch
    from torch import nn

    from course_lib.scratch.gpt import Block

    torch.manual_seed(0)
    segment = nn.Sequential(*(Block(hidden=64, heads=4) for _ in range(2)))
    return segment, torch.randn(4, 64, 64, requires_grad=True)


def _there_and_back(output: Any) -> None:
    import torch

    torch.autograd.backward(output.sum())


CHECKPOINTING = build(
    "checkpointing",
    title="run it again",
    hints=(
        "autograd records nothing inside a Function's forward, so what the layers keep there is "
        "gone at once. What must be kept, so that they can run again?",
        "backward: `x.detach().requires_grad_()`, then the layers once more under "
        "`torch.enable_grad()`, then `torch.autograd.grad(output, inputs, gradient)` with the "
        "parameters among the inputs.",
        "It returns one thing for each argument of forward: None for the layers, the gradient of "
        "x, and those of the parameters.",
        "`torch.get_rng_state()` in forward, before the layers; `torch.set_rng_state(…)` before "
        "the second run. What others draw afterwards should not notice either.",
        "`with torch.random.fork_rng([]):` puts the generator back, as it was before the block.",
    ),
    steps=tuple(
        Step(title, ("Checkpoint.forward", "Checkpoint.backward"), check)
        for title, check in (
            ("the gradients", _right),
            ("nothing kept but the input", _kept),
            ("the same dropout masks", _masks),
            ("as if nothing was drawn", _generator),
        )
    ),
    race=Race("two blocks of a GPT, forward and backward", _prepared, _by_torch, 1),
)
