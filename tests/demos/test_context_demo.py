"""The demo of context parallelism: equal, bytes as predicted, and what its options change."""

import json
import subprocess
import sys

import pytest

from course_lib import demos, launch
from course_lib.demos import context
from course_lib.demos.shared.comparison import GRADIENT_TOLERANCE, LOSS_TOLERANCE, loss_gaps
from course_lib.demos.shared.training import one_process

SMALL = {"model": "2x32x4", "steps": 3, "sequence": 24, "batch": 3}


def run(ranks=2, **options):
    return demos.run("context", ranks=ranks, stream=False, **{**SMALL, **options})


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_equal_to_one_process(ranks):
    result = run(ranks)
    assert [one.name for one in result.versions] == [
        "ring",
        "zig-zag ring",
        "torch: all-gather, DDP",
    ]
    for version in result.versions:
        assert max(loss_gaps(version.losses, result.losses_one_process)) <= LOSS_TOLERANCE
        assert version.gradient_difference <= GRADIENT_TOLERANCE
        assert version.sent == version.predicted_sent
        assert version.stored == version.predicted_stored
    if ranks > 1:
        # layers · (keys and values twice, their gradients once) · hops, each of a slice
        hops = 2 * 3 * (ranks - 1)
        slice_bytes = 2 * 3 * (24 // ranks) * 32 * 4
        assert result.versions[0].sent["send-recv"] == [hops, hops * slice_bytes]
    assert len(set(result.scores["zig-zag ring"])) == 1
    assert len(set(result.scores["ring"])) == ranks
    assert "scores per head" in result.report()


def test_without_zigzag_a_sequence_may_be_odd_multiples():
    result = run(2, sequence=22, zigzag=False)
    assert [one.name for one in result.versions] == ["ring", "torch: all-gather, DDP"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence": 23}, "sequence 23 is not divisible by cp 2"),
        ({"sequence": 22}, r"sequence 22 is not divisible by 2\*ranks 4"),
    ],
)
def test_an_uneven_sequence_is_explained(options, message):
    with pytest.raises(launch.RankFailed, match=message):
        run(2, **options)


@pytest.mark.parametrize("option", [{"seed": 1}, {"batch": 2}, {"sequence": 16}], ids=str)
def test_each_option_changes_the_training(option):
    def losses(**options):
        training = context.Options(**{**SMALL, **options}).training()
        return one_process(training).losses

    assert losses() != losses(**option)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence": 1}, "sequence must be at least 2"),
        ({"model": "big"}, "neither one of tiny"),
        ({"zigzag": 1}, "zigzag must be True or False"),
    ],
)
def test_bad_options_are_explained(options, message):
    with pytest.raises(ValueError, match=message):
        context.Options(**options)


def test_under_torchrun():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "course_lib.demos.context", "--json"]
    command += ["--steps", "3", "--model", "2x32x4", "--sequence", "24", "--batch", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["losses_one_process"] == pytest.approx(run().losses_one_process, rel=1e-5)
