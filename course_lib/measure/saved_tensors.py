"""Counts what autograd keeps between forward and backward."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from weakref import WeakSet

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


def saved_bytes(forward: Callable[[], Tensor], model: nn.Module) -> int:
    """Bytes that `forward()` stores for the backward pass, each storage once.

    The model's own parameters do not count: they exist anyway.
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
    """A forward pass: alive as long as its output or what autograd keeps."""


class _Kept(NamedTuple):
    tensor: Tensor
    of: _Pass


class HeldPasses:
    """Forward passes whose tensors are alive; the most at a time so far."""

    def __init__(self) -> None:
        self.most = 0
        self._alive: WeakSet[_Pass] = WeakSet()
        self._now = _Pass()  # before the first one

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
    """Count how many forward passes of the parts wait for their backward.

    A pass counts until its output and all that autograd keeps are let go.
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
