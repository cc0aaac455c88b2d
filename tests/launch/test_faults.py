"""Every fault ends in one sentence with the rank and the cause, in time, and leaves nothing."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import faults
import psutil
import pytest
from leftovers import needs_signals

from course_lib import demos, launch
from course_lib.launch.errors import explain, explain_output

LIMIT_S = 60.0  # of a launch that must end long before
SOON_S = 20.0  # on a busy machine; 0.1 s on an idle one


@dataclass(frozen=True)
class Fault:
    """What is run, what must be said, and within which limit."""

    run: Callable[[int], object]
    says: str  # after "rank 1", or after the rank that `ranks` allows
    ranks: tuple[int, ...] = (1,)  # which may be named: of a mismatch, either side
    limit_s: float = LIMIT_S
    checked: bool = False


ALL = "every rank must call the same collectives, in the same order"
FAULTS = {
    "kill": Fault(faults.kill, "was killed by SIGKILL"),
    "raise": Fault(faults.raise_error, "raised ValueError: sabotage"),
    "exit": Fault(faults.leave, "ended with exit code 7 before it returned a result"),
    "sys.exit": Fault(faults.sys_exit, r"called sys.exit\(7\) instead of returning a result"),
    "hang": Fault(faults.hang, "hung: it gave no result within 1 s", (0, 1), limit_s=1),
    "huge tensor": Fault(
        faults.huge_tensor, "ran out of memory when it asked for 4,000,000.0 GB in one tensor: take"
    ),
    "limited memory": Fault(faults.limited_memory, "ran out of memory: take a smaller model"),
    "other collective": Fault(
        faults.other_collective,
        r"called (broadcast|all_reduce) of \[4\] float while rank [01] called "
        rf"(broadcast|all_reduce) of \[4\] float: {ALL}",
        (0, 1),
        checked=True,
    ),
    "other shape": Fault(
        faults.other_shape,
        rf"called all_reduce of \[10+\] float while rank [01] called all_reduce of \[10+\] float: "
        f"{ALL}",
        (0, 1),
        checked=True,
    ),
    "other type": Fault(
        faults.other_type,
        r"called all_reduce of \[4\] (float|double) while rank [01] called all_reduce of",
        (0, 1),
        checked=True,
    ),
    "other shape, unchecked": Fault(
        faults.other_shape,
        f"received another number of bytes than it expected: {ALL}.*check_collectives=True",
        (0, 1),
    ),
    "absent": Fault(
        faults.absent,
        f"waited 1 s in a collective that rank 1 did not call: {ALL}|hung: it gave no result",
        (0,),
        limit_s=1,
        checked=True,
    ),
    "unused parameter": Fault(
        faults.unused_parameter,
        r"had no gradient for forgotten.bias, forgotten.weight, for which DDP waited: use these .*"
        "find_unused_parameters=True",
        (0, 1),
    ),
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
@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_named(name: str) -> None:
    fault = FAULTS[name]
    start_s = time.monotonic()
    with pytest.raises(launch.RankFailed, match=fault.says) as caught:
        launch.run(
            fault.run, 1, timeout_s=fault.limit_s, stream=False, check_collectives=fault.checked
        )
    assert time.monotonic() - start_s < min(fault.limit_s, SOON_S) + 10
    assert caught.value.rank in fault.ranks
    assert "\n" not in caught.value.reason


@pytest.mark.parametrize("checked", [False, True])
def test_without_a_fault_all_is_well(checked: bool) -> None:
    assert launch.run(faults.nothing, 1, ranks=3, check_collectives=checked) == [3, 3, 3]


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
        launch.run(faults.unused_parameter, 1, stream=False)


def save_on(folder: Path) -> None:
    import torch.distributed as dist
    from torch import zeros

    from course_lib.scratch import recovery

    start, stop = recovery.columns(9, dist.get_rank(), dist.get_world_size())
    recovery.save_shard(folder, 1, zeros(3, stop - start), {"w": [9]})


def load_from(folder: Path, reshard: bool) -> None:
    from course_lib.scratch import recovery

    recovery.load_shard(folder / "step-00000001", {"w": [9]}, reshard=reshard)


def test_a_checkpoint_of_another_world_size(tmp_path: Path) -> None:
    launch.run(save_on, tmp_path, ranks=2)
    message = r"rank [0-2] raised CheckpointError: step-00000001 was saved by 2 ranks and is loaded"
    with pytest.raises(launch.RankFailed) as caught:
        launch.run(load_from, tmp_path, False, ranks=3)
    assert caught.match(message.replace("CheckpointError", ".*CheckpointError"))
    launch.run(load_from, tmp_path, True, ranks=3)


def test_a_corrupt_checkpoint(tmp_path: Path) -> None:
    launch.run(save_on, tmp_path)
    shard = tmp_path / "step-00000001" / "rank1.shard"
    shard.write_bytes(b"\1" + shard.read_bytes()[1:])
    with pytest.raises(launch.RankFailed, match=r"rank1.shard of rank 1 is corrupt") as caught:
        launch.run(load_from, tmp_path, True)
    assert caught.value.rank == 1


def test_a_world_that_a_layout_does_not_fit() -> None:
    with pytest.raises(launch.RankFailed, match="save_ranks 5 is more than the 2 ranks started"):
        demos.run("checkpoint", ranks=2, save_ranks=5, stream=False)


def test_a_program_alone_is_rank_0() -> None:
    code = "from course_lib import launch; launch.program(lambda _: 1 / 0, None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "rank 0 raised ZeroDivisionError: division by zero"


def test_an_unknown_exception_stays_as_it_is() -> None:
    assert explain(KeyError("x")) == "raised KeyError: 'x'"
    assert explain(RuntimeError("first\nsecond")) == "raised RuntimeError: first"
    assert explain(RuntimeError("Detected mismatch between collectives on ranks.")).startswith(
        "raised RuntimeError: Detected"
    )
    assert explain_output("anything") == ""


def test_what_gpus_and_several_absent_ranks_say() -> None:
    import torch

    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
    assert explain(full).startswith("ran out of memory: take a smaller model")
    late = RuntimeError("[Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 2500 ms")
    assert explain(late).startswith("waited 2.5 s in a collective that rank 1 and rank 2 did not")
