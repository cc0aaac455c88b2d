"""Build 4.6: activation checkpointing, which recomputes layers from their input in backward."""

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from course_lib.checking.build import build
from course_lib.checking.builds.compare import compare_here
from course_lib.checking.builds.lazily import later, nn, torch
from course_lib.checking.builds.raced import both_passes
from course_lib.checking.builds.rows import Must, Never, Row
from course_lib.checking.exercises import Wrong
from course_lib.checking.helpers import described
from course_lib.checking.races import Race

_models = later("course_lib.checking.builds.on_rank.small_models")
_peak, _saved = later("course_lib.measure.peak"), later("course_lib.measure.gradients")

_WIDTH, _ROWS = 48, 96
# Allowance for a generator's state and similar small tensors.
_SMALL_BYTES = 8192


def _segment(dropout: float = 0.0, frozen: bool = False) -> "nn.Sequential":
    """Layers whose activations take several times the bytes of their input."""
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


def _data(needs_gradient: bool = True) -> "torch.Tensor":
    x = torch.randn(_ROWS, _WIDTH, generator=torch.Generator().manual_seed(1))
    return x.requires_grad_(needs_gradient)


def _run(parts: SimpleNamespace, layers: "nn.Module", x: "torch.Tensor") -> "torch.Tensor":
    """The output of the learner's Function."""
    if not issubclass(parts.Checkpoint, torch.autograd.Function):
        raise Wrong(f"wants an autograd.Function, got {described(parts.Checkpoint)}")
    output = parts.Checkpoint.apply(layers, x, *_models.trained(layers).values())
    if not isinstance(output, torch.Tensor) or output.shape != x.shape:
        raise Wrong(f"forward gives {described(output)}, expected the output of the layers")
    if not output.requires_grad:
        raise Wrong("the output of forward has no graph: no gradient goes back through it")
    return output


def _backward(output: "torch.Tensor") -> None:
    """Run the backward pass; raise Wrong if torch rejects what the learner's backward returned."""
    try:
        torch.autograd.backward(output.square().sum())
    except RuntimeError as error:
        if "gradient" not in str(error):
            raise
        wants = "backward wants a gradient, or None, for each argument of forward after ctx"
        raise Wrong(f"{wants}; torch says: {error}") from None


def _gradients(layers: "nn.Module", x: "torch.Tensor | None" = None) -> dict[str, Any]:
    """Gradients of the parameters, by name, and of `x` if given."""
    gradients: dict[str, Any] = _models.gradients(layers)
    return gradients if x is None else gradients | {"x": x.grad}


def _compare(actual: dict[str, Any], reference: dict[str, Any], why: str = "") -> Iterator[Row]:
    for name, expected in reference.items():
        yield Never(actual[name] is None, f"{name} gets no gradient")
        twice = {2.0: "it is added twice"}
        yield Must(f"{why}the gradient of {name}", actual[name], expected, factors=twice)


def _check_passes(parts: SimpleNamespace) -> Iterator[Row]:
    """Gradients of parameters and of x equal those without checkpointing."""
    for frozen, of_x, why in (
        (False, True, ""),
        (True, True, "where one parameter is frozen, "),
        (False, False, "where x needs no gradient, "),
    ):
        plain, layers = _segment(frozen=frozen), _segment(frozen=frozen)
        x, copy = _data(of_x), _data(of_x)
        expected = plain(x)
        _backward(expected)
        output = _run(parts, layers, copy)
        yield Must("the output of forward", output, expected)
        _backward(output)
        gradients, plain_gradients = _gradients(layers, copy), _gradients(plain, x)
        yield from _compare(gradients, plain_gradients if of_x else _gradients(plain), why)
        frozens = [p for p in layers.parameters() if not p.requires_grad]
        has_gradient = any(p.grad is not None for p in frozens)
        yield Never(has_gradient, "a frozen parameter has got a gradient")
        changed = copy.requires_grad != of_x or (not of_x and copy.grad is not None)
        yield Never(changed, "x, which needs no gradient, has changed: detach a copy of it")
        yield Never(not copy.detach().equal(_data(False)), "x has other numbers afterwards")


def _check_others(parts: SimpleNamespace) -> Iterator[Row]:
    """Check one segment that runs twice, one without trained parameters, and one in bf16."""
    twice, of_none, half = _segment(), _segment().requires_grad_(False), _segment().bfloat16()
    for layers, runs, why in (
        (twice, 2, "where a segment runs twice, "),
        (of_none, 1, "where all parameters are frozen, "),
        (half, 1, "in bf16, "),
    ):
        gradients = []
        for checkpointed in (False, True):
            layers.zero_grad()
            x = _data(False).to(torch.bfloat16 if layers is half else torch.float32)
            x.requires_grad_()
            y = x
            for _ in range(runs):
                y = _run(parts, layers, y) if checkpointed else layers(y)
            torch.autograd.backward(y.square().sum())
            gradients.append(_gradients(layers, x))
        yield from _compare(gradients[1], gradients[0], why)


