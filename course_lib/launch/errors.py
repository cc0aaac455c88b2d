"""The exceptions of a failed or interrupted launch, and explanations of torch's errors."""

import re
import signal
import threading
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class RankFailed(RuntimeError):
    """A rank raised, died, or gave no result in time.

    rank: the rank that failed first; reason: what happened to it, a phrase that follows "rank 1";
    traceback: the traceback in that rank, or the last lines that it printed.
    """

    def __init__(self, rank: int, reason: str, traceback: str = "") -> None:
        super().__init__(rank, reason, traceback)
        self.rank = rank
        self.reason = reason
        self.traceback = traceback

    def __str__(self) -> str:
        sentence = f"rank {self.rank} {self.reason}"
        return f"{sentence}\n\n{self.traceback}" if self.traceback else sentence

    def _render_traceback_(self) -> list[str]:
        # Called by IPython: the launcher's own frames would only hide those of the rank.
        return [f"{type(self).__name__}: {self}"]


class Stopped(KeyboardInterrupt):
    """A launch was stopped by an interrupt; none of its processes is left."""

    def _render_traceback_(self) -> list[str]:
        # Called by IPython: where the launcher was waiting tells the reader nothing.
        return [str(self)]


class Stop:
    """A flag that an interrupt sets, to be polled at safe points."""

    pressed = False

    def obey(self, ended: int = 0) -> None:
        """Raise Stopped if an interrupt came; the caller kills, or has killed, `ended` ranks."""
        if self.pressed:
            ranks = f"{ended} rank{'s' * (ended != 1)}"
            raise Stopped(f"Stopped; {ranks} ended" if ended else "Stopped before any rank started")


@contextmanager
def uninterrupted() -> Iterator[Stop]:
    """Defer interrupts: inside the block, SIGINT only sets the Stop flag that this yields.

    Where Python would not raise KeyboardInterrupt (other threads, SIGINT ignored), does nothing.
    """
    stop = Stop()
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if main else None
    if not callable(before):  # also None, SIG_IGN and SIG_DFL
        yield stop
        return

    def press(*_: object) -> None:
        stop.pressed = True

    signal.signal(signal.SIGINT, press)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


SAME_COLLECTIVES = (
    "every rank must call the same collectives, in the same order, with the same shapes and types"
)
MORE_PROCESSES = (
    "close other programs, raise this user's limit of processes (ulimit -u), or pass fewer ranks"
)
_ANOTHER_SIZE = (
    r"Received data size doesn't match expected size",
    f"received another number of bytes than it expected: {SAME_COLLECTIVES}; pass"
    " check_collectives=True to see who called what",
)
_NO_GRADIENT = (
    ", for which DDP waited: use these parameters in the loss of every iteration, freeze them, or"
    " pass find_unused_parameters=True"
)
_MEMORY = "take a smaller model or batch, shard it, or use fewer ranks"
# (pattern in an error of torch or the system, its explanation); the first match wins.
_KNOWN = (
    (
        r"can't allocate memory: you tried to allocate (?P<bytes>\d+) bytes",
        f"ran out of memory when it asked for {{size}} in one tensor: {_MEMORY}",
    ),
    (
        r"Ranks? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier in (?P<ms>\d+) ms",
        f"waited {{ms}} ms in a collective that ranks [{{ranks}}] did not call: {SAME_COLLECTIVES}",
    ),
    (
        r"Parameters which did not receive grad for rank \d+: (?P<names>[^\n]+)",
        f"had no gradient for {{names}}{_NO_GRADIENT}",
    ),
    (
        r"Parameter indices which did not receive grad .*?: (?P<names>[^\n]+)",
        f"had no gradient for parameters number {{names}}{_NO_GRADIENT}",
    ),
    _ANOTHER_SIZE,
    (
        r"can't start new thread|Resource temporarily unavailable",
        f"was refused another thread or process by the system: {MORE_PROCESSES}",
    ),
)
_FINGERPRINT = re.compile(
    r"Rank (?P<rank>\d+) is running collective: CollectiveFingerPrint\((?:SequenceNumber=\d+, ?)?"
    r"OpType=(?P<operation>\w+)"
    r"(?:, ?TensorShape=\[(?P<shape>[^\]]*)\])?(?:, ?TensorDtypes=(?P<dtype>\w+))?"
)
_OPERATIONS = {
    "ALLREDUCE": "all_reduce",
    "ALLGATHER": "all_gather",
    "REDUCE_SCATTER": "reduce_scatter",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all_single",
    "_ALLGATHER_BASE": "all_gather_single",
    "_REDUCE_SCATTER_BASE": "reduce_scatter_single",
}


def explain(error: BaseException) -> str:
    """A phrase on what happened and the remedy; for an unknown exception, its first line."""
    text = message_of(error)
    if known := _mismatch(text) or _matched(text, _KNOWN):
        return known
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return f"ran out of memory: {_MEMORY}"
    return f"raised {traceback.format_exception_only(error)[-1].splitlines()[0]}"


def explain_output(text: str) -> str:
    """Explain the output of a rank that was aborted; "" if no known error is in it."""
    return _matched(text, (_ANOTHER_SIZE,))


def _matched(text: str, known: Iterable[tuple[str, str]]) -> str:
    for pattern, sentence in known:
        if match := re.search(pattern, text):
            words = {name: value.strip() for name, value in match.groupdict().items()}
            if "bytes" in words:
                words["size"] = f"{int(words['bytes']) / 1e9:,.1f} GB"
            return sentence.format(**words)
    return ""


def message_of(error: BaseException) -> str:
    """`str(error)`, or a placeholder for exceptions whose `__str__` raises."""
    try:
        return str(error)
    except Exception:
        return "an exception whose text cannot be read"


def disk_full(folder: Path) -> str:
    """The sentence for a full disk, with the remedy."""
    return (
        f"no space is left for {folder}: free some, or set the environment variable TMPDIR to a"
        " folder with more"
    )


def _mismatch(text: str) -> str:
    calls = list(_FINGERPRINT.finditer(text))
    if "Detected mismatch between collectives" not in text or len(calls) < 2:
        return ""
    mine, other = calls[0], calls[1]
    return (
        f"called {_call(mine)} while rank {other['rank']} called {_call(other)}: {SAME_COLLECTIVES}"
    )


def _call(match: re.Match[str]) -> str:
    operation = _OPERATIONS.get(match["operation"], match["operation"].lower())
    if match["shape"] is None:
        return operation
    return f"{operation} of [{match['shape']}] {(match['dtype'] or '').lower()}".rstrip()
