"""The demo of the parameter server: equal in step, late when not, bytes as predicted."""

import json
import subprocess
import sys

import pytest
from together import explained

from course_lib import demos, launch
from course_lib.demos import parameter_server
from course_lib.demos.shared.comparison import GRADIENT_TOLERANCE, LOSS_TOLERANCE, loss_gaps
from course_lib.demos.shared.training import one_process
from course_lib.theory.network.collectives import sent_bytes

SMALL = {"model": "512x2", "steps": 4, "sequence": 16}


def run(ranks=2, **options):
    return demos.run("parameter_server", ranks=ranks, stream=False, **{**SMALL, **options})


@pytest.mark.parametrize(("ranks", "options"), [(2, {}), (4, {"batch": 5})])
def test_equal_to_one_process(ranks, options):
    result = run(ranks, **options)
    for version in result.versions:
        assert max(loss_gaps(version.losses, result.losses_one_process)) <= LOSS_TOLERANCE
        assert version.gradient_difference <= GRADIENT_TOLERANCE
        assert version.sent and version.sent == version.predicted_sent
        assert version.stored == version.predicted_stored
    table_bytes = 512 * 128 * 4
    assert result.all_reduced_bytes == pytest.approx(sent_bytes("all-reduce", table_bytes, ranks))
    assert len(result.exchanged_bytes) == ranks - 1
    assert sum(result.staleness) == 4 * (ranks - 1)  # an entry for each gradient
    assert result.asynchronous_loss < result.losses_one_process[0]
    assert "times as much" in result.report()


def test_a_larger_table_costs_the_server_nothing():
    small, large = run(model="4096x2"), run(model="8192x2")
    assert large.all_reduced_bytes == 2 * small.all_reduced_bytes
    assert large.exchanged_bytes[0] < 1.1 * small.exchanged_bytes[0]


def test_one_trainer_is_never_late():
    assert run().staleness == [4]


@pytest.mark.parametrize(
    "option",
    [{"seed": 1}, {"learning_rate": 1.0}, {"model": "512x1"}, {"batch": 6}, {"sequence": 8}],
    ids=str,
)
def test_each_option_changes_the_training(option):
    def losses(**options):
        training = parameter_server.Options(**{**SMALL, **options}).training()
        return one_process(training).losses

    assert losses() != losses(**option)


@pytest.mark.parametrize(
    ("ranks", "options", "message"),
    [
        (1, {}, "ranks 1 leaves no trainer beside the server"),
        (4, {"batch": 3}, "batch 3 leaves a rank of 4 without a sample"),
    ],
)
def test_what_does_not_fit_is_explained(ranks, options, message):
    with pytest.raises(launch.RankFailed, match=message):
        run(ranks, **options)


def test_bad_options_are_explained():
    explained(
        parameter_server.Options,
        [
            ({"model": "512"}, "model '512' is not ROWSxORDER"),
            ({"model": "0x2"}, "rows of the model must be at least 1"),
            ({"model": "512x9"}, "order of the model must be at most 8"),
            ({"steps": 2}, "steps must be at least 3"),
            ({"slow_ms": -1.0}, "slow_ms must be at least 0"),
            ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ],
    )


def test_under_torchrun():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "course_lib.demos.parameter_server", "--json"]
    command += ["--steps", "4", "--model", "512x2", "--sequence", "16"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["losses_one_process"] == pytest.approx(run().losses_one_process, rel=1e-5)
