"""Reads torch's flight recorder: the last collectives of this process, for `course diagnose`.

The only module that uses torch's private names. On gloo (torch 2.13) an entry has no time but that
of the call, its `state` stays "scheduled", and `retired` says that it has finished. Sends and
receives, roots, reduction operators and the ranks of a group are missing: `watch` records them.
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

_CALLS = "200"  # entries in torch's ring buffer
_MESSAGES = ("send", "recv", "recv_anysource")
_COLLECTIVES = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "gather", "scatter", "barrier",
    "allgather", "all_gather_single", "_allgather_base", "allgather_coalesced",
    "allgather_into_tensor_coalesced", "reduce_scatter", "reduce_scatter_single",
    "_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "alltoall", "alltoall_base",
    "all_to_all_single",
)  # fmt: skip
_DEPTH = 30  # frames of the stack that are searched for a wait

# For each collective: the time before and after the call, on the clock of torch's
# `time_created_ns`, and the fields that torch's entry lacks.
_details: deque[tuple[int, int, dict[str, Any]]] = deque(maxlen=int(_CALLS))
# For each send or receive whose Work object is alive: "send" or "recv", and the peer's rank.
_messages: MutableMapping[Any, tuple[str, int]] = WeakKeyDictionary()
_messaged_s = [0.0]


def switch_on() -> None:
    """Enable torch's recorder; call it before the first collective: torch reads it only once."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", _CALLS)


def watch() -> None:
    """Start recording what torch's entries lack; names that this torch does not have are skipped.

    Wraps methods of the backend's classes, so calls by `from … import broadcast` are seen as well.
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
    """The frames of a stack in the format of torch's entries, innermost first."""
    frames: list[dict[str, Any]] = []
    while frame is not None and len(frames) < _DEPTH:
        code = frame.f_code
        frames.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back
    return frames


def _message(original: Callable[..., Any]) -> Callable[..., Any]:
    name = original.__name__

    @wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        work = original(*args, **kwargs)
        with contextlib.suppress(Exception):  # recording must never break the program
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
    """When the last send or receive was started, in seconds since 1970; 0 if there was none."""
    return _messaged_s[0]


def message(frame: FrameType | None) -> tuple[str, int]:
    """("send" or "recv", peer) of the message that `frame` waits for; ("", -1) if none."""
    for _ in range(_DEPTH):
        if frame is None:
            break
        if frame.f_code.co_name == "wait" and frame.f_code.co_filename == __file__:
            return _messages.get(frame.f_locals.get("work"), ("", -1))
        frame = frame.f_back
    return "", -1


def entries() -> list[dict[str, Any]]:
    """The entries of torch's flight recorder, oldest first; empty if this torch has none.

    Frames, root and operator are added as `watch` recorded them. It does not see the collectives
    that DDP calls from C++: torch itself has their frames, but needs an import of seconds for them.
    A thread does that; until it is done, these entries have no frames.
    """
    records = _dump(includeStackTraces=False)
    details = list(_details)
    for entry in records:
        made_ns = int(entry["time_created_ns"])
        entry.update(next((extra for start, end, extra in details if start <= made_ns <= end), {}))
    if any("frames" not in entry and not entry.get("is_p2p") for entry in records):
        if not _lines.ident:
            _lines.start()
        if not _lines.is_alive():
            by_number = {entry["record_id"]: entry for entry in records}
            for entry in _dump():
                by_number.get(entry["record_id"], {}).setdefault("frames", entry["frames"])
    return records


def last_ns() -> int:
    """When `watch` last saw a collective called, in ns since 1970; 0 if never."""
    return _details[-1][0] if _details else 0


def _dump(**options: bool) -> list[dict[str, Any]]:
    from torch._C import _distributed_c10d as private

    for name in ("_dump_nccl_trace", "_dump_fr_trace"):  # with GPUs the first has them
        with contextlib.suppress(AttributeError, RuntimeError, TypeError):
            read: list[dict[str, Any]] = pickle.loads(getattr(private, name)(**options))["entries"]
            if read:
                return read
    return []


def _load_lines() -> None:
    """Import what torch needs for frames; not by a dump: two concurrent dumps deadlock."""
    with contextlib.suppress(Exception):
        import torch._dynamo  # noqa: F401


_lines = threading.Thread(target=_load_lines, daemon=True)


def rank_and_world() -> tuple[int, int] | None:
    """(rank, world size) of this process; None before the process group is initialized."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return dist.get_rank(), dist.get_world_size()


def groups() -> dict[str, tuple[int, ...]]:
    """The global ranks of each process group, by the group's name in torch's entries."""
    from torch.distributed import distributed_c10d as c10d

    members = c10d._world.pg_group_ranks
    return {str(name): tuple(members.get(group, ())) for group, name in c10d._pg_names.items()}
