"""torch's own dumps.

The dumps here are built by hand, with the keys of version 2.10 of NCCL's flight record
(torch/csrc/distributed/c10d/FlightRecorder.hpp): none of them comes from a GPU.
"""

import json
import os
import pickle

import pytest

from course_lib.chapters.ch16_cluster_clinic.diagnosing.judging import diagnose
from course_lib.chapters.ch16_cluster_clinic.diagnosing.reading import page_of_dump, read

TORCH = "/opt/conda/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def entry(number, operation="all_reduce", line=57, **more):
    frames = [
        {"name": operation, "filename": TORCH, "line": 2806},
        {"name": "train", "filename": "/workspace/train.py", "line": line},
    ]
    known = {
        "frames": frames,
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"nccl:{operation}",
        "time_created_ns": 1_700_000_000_000_000_000 + number,
        "input_sizes": ((1024,),),
        "input_dtypes": ["Float"],
        "output_sizes": ((1024,),),
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }
    return known | more


def dump(*entries, world=4):
    ranks = json.dumps(list(range(world)))
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": list(entries)}


def hanging(number, **more):
    return entry(number, state="scheduled", retired=False, **more)


def receives(rank):
    name = f"nccl:recv {rank}<-{(rank + 1) % 4}"
    return dump(entry(1), hanging(2, profiling_name=name, is_p2p=True))


USUAL = dump(entry(1), hanging(2))
OTHER = dump(entry(1), hanging(2, operation="broadcast", line=9))


@pytest.mark.parametrize(
    ("dumps", "cause", "ranks", "sentence"),
    [
        (
            [USUAL, USUAL, OTHER, USUAL], "collective", (2,),
            "Rank 2 is the cause: it called broadcast at train.py:9 (in train) while ranks 0, 1 and"
            " 3 called all_reduce at train.py:57 (in train)",
        ),
        # The dump says that it has not come, not why.
        (
            [USUAL, dump(entry(1)), USUAL, USUAL], "late", (1,),
            "Rank 1 is the cause: it did not come to the next collective; its last was all_reduce"
            " number 1 at train.py:57 (in train), while ranks 0, 2 and 3 waited in all_reduce"
            " number 2 at train.py:57 (in train)",
        ),
        (
            [receives(rank) for rank in range(4)], "circle", (),
            "Ranks 0, 1, 2 and 3 wait for each other in a circle: rank 0 is in recv with rank 1;",
        ),
    ],
)  # fmt: skip
def test_what_dumps_say(dumps, cause, ranks, sentence, tmp_path):
    for rank, each in enumerate(dumps):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(each))
    found = diagnose(read(tmp_path)).finding
    assert (found.cause, found.ranks) == (cause, ranks)
    assert found.sentence.startswith(sentence)


def test_json_dumps_are_read_too():
    page = page_of_dump(json.dumps(dump(entry(1), hanging(2))).encode(), 3)
    assert (page.rank, page.world, [call.over for call in page.calls]) == (3, 4, [True, False])
    assert page.calls[0].where.place == "train.py:57"
    assert page.groups == {"0": (0, 1, 2, 3)}


class Hostile:
    """Runs a program where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("inside", [False, True])
def test_a_hostile_dump_runs_nothing(inside, tmp_path):
    mark = tmp_path / "mark"
    thing = dump(entry(1)) | {"pg_status": Hostile(mark)} if inside else Hostile(mark)
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps(thing))
    evidence = read(tmp_path)
    assert not mark.exists()
    assert "posix.system, which no dump of torch's needs" in evidence.notes[0]
    assert diagnose(evidence).finding.ranks == ()


def test_what_is_no_dump_is_a_note(tmp_path):
    for rank, content in enumerate([b"", b"\x80", pickle.dumps([1]), pickle.dumps({"entries": 3})]):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(content)
    assert len(read(tmp_path).notes) == 4
