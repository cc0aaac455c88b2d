"""Under torchrun every demo does what it does under launch.run; the entry point starts it."""

import json
import os
import subprocess
import sys
import tempfile

import every_demo
import pytest

from course_lib import demos
from course_lib.demos import __main__ as entry_point


def torchrun(ranks, *program):
    """The last line that a program prints on so many ranks, as JSON."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", *program]
    with tempfile.TemporaryDirectory() as folder:  # torchrun leaves an empty one behind
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=280, check=True,
            env={**os.environ, "TMPDIR": folder},
        )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


# What they measure is a time, or an outcome that nobody predicts.
WITHOUT_FACTS = {"faults", "fp8", "overlap", "prefetch", "samples", "step_memory", "wrappers"}


def test_every_demo_is_run():
    assert set(every_demo.CASES) | every_demo.ELSEWHERE == set(demos.DEMOS)


@pytest.mark.parametrize("half", (0, 1))
def test_under_torchrun_every_demo_is_as_predicted(half):
    """Each ends only if its ranks are equal to one process and sent what was predicted."""
    names = list(every_demo.CASES)[half::2]  # half of them, for a busy machine's sake
    found = torchrun(2, every_demo.__file__, *names)
    assert list(found) == names
    ranks = {name: result["ranks"] for name, result in found.items() if "ranks" in result}
    assert len(ranks) > 5 and set(ranks.values()) == {2}, ranks
    without = {name for name, result in found.items() if not result["facts"]}
    assert without == WITHOUT_FACTS & set(names)
    assert all(result["said"] for result in found.values())


def test_the_entry_point_under_torchrun():
    options = ["--json", "--model", "128x2", "--steps", "4", "--batch", "5"]
    result = torchrun(4, "-m", "course_lib.demos", "hybrid", *options)
    (version,) = result["versions"]
    assert result["ranks"] == 4
    assert version["sent"] and result["facts"]


def test_the_entry_point_says_what_is_wrong(capsys):
    for arguments, code, message in (
        ([], 2, "usage: python -m course_lib.demos DEMO"),
        (["--help"], 0, "usage: python -m course_lib.demos DEMO"),
        (["dpd"], 2, "did you mean 'ddp'?"),
        (["ddp", "--steps", "1"], 2, "steps must be at least 3"),
    ):
        with pytest.raises(SystemExit) as ended:
            entry_point.main(arguments)
        assert ended.value.code == code, arguments
        assert message in "".join(capsys.readouterr()), arguments
