"""The hybrid of RPC and DDP: the same losses and weights as one process, and nothing left."""

import json
import os
import subprocess
import sys
import tempfile

import pytest
from together import explained

from course_lib import demos, launch
from course_lib.demos import hybrid
from course_lib.demos.shared.comparison import LOSS_TOLERANCE, loss_gaps

SMALL = {"model": "128x2", "steps": 4, "batch": 5}  # trainers with 3 and 2 samples


def check(result):
    assert max(loss_gaps(result["losses"], result["losses_one_process"])) <= LOSS_TOLERANCE
    assert result["weight_difference"] <= hybrid.WEIGHT_TOLERANCE
    dense = 4 * (16 * 64 + 64 + 64 * 128 + 128)
    assert result["sent"] == result["predicted_sent"] == {"all-reduce": [1, dense]}
    assert result["losses"][-1] < result["losses"][0]


def test_equal_to_one_process_and_nothing_left():
    before = {name for name in os.listdir(tempfile.gettempdir()) if "rpc" in name}
    result = demos.run("hybrid", ranks=4, stream=False, **SMALL)
    check(vars(result))
    assert "against one process" in result.report()
    assert {name for name in os.listdir(tempfile.gettempdir()) if "rpc" in name} <= before


@pytest.mark.parametrize("ranks", [1, 2])
def test_another_number_of_ranks_is_explained(ranks):
    with pytest.raises(launch.RankFailed, match=f"ranks {ranks} is not 4, one for each of trainer"):
        demos.run("hybrid", ranks=ranks, stream=False)


def test_under_torchrun():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "4", "-m", "course_lib.demos.hybrid", "--json"]
    command += ["--model", "128x2", "--steps", "4", "--batch", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    check(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "option", [{"seed": 1}, {"hidden": 8}, {"learning_rate": 0.1}, {"sequence": 8}], ids=str
)
def test_each_option_changes_the_training(option):
    def losses(**options):
        return hybrid.one_process(hybrid.Options(**SMALL, **options).training()).losses

    assert losses() != losses(**option)


def test_bad_options_are_explained():
    explained(
        hybrid.Options,
        [
            ({"batch": 1}, "batch must be at least 2"),
            ({"hidden": 0}, "hidden must be at least 1"),
            ({"model": "128"}, "is not ROWSxORDER"),
            ({"steps": 2}, "steps must be at least 3"),
        ],
    )