def _check_returned(parts: SimpleNamespace) -> Iterator[Row]:
    """Parameters get their gradients from autograd, not from a pass inside backward."""
    layers, x = _segment(), _data()
    output, trained = _run(parts, layers, x), _models.trained(layers)
    torch.autograd.grad(output.sum(), [x, *trained.values()], allow_unused=True)
    yield Never(
        any(p.grad is not None for p in trained.values()),
        "backward adds to .grad by itself: parameters' gradients are for autograd to hand over, "
        "else DDP's hooks are called in the middle of it",
    )


def _check_memory(parts: SimpleNamespace) -> Iterator[Row]:
    """Between forward and backward only x stays in memory, and the layers run twice."""
    layers, x = _segment(), _data()
    runs: list[str] = []
    layers.register_forward_hook(lambda *_: runs.append("a run"))
    with _peak.log_memory() as log:
        output = _run(parts, layers, x)
    stays = log.timeline[-1] - output.nbytes
    yield Never(
        stays > _SMALL_BYTES,
        f"after the forward pass {stays:,} bytes stay beside x and the output, where x has "
        f"{x.nbytes:,}: what the layers have computed is still there",
    )
    yield Never(len(runs) != 1, f"the layers run {len(runs)} times in forward, expected once")
    with _peak.log_memory() as log:
        _backward(output)
    stays = log.timeline[-1] - sum(one.nbytes for one in _gradients(layers, x).values())
    yield Never(
        stays > _SMALL_BYTES,
        f"after the backward pass {stays:,} bytes stay beside the gradients: nothing of the second "
        "run is needed any more",
    )
    again = len(runs) - 1
    yield Never(again != 1, f"the layers run {again} times in backward, expected once more from x")
    kept = _saved.saved_bytes(lambda: _run(parts, layers, x), layers)
    yield Never(
        kept != x.nbytes,
        f"autograd keeps {kept:,} bytes by its own account, expected x with {x.nbytes:,}: what "
        "backward needs is given to ctx.save_for_backward",
    )


def _draw_after_passes(
    parts: SimpleNamespace, segments: "Sequence[nn.Module]", x: "torch.Tensor", checkpointed: bool
) -> "list[torch.Tensor]":
    """Run both passes of consecutive segments; return random numbers drawn after each pass."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        for layers in segments:
            x = _run(parts, layers, x) if checkpointed else layers(x)
        drawn = [torch.rand(5)]
        _backward(x)
        return [*drawn, torch.rand(5)]


def _check_masks(parts: SimpleNamespace) -> Iterator[Row]:
    """The gradients of two consecutive segments with dropout."""
    both: list[list[dict[str, Any]]] = []
    for checkpointed in (False, True):
        x, segments = _data(), (_segment(0.5), _segment(0.3))
        _draw_after_passes(parts, segments, x, checkpointed)
        both.append([_gradients(segments[1]), _gradients(segments[0], x)])
    for reference, gradients, segment in zip(*both, ("the second", "the first"), strict=True):
        for name, gradient in reference.items():
            actual = gradients[name]
            yield Never(
                actual is None or not actual.allclose(gradient, rtol=1e-4, atol=1e-4),
                f"with dropout, the gradient of {name} in {segment} of two segments is another "
                "than without checkpointing, from the same seed: one of the two runs draws other "
                "masks, or runs other layers",
            )


def _check_generator(parts: SimpleNamespace) -> Iterator[Row]:
    """Random numbers drawn later are the same as without checkpointing."""
    after = (_draw_after_passes(parts, (_segment(0.5),), _data(), each) for each in (False, True))
    for expected, actual, when in zip(*after, ("forward", "backward"), strict=True):
        yield Never(
            not actual.equal(expected),
            f"after {when} the generator of random numbers gives others than without "
            "checkpointing: all that draws later is changed",
        )


_NEEDS = ("Checkpoint.forward", "Checkpoint.backward")

_gpt = later("course_lib.scratch.gpt")


def _blocks() -> tuple[Any, Any]:
    torch.manual_seed(0)
    segment = nn.Sequential(*(_gpt.Block(hidden=64, heads=4) for _ in range(2)))
    return segment, torch.randn(4, 64, 64, requires_grad=True)


def _checkpointing(parts: SimpleNamespace) -> Callable[[], object]:
    segment, x = _blocks()
    inputs = segment, x, *segment.parameters()
    return lambda: both_passes(parts.Checkpoint.apply, *inputs)


def _torchs_checkpoint() -> Callable[[], object]:
    segment, x = _blocks()
    checkpoint = later("torch.utils.checkpoint").checkpoint
    return lambda: checkpoint(segment, x, use_reentrant=False).sum().backward()


CHECKPOINTING = build(
    "checkpointing",
    steps=(
        compare_here("the gradients", _NEEDS, _check_passes, _check_others, _check_returned),
        compare_here("nothing kept but the input", _NEEDS, _check_memory),
        compare_here("the same dropout masks", _NEEDS, _check_masks),
        compare_here("as if nothing was drawn", _NEEDS, _check_generator),
    ),
    race=Race(
        "two blocks of a GPT, forward and backward", _checkpointing, _torchs_checkpoint, ranks=1
    ),
)
