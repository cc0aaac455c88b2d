"""Every fault ends in one sentence with the rank and the cause, in time, and leaves nothing.

Launches of one test run side by side: most of their time they wait.
"""

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import faults
import psutil
import pytest
import torch
from faults import broken
from leftovers import BUSY_S, limit_s, needs_signals

from course_lib import launch
from course_lib.launch import runner
from course_lib.launch.errors import explain, explain_output


@dataclass(frozen=True)
class Case:
    """What is run, what must be said of which rank, and what its traceback shows."""

    run: Callable[[], object]
    says: str  # a pattern of all that follows the rank
    trace: tuple[str, ...] = ()
    ranks: tuple[int, ...] = (1,)  # which may be named: of a mismatch, either side
    checked: bool = False
    world: int = 2


ALL = "every rank must call the same collectives, in the same order"
CALLED = r"called (broadcast|all_reduce) of \[\d+\] (float|double) while rank [01] called "
KILL, SEGV = signal.SIGKILL, signal.SIGSEGV
ENDS_AT_ONCE = {
    "raises": Case(
        faults.divide, "raised ZeroDivisionError: division by zero$",
        ("Traceback", "return 1 / (1 - launch.init().rank)"),
    ),
    "raises first, and the others lose it": Case(
        broken(lambda: faults.raises(KeyError("the cause"))), "raised KeyError: 'the cause'$",
        world=4,
    ),
    "raises while others compute": Case(
        broken(lambda: faults.raises(ValueError("no")), faults.sleep), "raised ValueError: no$",
    ),
    "is killed": Case(
        broken(lambda: faults.die(KILL)), "was killed by SIGKILL: .*memory", ("last words",),
    ),
    "crashes": Case(broken(lambda: faults.die(SEGV)), "was killed by SIGSEGV$"),
    "leaves": Case(
        broken(lambda: os._exit(7)), "ended with exit code 7 before it returned a result$",
    ),
    "leaves in peace": Case(
        broken(lambda: os._exit(0), int), "ended with exit code 0 before it returned a",
    ),
    "leaves children behind": Case(
        broken(faults.leave_children_behind, int), "ended with exit code 3",
    ),
    "calls sys.exit": Case(
        broken(lambda: sys.exit(7)), r"called sys.exit\(7\) instead of returning a result$",
    ),
    "waits for one that has returned": Case(
        faults.one_too_many, "lost its connection to rank 0, which had returned already",
        ("dist.barrier()",),
    ),
    "wants too much memory": Case(
        broken(faults.huge_tensor),
        "ran out of memory when it asked for 4,000,000.0 GB in one tensor: take",
    ),
    "has little memory": Case(
        broken(faults.limited_memory), "ran out of memory: take a smaller model",
    ),
    "returns what cannot be sent": Case(
        faults.unsendable,
        "returned a generator that cannot be sent to the parent .*return numbers, tensors or plain",
    ),
    "calls another collective": Case(
        faults.other_collective, f"{CALLED}.*: {ALL}", ranks=(0, 1), checked=True,
    ),
    "sends another shape": Case(
        faults.other_tensor(1000), f"{CALLED}.*: {ALL}", ranks=(0, 1), checked=True,
    ),
    "sends another type": Case(
        faults.other_tensor(dtype="float64"), f"{CALLED}.*: {ALL}", ranks=(0, 1), checked=True,
    ),
    "sends another shape, unchecked": Case(
        faults.other_tensor(1000),
        f"received another number of bytes than it expected: {ALL}.*check_collectives=True",
        ranks=(0, 1),
    ),
    "has an unused parameter": Case(
        faults.unused_parameter,
        r"had no gradient for forgotten.bias, forgotten.weight, for which DDP waited: use these .*"
        "find_unused_parameters=True",
        ranks=(0, 1),
    ),
}  # fmt: skip
ENDS_AT_THE_LIMIT = {
    "hangs": Case(
        broken(faults.sleep, int),
        "hung: it gave no result within LIMIT s; rank 0 had returned already$",
        ("rank 1 was here:", "in sleep\n    time.sleep(600)"),
    ),
    "computes endlessly": Case(
        faults.busy,
        "was still computing: it gave no result within LIMIT s, nor did rank .*Its processor time"
        " grew by .*larger timeout_s",
        ("in busy",), (0, 1),
    ),
    "hangs with the interpreter locked": Case(broken(faults.locked, int), "hung", ("in locked",)),
    "does not come": Case(
        faults.absent, "hung: it gave no result",
        ("dist.all_reduce(torch.ones(4))", "time.sleep(600)"), (0, 1),
    ),
    "does not come, checked": Case(
        faults.absent,
        rf"waited \d+ ms in a collective that ranks \[1\] did not call: {ALL}|hung: it gave",
        ranks=(0,), checked=True,
    ),
    "is lost as the time is up": Case(
        broken(faults.lose_the_peer_as_the_time_is_up, faults.sleep), "hung",
        ("raise _Lost", "time.sleep(600)"), (0, 1),
    ),
}  # fmt: skip
CASES = ENDS_AT_ONCE | ENDS_AT_THE_LIMIT


