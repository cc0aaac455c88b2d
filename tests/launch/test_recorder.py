"""A launch that is recorded: pages of real ranks, which the doctor understands."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from leftovers import BUSY_S, limit_s

from course_lib import demos, launch
from course_lib.chapters.ch16_cluster_clinic import diagnosing
from course_lib.chapters.ch16_cluster_clinic.diagnosing.judging import Diagnosis
from course_lib.launch import recorder


def recorded(folder: Path, kind: str, **options: object) -> Diagnosis:
    """What the doctor says of one run of the demo faults."""
    with contextlib.suppress(launch.RankFailed):
        demos.run("faults", stream=False, record=folder, kind=kind, **options)
    return diagnosing.diagnose(folder)


@pytest.mark.torch_internals
def test_a_rank_that_hangs_is_found(tmp_path: Path) -> None:
    diagnosis = recorded(tmp_path, "hang", ranks=3, rank=2, timeout_s=1 + limit_s())
    found = diagnosis.finding
    assert (found.cause, found.ranks) == ("stuck", (2,)), diagnosis.report()
    assert found.lines[2].text == "time.sleep(1)"
    assert "while ranks 0 and 1 waited in all_reduce number 3 at kinds.py" in found.sentence
    pages = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(3)]
    assert pages[2]["state"] == "running"  # the others may have lost a peer to the time limit
    assert len({page["launch"] for page in pages}) == 1
    assert pages[0]["groups"] == {"0": [0, 1, 2]}


@pytest.mark.torch_internals
def test_ranks_that_call_different_sizes_are_found_though_one_is_aborted(tmp_path: Path) -> None:
    found = recorded(tmp_path, "shape", ranks=4, rank=1, timeout_s=BUSY_S).finding
    assert (found.cause, found.ranks) == ("size", (1,))
    assert "4,000 float at kinds.py" in found.sentence


@pytest.mark.torch_internals
def test_a_healthy_launch_is_said_to_be_healthy_and_replaces_an_older_record(
    tmp_path: Path,
) -> None:
    (tmp_path / "rank7.json").write_text("of an earlier launch")
    diagnosis = recorded(tmp_path, "none", ranks=2)
    assert diagnosis.finding.cause == "nothing" and diagnosis.notes == ()
    page = json.loads((tmp_path / "rank1.json").read_text())
    assert (page["step"], page["steps"], page["state"]) == (3, 3, "returned")
    assert [call["operation"] for call in page["calls"]] == ["all_reduce", "all_gather"] * 3


def test_nothing_is_kept_or_started_without_a_folder(tmp_path: Path) -> None:
    def inside() -> list[object]:
        """What is there, and how a fork ends, as a DataLoader makes them for its workers."""
        import threading

        names = [thread.name for thread in threading.enumerate()]
        child = os.fork()
        if child == 0:
            os._exit(0)
        ended = os.waitpid(child, 0)[1]
        return [os.environ.get("TORCH_FR_BUFFER_SIZE"), "course_recorder" in names, ended]

    assert launch.run(inside) == [[None, False, 0]] * 2
    assert launch.run(inside, record=tmp_path) == [["200", True, 0]] * 2
    assert list(tmp_path.glob("rank*.log")) == []  # nothing was printed: no thread complained


def test_ranks_started_by_anybody_leave_pages_too(tmp_path: Path) -> None:
    """One of two comes, as under torchrun with a missing node."""
    environment = {
        **os.environ,
        "RANK": "0",
        "WORLD_SIZE": "2",
        "COURSE_STORE": str(tmp_path / "store"),
        "COURSE_TIMEOUT_S": "1",
        "COURSE_RECORD": str(tmp_path / "record"),
    }
    code = "from course_lib import launch; launch.program(lambda _: None, None)"
    subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, timeout=BUSY_S
    )
    found = diagnosing.diagnose(tmp_path / "record").finding
    assert (found.cause, found.ranks) == ("never came", (1,))
    assert (
        found.sentence == "Rank 1 never came: rank 0 of 2 waited to begin, and rank 1 left no page"
    )


PLAIN = """
import os, sys
import torch
import torch.distributed as dist
{line}
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    {fault}
dist.all_reduce(torch.ones(4))
"""
RECORD = "import course_lib.record"


@pytest.mark.torch_internals
@pytest.mark.parametrize(
    ("fault", "line", "wrapped", "cause", "words"),
    [
        ("{}['x']", RECORD, [], "error", "it raised KeyError: 'x' at train.py:9"),
        ("sys.exit(0)", "", ["-m", "course_lib.record"], "finished early", "called sys.exit(0)"),
    ],
)
def test_a_program_that_knows_nothing_of_the_course_is_recorded_by_one_line(
    fault: str, line: str, wrapped: list[str], cause: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(PLAIN.format(line=line, fault=fault))
    done = torchrun(tmp_path, *wrapped, COURSE_RECORD=str(tmp_path / "record"))
    assert f"recording into {tmp_path / 'record'}" in done.stderr
    found = diagnosing.diagnose(tmp_path / "record").finding
    assert (found.cause, found.ranks) == (cause, (1,)), found.sentence
    assert words in found.sentence


def torchrun(folder: Path, *wrapped: str, **more: str) -> "subprocess.CompletedProcess[str]":
    command = [*launch.private_torchrun(folder, 3), *wrapped, str(folder / "train.py")]
    environment = launch.outer_environment() | {"OMP_NUM_THREADS": "1"} | more
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=2 * BUSY_S, check=False
    )


def test_it_is_said_where_nothing_is_recorded() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "COURSE_RECORD"}
    done = subprocess.run(
        [sys.executable, "-c", RECORD], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == (
        "course_lib.record: nothing is recorded: start it with COURSE_RECORD=FOLDER\n"
    )


@pytest.mark.torch_internals
def test_what_torch_does_not_record_is_noted() -> None:
    """Roots, operators, and the peer of a receive that is waited for."""

    def inside() -> list[object]:
        import torch
        import torch.distributed as dist

        from course_lib.launch import flight

        flight.switch_on()
        flight.watch()
        flight.watch()  # once is enough
        dist.broadcast(torch.ones(1), 1)
        dist.all_reduce(torch.ones(1), op=dist.ReduceOp.MAX)
        other = 1 - dist.get_rank()
        sent = dist.isend(torch.ones(1), other, tag=5)
        got = dist.irecv(torch.ones(1), other, tag=5)
        known = [flight._messages[got], flight.message(None)]
        got.wait()
        sent.wait()
        entries = [entry for entry in flight.entries() if not entry["is_p2p"]]
        return [*known, *((e["root"], e["operator"], e["frames"][0]["name"]) for e in entries)]

    assert launch.run(inside)[0] == [
        ("recv", 1),
        ("", -1),
        (1, "", "broadcast"),
        (0, "MAX", "all_reduce"),
    ]


def test_a_rank_that_sends_and_receives_does_not_stand_still(tmp_path: Path) -> None:
    def still_s(folder: str) -> float:
        import torch
        import torch.distributed as dist

        from course_lib.launch import flight

        flight.switch_on()
        flight.watch()
        rank = dist.get_rank()
        ours = recorder._Recorder(Path(folder), 8 + rank, 10)
        time.sleep(1.0)
        (dist.recv if rank else dist.send)(torch.ones(1), 1 - rank)
        ours.note("running")
        return float(json.loads((Path(folder) / f"rank{8 + rank}.json").read_text())["still_s"])

    assert max(launch.run(still_s, str(tmp_path))) < 0.9
