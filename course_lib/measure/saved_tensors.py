"""Counts what autograd keeps between forward and backward."""

from collections.abc import Callable

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
