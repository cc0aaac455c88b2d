"""The demo of expert parallelism: equal, bytes as predicted, and what its options change."""

import json
import subprocess
import sys
from statistics import fmean

import pytest

from course_lib import demos, launch
from course_lib.demos.experts import program as experts
from course_lib.demos.shared.comparison import GRADIENT_TOLERANCE, LOSS_TOLERANCE, loss_gaps
from course_lib.demos.shared.training import one_process

SMALL = {"model": "2x32x4", "steps": 3, "sequence": 16}


def run(ranks=2, **options):
    return demos.run("experts", ranks=ranks, stream=False, **{**SMALL, **options})


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (1, {}),
        (2, {"capacity_factor": 0.8, "top_k": 1}),
        (4, {"experts": 8, "batch": 6}),  # two ranks have two samples, two have one
    ],
)
def test_equal_to_one_process(ranks, options):
    result = run(ranks, **options)
    assert [version.name for version in result.versions] == ["by hand", "torch: all-to-all, DDP"]
    for version in result.versions:
        assert max(loss_gaps(version.losses, result.losses_one_process)) <= LOSS_TOLERANCE
        assert version.gradient_difference <= GRADIENT_TOLERANCE
        assert version.sent == version.predicted_sent
        assert version.stored == version.predicted_stored
        assert bool(version.sent) == (ranks > 1)
    assert (sum(result.dropped) > 0) == ("capacity_factor" in options)
    assert "stay" in result.report()


@pytest.mark.parametrize("ranks", [2, 4])
def test_with_equal_loads_the_theory_knows_the_bytes(ranks):
    result = run(ranks, fixed_routes=True)
    # layers · 4 journeys · tokens of a rank · top_k · hidden · 4 bytes
    expected = 2 * 4 * (8 * 16 // ranks) * 2 * 32 * 4
    for version in result.versions:
        assert version.sent["all-to-all"] == [8, expected]
    assert result.imbalance == [1.0] * 3


def test_experts_take_less_memory_on_more_ranks():
    two, four = (run(ranks).versions[0].stored["weights"] for ranks in (2, 4))
    one_expert = 4 * (2 * 32 * 128 + 128 + 32)
    assert two - four == 2 * one_expert  # layers, each with one expert fewer


def test_the_balance_loss_lowers_the_imbalance():
    result = run(1, steps=40, balance=0.1, model="1x32x4")
    with_loss, without = result.imbalance[-10:], result.imbalance_without_loss[-10:]
    assert fmean(with_loss) < 0.95 * fmean(without)


@pytest.mark.parametrize(
    "option",
    [{"experts": 2}, {"top_k": 1}, {"balance": 0.5}, {"seed": 1}, {"capacity_factor": 0.5}],
    ids=str,
)
def test_each_option_changes_the_training(option):
    def losses(**options):
        training = experts.Options(**{**SMALL, **options}).training()
        return one_process(training, "cpu", training.loss).losses

    assert losses() != losses(**option)


@pytest.mark.parametrize(
    ("ranks", "options", "message"),
    [
        (2, {"experts": 3}, "experts 3 is not divisible by ep 2"),
        (4, {"batch": 3}, "batch 3 leaves a rank of 4 without a sample"),
        (2, {"batch": 3, "fixed_routes": True}, "batch 3 is not divisible by ranks 2"),
        (2, {"experts": 6, "fixed_routes": True}, "not divisible by experts 6"),
    ],
)
def test_what_does_not_fit_is_explained(ranks, options, message):
    with pytest.raises(launch.RankFailed, match=message):
        run(ranks, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"experts": 0}, "experts must be at least 1"),
        ({"top_k": 5}, "top_k must be at most 4"),
        ({"capacity_factor": -1.0}, "capacity_factor must be at least 0"),
        ({"balance": float("nan")}, "balance must be finite"),
        ({"steps": 2}, "steps must be at least 3"),
    ],
)
def test_bad_options_are_explained(options, message):
    with pytest.raises(ValueError, match=message):
        experts.Options(**options)


def test_under_torchrun():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "course_lib.demos.experts", "--json"]
    command += ["--steps", "3", "--model", "2x32x4", "--sequence", "16"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["losses_one_process"] == pytest.approx(run().losses_one_process, rel=1e-5)
