"""Flattens and compares gradients; counts saved tensors and graphs."""

import linecache
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.fx import GraphModule


def flat_gradient(model: nn.Module) -> Tensor:
    """All gradients of `model` as one vector, in the parameters' order."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return torch.cat([gradient.detach().flatten() for gradient in gradients])


def relative_difference(a: Tensor, b: Tensor) -> float:
    """|a - b| / |b|, Euclidean norms: 0 if equal, 1e-7 by fp32 rounding."""
    return float((a - b).norm() / b.norm())


def mean_square_norm(gradients: list[Tensor]) -> float:
    """Mean of |g|² over several gradients of the same batch size."""
    return float(torch.stack([g.square().sum() for g in gradients]).mean())


def flowing_gradients(model: nn.Module, loss: Callable[[], Tensor]) -> Tensor:
    """Run `loss().backward()`; the output gradients of all nn.Linear layers.

    They are one vector, in the dtype of the backward pass. The gradients of
    the weights are in `.grad` as usual.
    """
    outputs: list[Tensor] = []

    def keep(_layer: nn.Module, _inputs: object, grad: tuple[Tensor]) -> None:
        outputs.append(grad[0].detach().flatten())

    with ExitStack() as stack:
        for layer in model.modules():
            if isinstance(layer, nn.Linear):
                hook = layer.register_full_backward_hook(keep)
                stack.callback(hook.remove)
        loss().backward()
    return torch.cat(outputs)


def saved_bytes(forward: Callable[[], Tensor], model: nn.Module) -> int:
    """Bytes that `forward()` saves for the backward pass, each storage once.

    The model's own parameters are excluded: they exist in any case.
    """
    owned = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, Tensor] = {}  # by address, which is not reused while kept

    def note(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in owned:
            kept[address] = tensor
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        result = forward()
    total = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    del result
    return total


class _Pass:
    """A forward pass; lives as long as its output or its saved tensors."""


class _Kept(NamedTuple):
    tensor: Tensor
    owner: _Pass


class HeldPasses:
    """Tracks forward passes whose tensors are alive; `most`: at one time."""

    def __init__(self) -> None:
        self.most = 0
        self._alive: WeakSet[_Pass] = WeakSet()
        self._now = _Pass()  # for tensors saved before the first pass

    def _begin(self, *_: Any) -> None:
        self._now = _Pass()
        self._alive.add(self._now)

    def _end(self, _part: nn.Module, _inputs: Any, output: Any) -> None:
        output.held_by = self._now
        self.most = max(self.most, len(self._alive))

    def _keep(self, tensor: Tensor) -> _Kept:
        return _Kept(tensor, self._now)


@contextmanager
def count_held(parts: Iterable[nn.Module]) -> Iterator[HeldPasses]:
    """Count how many forward passes of `parts` are waiting for their backward.

    A pass counts until its output and all its saved tensors are freed.
    """
    held = HeldPasses()
    with ExitStack() as stack:
        stack.enter_context(
            saved_tensors_hooks(held._keep, lambda kept: kept.tensor)
        )
        for part in parts:
            stack.enter_context(part.register_forward_pre_hook(held._begin))
            stack.enter_context(part.register_forward_hook(held._end))
        yield held


@dataclass
class GraphLog:
    """Number of operators in each compiled graph, in order of compilation."""

    operators: list[int] = field(default_factory=list)

    def backend(self, graph: GraphModule, _: Sequence[Any]) -> Any:
        """A backend for torch.compile: log the graph, run it uncompiled."""
        nodes = graph.graph.nodes
        self.operators.append(
            sum(node.op.startswith("call") for node in nodes)
        )
        return graph.forward

    def new_graphs(self, call: Callable[[], object]) -> int:
        """How many graphs `call()` compiles."""
        before = len(self.operators)
        call()
        return len(self.operators) - before


@contextmanager
def log_graphs() -> Iterator[GraphLog]:
    """Yield a GraphLog; resets torch._dynamo before and after the block."""
    torch._dynamo.reset()
    with _quiet():
        yield GraphLog()
    torch._dynamo.reset()


@contextmanager
def log_backward(ran: Callable[[], None], cut: bool = True) -> Iterator[Any]:
    """Yield a torch.compile backend; it calls `ran` after each backward graph.

    `cut`: split the graphs of a DDP model at its buckets, torch's default.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func

    def forward(graph: GraphModule, _: Sequence[Any]) -> Any:
        return make_boxed_func(graph.forward)

    def backward(graph: GraphModule, _: Sequence[Any]) -> Any:
        def run(*tensors: Any) -> Any:
            gradients = graph.forward(*tensors)
            ran()
            return gradients

        return make_boxed_func(run)

    torch._dynamo.reset()
    with _quiet(), torch._dynamo.config.patch(optimize_ddp=cut):
        yield aot_autograd(fw_compiler=forward, bw_compiler=backward)
    torch._dynamo.reset()


@dataclass(frozen=True)
class Break:
    """A graph break: the reason, and the source line that causes it."""

    reason: str
    line: str


def breaks(function: Callable[..., Any], *args: Any) -> list[Break]:
    """Call `function(*args)`; the graph breaks torch.compile would make."""
    torch._dynamo.reset()
    with _quiet():
        explained = torch._dynamo.explain(function)(*args)
    torch._dynamo.reset()
    # The last graph ends where the function returns, which is not a break.
    return [
        Break(str(one.reason).partition("\n")[0], _line(one.user_stack))
        for one in explained.break_reasons[: explained.graph_break_count]
    ]


def _line(stack: Sequence[Any]) -> str:
    if not stack:
        return ""
    return linecache.getline(stack[-1].filename, stack[-1].lineno).strip()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch._dynamo's warnings about each break."""
    logger = logging.getLogger("torch._dynamo")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
