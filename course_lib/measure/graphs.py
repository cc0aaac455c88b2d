"""Counts what torch.compile makes of a piece of code: graphs and breaks.

Counting needs no compiled code: each graph is run by Python as it is, so that
nothing waits for a C++ compiler. Everything of torch._dynamo stands here.
"""

import linecache
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule


@dataclass
class GraphLog:
    """Operators of each graph that was made, in order."""

    operators: list[int] = field(default_factory=list)

    def backend(self, graph: GraphModule, _: Sequence[Any]) -> Any:
        """What `torch.compile(…, backend=log.backend)` calls for a graph."""
        nodes = graph.graph.nodes
        self.operators.append(
            sum(node.op.startswith("call") for node in nodes)
        )
        return graph.forward

    def new_graphs(self, call: Callable[[], object]) -> int:
        """How many graphs `call()` makes."""
        before = len(self.operators)
        call()
        return len(self.operators) - before


@contextmanager
def log_graphs() -> Iterator[GraphLog]:
    """A log whose `backend` counts; what was compiled before is forgotten."""
    torch._dynamo.reset()
    with _quiet():
        yield GraphLog()
    torch._dynamo.reset()


@contextmanager
def log_backward(ran: Callable[[], None], cut: bool = True) -> Iterator[Any]:
    """A backend for torch.compile that calls `ran` after each backward graph.

    `cut`: whether graphs of a DDP model are cut at its buckets, as by default.
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
    """A place where a graph ends, and Python goes on: why, and the line."""

    reason: str
    line: str


def breaks(function: Callable[..., Any], *args: Any) -> list[Break]:
    """Where torch.compile would break `function(*args)`, which it calls."""
    torch._dynamo.reset()
    with _quiet():
        found = torch._dynamo.explain(function)(*args)
    torch._dynamo.reset()
    # The last graph ends where the function does: that is no break.
    return [
        Break(str(one.reason).partition("\n")[0], _line(one.user_stack))
        for one in found.break_reasons[: found.graph_break_count]
    ]


def _line(stack: Sequence[Any]) -> str:
    if not stack:
        return ""
    return linecache.getline(stack[-1].filename, stack[-1].lineno).strip()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings on each break."""
    logger = logging.getLogger("torch._dynamo")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
