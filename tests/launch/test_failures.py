"""Every fault ends in one sentence with the rank and the cause, in time, and leaves nothing."""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import faults
import psutil
import pytest
from leftovers import needs_signals

from course_lib import launch
from course_lib.launch.errors import explain, explain_output

LIMIT_S = 60.0  # of a launch that must end long before
SOON_S = 30.0  # on a busy machine; 0.1 s on an idle one


@dataclass(frozen=True)
class Case:
    """What is run, what must be said of which rank, and what its traceback shows."""

    run: Callable[[], object]
    says: str  # a pattern of all that follows the rank
    trace: tuple[str, ...] = ()
    ranks: tuple[int, ...] = (1,)  # which may be named: of a mismatch, either side
    limit_s: float = LIMIT_S
    checked: bool = False
    world: int = 2


ALL = "every rank must call the same collectives, in the same order"
CALLED = r"called (broadcast|all_reduce) of \[\d+\] (float|double) while rank [01] called "
CASES = {
    "raises": Case(
        faults.divide,
        "raised ZeroDivisionError: division by zero$",
        ("Traceback", "return 1 / (1 - launch.init().rank)"),
    ),
    "raises first, and the others lose it": Case(
        faults.raise_while_others_wait, "raised KeyError: 'the cause'$", world=4
    ),
    "raises while others compute": Case(
        faults.raise_while_others_compute, "raised ValueError: no$"
    ),
    "is killed": Case(faults.kill, "was killed by SIGKILL: .*memory", ("last words",)),
    "crashes": Case(faults.crash, "was killed by SIGSEGV$"),
    "leaves": Case(faults.leave, "ended with exit code 7 before it returned a result$"),
    "leaves in peace": Case(faults.leave_in_peace, "ended with exit code 0 before it returned a"),
    "leaves children behind": Case(faults.leave_children_behind, "ended with exit code 3"),
    "calls sys.exit": Case(faults.sys_exit, r"called sys.exit\(7\) instead of returning a result$"),
    "hangs": Case(
        faults.hang,
        "hung: it gave no result within 3 s; rank 0 had returned already$",
        ("rank 1 was here:", "in wait_for_nothing\n    time.sleep(600)"),
        limit_s=3,
    ),
    "computes endlessly": Case(
        faults.busy,
        "was still computing: it gave no result within 4 s, nor did rank .*Its processor time grew"
        " by .*larger timeout_s",
        ("in busy",),
        (0, 1),
        limit_s=4,
    ),
    "hangs with the interpreter locked": Case(faults.locked, "hung", ("in locked",), limit_s=3),
    "does not come": Case(
        faults.absent,
        "hung: it gave no result",
        ("dist.all_reduce(torch.ones(4))", "time.sleep(600)"),
        (0, 1),
        limit_s=3,
    ),
    "does not come, checked": Case(
        faults.absent,
        rf"waited \d+ ms in a collective that ranks \[1\] did not call: {ALL}|hung: it gave",
        ranks=(0,),
        limit_s=3,
        checked=True,
    ),
    "is lost as the time is up": Case(
        faults.lose_the_peer_as_the_time_is_up,
        "hung",
        ("raise _Lost", "time.sleep(60)"),
        (0, 1),
        limit_s=6,
    ),
    "waits for one that has returned": Case(
        faults.one_too_many,
        "lost its connection to rank 0, which had returned already",
        ("dist.barrier()",),
    ),
    "wants too much memory": Case(
        faults.huge_tensor, "ran out of memory when it asked for 4,000,000.0 GB in one tensor: take"
    ),
    "has little memory": Case(faults.limited_memory, "ran out of memory: take a smaller model"),
    "calls another collective": Case(
        faults.other_collective, f"{CALLED}.*: {ALL}", ranks=(0, 1), checked=True
    ),
    "sends another shape": Case(
        faults.other_shape, f"{CALLED}.*: {ALL}", ranks=(0, 1), checked=True
    ),
    "sends another type": Case(faults.other_type, f"{CALLED}.*: {ALL}", ranks=(0, 1), checked=True),
    "sends another shape, unchecked": Case(
        faults.other_shape,
        f"received another number of bytes than it expected: {ALL}.*check_collectives=True",
        ranks=(0, 1),
    ),
    "has an unused parameter": Case(
        faults.unused_parameter,
        r"had no gradient for forgotten.bias, forgotten.weight, for which DDP waited: use these .*"
        "find_unused_parameters=True",
        ranks=(0, 1),
    ),
    "returns what cannot be sent": Case(
        faults.unsendable,
        "returned a generator that cannot be sent to the parent .*return numbers, tensors or plain",
    ),
    "prints without end": Case(faults.shout, "printed more than 16 MiB$"),
}


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


@needs_signals
@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
@pytest.mark.parametrize("name", CASES)
def test_the_fault_is_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    case = CASES[name]
    start_s = time.monotonic()
    with pytest.raises(launch.RankFailed, match=rf"(?m)^rank \d {case.says}") as caught:
        launch.run(
            case.run, ranks=case.world, timeout_s=case.limit_s, check_collectives=case.checked
        )
    failed = caught.value
    assert time.monotonic() - start_s < min(case.limit_s, SOON_S) + 10
    assert failed.rank in case.ranks
    assert "\n" not in failed.reason
    for piece in case.trace:
        assert piece in failed.traceback
    assert "course_lib/launch/rank" not in failed.traceback  # none of our own frames
    shown = capsys.readouterr().out
    assert len(shown) < 20 * 2**20
    if name == "prints without end":
        assert shown.endswith("[rank 1] (the rest is not shown: only 16 MiB are)\n")


@pytest.mark.parametrize("checked", [False, True])
def test_without_a_fault_all_is_well(checked: bool) -> None:
    assert launch.run(faults.nothing, ranks=3, check_collectives=checked) == [3, 3, 3]


def test_what_the_parent_says_about_debugging_reaches_ranks_of_a_warm_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def level() -> str:
        import torch.distributed as dist

        return dist.get_debug_level().name

    assert launch.run(level) == ["INFO", "INFO"]
    assert launch.run(level, check_collectives=True) == ["DETAIL", "DETAIL"]
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "OFF")
    assert launch.run(level) == ["OFF", "OFF"]
    with pytest.raises(launch.RankFailed, match="had no gradient for parameters number 2 3"):
        launch.run(faults.unused_parameter, stream=False)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("first\nsecond", "raised RuntimeError: first"),
        ("Detected mismatch between collectives on ranks.", "raised RuntimeError: Detected"),
        (
            "[Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 2500 ms",
            "waited 2500 ms in a collective that ranks [1, 2] did not call",
        ),
        ("can't start new thread", "was refused another thread or process by the system"),
    ],
)
def test_an_error_in_words(text: str, says: str) -> None:
    assert explain(RuntimeError(text)).startswith(says)
    assert explain_output(text) == ""


def test_a_full_gpu_in_words() -> None:
    import torch

    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
    assert explain(full).startswith("ran out of memory: take a smaller model")
