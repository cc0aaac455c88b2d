"""torch's flight recorder, for the doctor: the last collectives of this process.

The one place that knows torch's private names. On gloo (torch 2.13) a record has no times but that
of the call, its `state` stays "scheduled" and `retired` says that it is over; sends and receives
are not in it, and the ranks of a group are not either.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from typing import Any

_CALLS = "200"  # kept by torch, in a ring


def switch_on() -> None:
    """To be called before the first collective of the process: torch asks only once."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", _CALLS)


def entries(lines: bool = True) -> list[dict[str, Any]]:
    """The entries of torch's record, the oldest first; none where this torch has no recorder.

    With `lines`, those that led to each call: the first time takes 1.7 s where torch._dynamo is not
    loaded yet, which it needs for them.
    """
    from torch._C import _distributed_c10d as private

    asked = {} if lines else {"includeStackTraces": False}
    for name in ("_dump_nccl_trace", "_dump_fr_trace"):  # with GPUs the first has them
        with contextlib.suppress(AttributeError, RuntimeError, TypeError):
            dump = getattr(private, name)
            found: list[dict[str, Any]] = pickle.loads(dump(**asked)).get("entries", [])
            if found:
                return found
    return []


def groups() -> dict[str, list[int]]:
    """The ranks of each process group, by the name that the entries give it."""
    from torch.distributed import distributed_c10d as c10d

    members = c10d._world.pg_group_ranks
    return {str(name): list(members.get(group, ())) for group, name in c10d._pg_names.items()}
