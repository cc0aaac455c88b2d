"""torch's flight recorder, for the doctor: the last collectives of this process.

The one place that knows torch's private names. On gloo (torch 2.13) a record has no times but that
of the call, its `state` stays "scheduled" and `retired` says that it is over; sends and receives,
roots and operators are not in it, and the ranks of a group are not either. `watch` notes them.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, MutableMapping
from functools import wraps
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

_CALLS = "200"  # kept by torch, in a ring
_MESSAGES = ("send", "recv", "recv_anysource")
_COLLECTIVES = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "gather", "scatter", "barrier",
    "allgather", "all_gather_single", "_allgather_base", "allgather_coalesced",
    "allgather_into_tensor_coalesced", "reduce_scatter", "reduce_scatter_single",
    "_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "alltoall", "alltoall_base",
    "all_to_all_single",
)  # fmt: skip
_DEPTH = 30  # frames in which a wait is looked for

# Of a call: from and to when it was made, in the clock of the record's `time_created_ns`, and what
# its entry lacks.
_details: deque[tuple[int, int, dict[str, Any]]] = deque(maxlen=int(_CALLS))
# Of each send or receive that somebody may wait for: its kind, and the other rank.
_messages: MutableMapping[Any, tuple[str, int]] = WeakKeyDictionary()
_messaged_s = [0.0]


def switch_on() -> None:
    """To be called before the first collective of the process: torch asks only once."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", _CALLS)


def watch() -> None:
    """Note from now on what torch's record leaves out. Does nothing where torch has other names.

    On the classes of the backend, so that whoever imported `dist.broadcast` by name is seen too.
    """
    from torch._C import _distributed_c10d as private

    wrappers: dict[tuple[Any, str], Callable[..., Any]] = {
        **dict.fromkeys([(private.ProcessGroup, name) for name in _COLLECTIVES], _collective),
        **dict.fromkeys([(private.ProcessGroup, name) for name in _MESSAGES], _message),
        (private.Work, "wait"): _waited,
    }
    for (owner, name), wrapper in wrappers.items():
        original = getattr(owner, name, None)
        if original is not None and not hasattr(original, "__wrapped__"):
            with contextlib.suppress(AttributeError, TypeError):
                setattr(owner, name, wrapper(original))


def _collective(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        start_ns = time.time_ns()
        work = original(*args, **kwargs)
        options = next((one for one in args if type(one).__name__.endswith("Options")), None)
        reduce = getattr(options, "reduceOp", None)
        operator = str(getattr(reduce, "op", "SUM")).rpartition(".")[2]
        details = {
            "root": int(getattr(options, "rootRank", 0)),
            "operator": "" if operator == "SUM" else operator,
            "frames": _frames(sys._getframe(1)),
        }
        _details.append((start_ns, time.time_ns(), details))
        return work

    return called


def _frames(frame: FrameType | None) -> list[dict[str, Any]]:
    """As torch's record has them: the innermost first."""
    found: list[dict[str, Any]] = []
    while frame is not None and len(found) < _DEPTH:
        code = frame.f_code
        found.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back
    return found


def _message(original: Callable[..., Any]) -> Callable[..., Any]:
    name = original.__name__

    @wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        work = original(*args, **kwargs)
        with contextlib.suppress(Exception):  # the record must break nothing
            from torch.distributed import get_process_group_ranks

            group, _, *rest = args
            peer = get_process_group_ranks(group)[rest[0]] if name != "recv_anysource" else -1
            _messaged_s[0] = time.time()
            _messages[work] = (name.partition("_")[0], peer)
        return work

    return called


def _waited(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        return original(work, *args, **kwargs)

    return wait


def messaged_s() -> float:
    """When the last send or receive was started; 0 without one."""
    return _messaged_s[0]


def message(frame: FrameType | None) -> tuple[str, int]:
    """The send or receive that is waited for just now, and the other rank; "" and -1 for none."""
    for _ in range(_DEPTH):
        if frame is None:
            break
        if frame.f_code.co_name == "wait" and frame.f_code.co_filename == __file__:
            return _messages.get(frame.f_locals.get("work"), ("", -1))
        frame = frame.f_back
    return "", -1


def entries() -> list[dict[str, Any]]:
    """The entries of torch's record, the oldest first; none where this torch has no recorder.

    Each with its lines, root and operator as `watch` noted them. The calls that DDP makes in C++
    are not noted: torch's own record has their lines, but needs an import of seconds for them, and
    until a thread has done that they have none.
    """
    found = _dump(includeStackTraces=False)
    noted = list(_details)
    for entry in found:
        made_ns = int(entry["time_created_ns"])
        entry.update(next((more for start, end, more in noted if start <= made_ns <= end), {}))
    if any("frames" not in entry and not entry.get("is_p2p") for entry in found):
        if not _lines.ident:
            _lines.start()
        if not _lines.is_alive():
            by_number = {entry["record_id"]: entry for entry in found}
            for entry in _dump():
                by_number.get(entry["record_id"], {}).setdefault("frames", entry["frames"])
    return found


def last_ns() -> int:
    """When the last collective was called that `watch` has noted; 0 before."""
    return _details[-1][0] if _details else 0


def _dump(**asked: bool) -> list[dict[str, Any]]:
    from torch._C import _distributed_c10d as private

    for name in ("_dump_nccl_trace", "_dump_fr_trace"):  # with GPUs the first has them
        with contextlib.suppress(AttributeError, RuntimeError, TypeError):
            found: list[dict[str, Any]] = pickle.loads(getattr(private, name)(**asked))["entries"]
            if found:
                return found
    return []


def _load_lines() -> None:
    """Not by a dump: two dumps at once wait for each other for ever."""
    with contextlib.suppress(Exception):
        import torch._dynamo  # noqa: F401


_lines = threading.Thread(target=_load_lines, daemon=True)


def place() -> tuple[int, int] | None:
    """This process's rank and world, once it has met the others."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return dist.get_rank(), dist.get_world_size()


def groups() -> dict[str, tuple[int, ...]]:
    """The ranks of each process group, by the name that the entries give it."""
    from torch.distributed import distributed_c10d as c10d

    members = c10d._world.pg_group_ranks
    return {str(name): tuple(members.get(group, ())) for group, name in c10d._pg_names.items()}
