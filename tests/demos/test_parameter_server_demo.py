"""The demo of the parameter server: equal in step, late when not, bytes as predicted."""

import pytest
from together import explained, refused, runs

from course_lib import demos
from course_lib.demos import parameter_server
from course_lib.demos.shared.comparison import GRADIENT_TOLERANCE, LOSS_TOLERANCE, loss_gaps
from course_lib.demos.shared.training import one_process
from course_lib.theory.network.collectives import sent_bytes

SMALL = {"model": "512x2", "steps": 4, "sequence": 16}


@pytest.fixture(scope="module")
def two():
    cases = {"equal": {}, "small": {"model": "4096x2"}, "large": {"model": "8192x2"}}
    return runs("parameter_server", cases, **SMALL)


def test_equal_to_one_process(two):
    four = demos.run("parameter_server", ranks=4, stream=False, **SMALL, batch=5)
    for ranks, result in ((2, two["equal"]), (4, four)):
        for version in result.versions:
            assert max(loss_gaps(version.losses, result.losses_one_process)) <= LOSS_TOLERANCE
            assert version.gradient_difference <= GRADIENT_TOLERANCE
            assert version.sent and version.sent == version.predicted_sent
            assert version.stored == version.predicted_stored
        table_bytes = 512 * 128 * 4
        sent = sent_bytes("all-reduce", table_bytes, ranks)
        assert result.all_reduced_bytes == pytest.approx(sent)
        assert len(result.exchanged_bytes) == ranks - 1
        assert sum(result.staleness) == 4 * (ranks - 1)  # an entry for each gradient
        assert result.asynchronous_loss < result.losses_one_process[0]
        assert "times as much" in result.report()


def test_a_larger_table_costs_the_server_nothing(two):
    small, large = two["small"], two["large"]
    assert large.all_reduced_bytes == 2 * small.all_reduced_bytes
    assert large.exchanged_bytes[0] < 1.1 * small.exchanged_bytes[0]


def test_one_trainer_is_never_late(two):
    assert two["equal"].staleness == [4]


def test_each_option_changes_the_training():
    def losses(**options):
        training = parameter_server.Options(**{**SMALL, **options}).training()
        return one_process(training).losses

    plain = losses()
    changes = [{"seed": 1}, {"learning_rate": 1.0}, {"model": "512x1"}, {"batch": 6}]
    for option in [*changes, {"sequence": 8}]:
        assert plain != losses(**option), option


def test_what_does_not_fit_is_explained():
    alone = "ranks 1 leaves no trainer beside the server"
    refused("parameter_server", [({}, alone)], ranks=1, **SMALL)
    few = "batch 1 leaves some of 2 ranks without a sample"
    refused("parameter_server", [({"batch": 1}, few)], **SMALL)


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
