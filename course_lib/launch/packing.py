"""How functions, arguments and results travel: cloudpickle, but large tensors as plain bytes.

torch copies a tensor several times when it is pickled. A tensor that is nothing but numbers is
written as it lies in memory instead, and read into memory once.
"""

import io
import pickle
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_LARGE_BYTES = 64 * 1024  # below, nothing is gained


def pack(value: Any, path: Path) -> None:
    """Write `value` to a file. Raises OSError where there is no room, else what pickling does."""
    with open(path, "wb") as file:
        _packer(file).dump(value)


def unpack(path: Path) -> Any:
    """Read what `pack` has written."""
    with open(path, "rb") as file:
        return pickle.load(file)


def _packer(file: io.BufferedWriter) -> Any:
    from course_lib import pickled_code

    class Packer(pickled_code.Pickler):
        """Code's, with its own way for large tensors."""

        def reducer_override(self, value: Any) -> Any:
            import torch

            if type(value) is torch.Tensor and _is_large_and_plain(value):
                return _reduced(value)
            if isinstance(value, ModuleType) and _only_its_parent_has(value):
                return _part_of_its_parent, (value.__name__,)
            return super().reducer_override(value)

    return Packer(file, protocol=5)


def _is_large_and_plain(tensor: "torch.Tensor") -> bool:
    import torch

    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.numel() * tensor.element_size() >= _LARGE_BYTES
        and tensor.is_contiguous()
        and not tensor.__dict__
    )


def _reduced(tensor: "torch.Tensor") -> tuple[Callable[..., Any], tuple[Any, ...]]:
    import torch

    raw: Any = tensor.detach().view(-1).view(torch.uint8).numpy()
    return _rebuilt, (pickle.PickleBuffer(raw), tensor.dtype, tuple(tensor.shape))


def _only_its_parent_has(module: ModuleType) -> bool:
    """Whether it cannot be imported, like torch._C._functions, which torch's decorators name."""
    parent, _, own = module.__name__.rpartition(".")
    missing = module.__name__ not in sys.modules
    return missing and getattr(sys.modules.get(parent), own, None) is module


def _part_of_its_parent(name: str) -> Any:
    parent, _, own = name.rpartition(".")
    return getattr(import_module(parent), own)


def _rebuilt(raw: bytearray, dtype: "torch.dtype", shape: tuple[int, ...]) -> "torch.Tensor":
    import torch

    return torch.frombuffer(raw, dtype=dtype).view(shape)