def ports() -> set[tuple[str, int]]:
    """Where this process, the server and the ranks listen."""
    me = psutil.Process()
    found = set()
    for process in (me, *me.children(recursive=True)):
        try:
            connections = process.net_connections("inet")
        except psutil.Error:
            continue
        found |= {tuple(c.laddr) for c in connections if c.status == psutil.CONN_LISTEN}
    return found


@pytest.fixture(autouse=True)
def no_port_left() -> Iterator[None]:
    before = ports()
    yield
    assert ports() <= before


def failure(name: str, timeout_s: float) -> launch.RankFailed:
    case = CASES[name]
    with pytest.raises(launch.RankFailed) as caught:
        launch.run(
            case.run,
            ranks=case.world,
            timeout_s=timeout_s,
            stream=False,
            check_collectives=case.checked,
        )
    return caught.value


def mistake(name: str, failed: launch.RankFailed, timeout_s: float) -> str:
    """What is wrong with the words for this case; "" if nothing is."""
    case = CASES[name]
    says = case.says.replace("LIMIT", f"{timeout_s:g}")
    right = (
        re.match(rf"(?m)rank \d ({says})", str(failed))
        and failed.rank in case.ranks
        and "\n" not in failed.reason
        and all(piece in failed.traceback for piece in case.trace)
        and "course_lib/launch/rank" not in failed.traceback  # none of our own frames
    )
    return "" if right else f"{name}: {failed}"


@needs_signals
@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
@pytest.mark.parametrize("at_the_limit", [False, True])
def test_faults_are_named(at_the_limit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ENDS_AT_THE_LIMIT if at_the_limit else ENDS_AT_ONCE
    timeout_s = limit_s() if at_the_limit else 2 * BUSY_S
    if at_the_limit:  # all ranks end by themselves, some later where the machine is busy
        monkeypatch.setattr(runner, "_GRACE_S", BUSY_S)
    start_s = time.monotonic()
    # What computes is run alone: among the others it might get no processor in its last part.
    wait = [name for name in names if name != "computes endlessly"]
    failures = {name: failure(name, timeout_s) for name in names if name not in wait}
    with ThreadPoolExecutor(len(wait) if at_the_limit else 3) as pool:
        failures |= zip(wait, pool.map(lambda n: failure(n, timeout_s), wait), strict=True)
    wrong = [mistake(name, failed, timeout_s) for name, failed in failures.items()]
    assert not any(wrong), "\n\n".join(filter(None, wrong))
    assert at_the_limit or time.monotonic() - start_s < timeout_s  # nobody waited for it


@needs_signals
def test_a_rank_that_prints_without_end_is_ended(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(launch.RankFailed, match=r"^rank 1 printed more than 16 MiB$"):
        launch.run(faults.shout, timeout_s=BUSY_S)
    shown = capsys.readouterr().out
    assert len(shown) < 20 * 2**20
    assert shown.endswith("[rank 1] (the rest is not shown: only 16 MiB are)\n")


def test_what_the_parent_says_about_debugging_reaches_ranks_of_a_warm_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert launch.run(faults.nothing, ranks=3) == [(3, "INFO")] * 3
    assert launch.run(faults.nothing, check_collectives=True) == [(2, "DETAIL")] * 2
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "OFF")
    with pytest.raises(launch.RankFailed, match="had no gradient for parameters number 2 3"):
        launch.run(faults.unused_parameter, stream=False)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (RuntimeError("first\nsecond"), "raised RuntimeError: first"),
        (RuntimeError("Detected mismatch between collectives on"), "raised RuntimeError: Detected"),
        (
            RuntimeError("[Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 2500 ms"),
            "waited 2500 ms in a collective that ranks [1, 2] did not call",
        ),
        (RuntimeError("can't start new thread"), "was refused another thread or process by the"),
        (torch.OutOfMemoryError("CUDA out of memory."), "ran out of memory: take a smaller model"),
    ],
)
def test_an_error_in_words(error: Exception, says: str) -> None:
    assert explain(error).startswith(says)
    assert explain_output(str(error)) == ""
