"""Under torchrun every demo does what it does under launch.run; the entry point starts it."""

import json
import os
import subprocess
import sys
import tempfile

import every_demo
import pytest

from course_lib import demos, launch
from course_lib.demos import hybrid

# What is counted and trained, wherever it stands in a result; times are not compared.
COUNTED = {"sent", "predicted_sent", "stored", "losses", "losses_one_process", "seen", "rows"}
COUNTED |= {"all_reduces", "bucket_bytes", "scores", "load", "places", "total"}


def torchrun(ranks, *program):
    """The last line that a program prints on so many ranks, as JSON."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", *program]
    with tempfile.TemporaryDirectory() as folder:  # torchrun leaves an empty one behind
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=200, check=True,
            env={**os.environ, "TMPDIR": folder},
        )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def compare(where, there, here):
    """Both results have the same numbers; returns how many lists of losses were compared."""
    if where.endswith("sent"):
        assert there == {operation: list(total) for operation, total in here.items()}, where
        return 0
    if isinstance(here, dict):
        assert set(there) == set(here), where
        return sum(
            compare(f"{where}.{key}", there[key], here[key])
            for key in here
            if key in COUNTED or isinstance(here[key], dict | list)
        )
    if where.endswith("losses") or where.endswith("losses_one_process"):
        assert there == pytest.approx(here, rel=1e-5), where
        return 1
    if isinstance(here, list) and here and isinstance(here[0], dict):
        return sum(compare(where, a, b) for a, b in zip(there, here, strict=True))
    if where.rpartition(".")[2] in COUNTED:
        assert there == here, where
    return 0


def test_every_demo_is_run():
    assert set(every_demo.CASES) | every_demo.ELSEWHERE == set(demos.DEMOS)


def test_torchrun_gives_the_same_results():
    here = launch.run(every_demo.results, ranks=2, stream=False)[0]
    there = torchrun(2, every_demo.__file__)
    trained = {name: compare(name, there[name], here[name]) for name in every_demo.CASES}
    without = {name for name, compared in trained.items() if not compared}
    assert without == {"samples", "collectives", "faults", "overlap"}


def test_the_entry_point_under_torchrun():
    options = ["--json", "--model", "128x2", "--steps", "4", "--batch", "5"]
    result = torchrun(4, "-m", "course_lib.demos", "hybrid", *options)
    (version,) = result["versions"]
    assert result["ranks"] == 4
    assert version["losses"] == pytest.approx(result["losses_one_process"], rel=1e-4)
    assert version["sent"] == version["predicted_sent"]
    assert result["weight_difference"] <= hybrid.WEIGHT_TOLERANCE


def entry_point(*arguments):
    command = [sys.executable, "-m", "course_lib.demos", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_alone_it_is_a_world_of_one(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # several threads are slow on a busy machine
    done = entry_point("ddp", "--json", "--steps", "3", "--model", "1x16x2")
    assert json.loads(done.stdout.splitlines()[-1])["ranks"] == 1


def test_the_entry_point_says_what_is_wrong():
    for arguments, message in (
        ([], "usage: python -m course_lib.demos DEMO"),
        (["dpd"], "did you mean 'ddp'?"),
        (["ddp", "--steps", "1"], "steps must be at least 3"),
    ):
        done = entry_point(*arguments)
        assert done.returncode == 2, arguments
        assert message in done.stdout + done.stderr, arguments
        assert "Traceback" not in done.stderr
    assert entry_point("--help").returncode == 0
