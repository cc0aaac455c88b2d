"""On a rank of a check: the tensors that an object keeps alive."""

import gc
from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.measure.peak import tensor_bytes

_SHARED = (type, ModuleType, ProcessGroup)  # others have them as well


def tensor_bytes_of(root: Any) -> int:
    """Bytes of the tensors that `root` leads to, through attributes, lists and closures alike."""
    found: list[Tensor] = []
    seen, waiting = set(), [root]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, _SHARED):
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            found.append(one.detach())
        elif isinstance(one, FunctionType):
            waiting += [one.__closure__, one.__defaults__]
        else:
            waiting += gc.get_referents(one)
    return tensor_bytes(found)
