"""Listens to the operators that torch runs."""

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

Heard = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]


class Listener(TorchDispatchMode):
    """Calls `heard(operator, arguments, options, result)` for each operator.

    Active in this thread, as a context. A DTensor is one tensor cut over
    ranks: with `inside_dtensors` the operators on its shards are heard, and
    not those on the tensor as a whole.
    """

    def __init__(self, heard: Heard, inside_dtensors: bool = False) -> None:
        super().__init__()
        self.heard, self.inside_dtensors = heard, inside_dtensors

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if self.inside_dtensors and has_dtensor(types):
            return NotImplemented  # torch calls again, with plain tensors
        options = kwargs or {}
        result = func(*args, **options)
        self.heard(func, args, options, result)
        return result


def has_dtensor(types: Any) -> bool:
    """Whether a DTensor is among the arguments' types."""
    return any(kind.__name__ == "DTensor" for kind in types)
