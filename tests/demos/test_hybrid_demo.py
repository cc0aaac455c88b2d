"""The hybrid of RPC and DDP: the same losses and weights as one process, and nothing left."""

import os
import tempfile

import pytest
from together import explained, refused

from course_lib import demos
from course_lib.demos import hybrid
from course_lib.demos.shared.comparison import LOSS_TOLERANCE, loss_gaps

SMALL = {"model": "128x2", "steps": 4, "batch": 5}  # trainers with 3 and 2 samples


def test_equal_to_one_process_and_nothing_left():
    before = {name for name in os.listdir(tempfile.gettempdir()) if "rpc" in name}
    result = demos.run("hybrid", ranks=4, stream=False, **SMALL)
    (version,) = result.versions
    assert max(loss_gaps(version.losses, result.losses_one_process)) <= LOSS_TOLERANCE
    assert result.weight_difference <= hybrid.WEIGHT_TOLERANCE
    dense = 4 * (16 * 64 + 64 + 64 * 128 + 128)
    assert version.sent == version.predicted_sent == {"all-reduce": (1, dense)}
    assert version.losses[-1] < version.losses[0]
    assert "one process" in result.report()
    assert {name for name in os.listdir(tempfile.gettempdir()) if "rpc" in name} <= before


def test_other_weights_are_refused():
    given = ("hybrid", 4, "gloo", "CPU", "128x2", [1.0], [])
    hybrid.Result(*given, weight_difference=hybrid.WEIGHT_TOLERANCE).verify()
    with pytest.raises(
        AssertionError, match="the model after the last update differs from one process by 2"
    ):
        hybrid.Result(*given, weight_difference=2e-5).verify()


def test_another_number_of_ranks_is_explained():
    for ranks in (1, 2):
        refused("hybrid", [({}, f"ranks {ranks} is not 4, one for each of trainer")], ranks)


def test_each_option_changes_the_training():
    def losses(**options):
        return hybrid.one_process(hybrid.Options(**SMALL, **options).training()).losses

    plain = losses()
    for option in ({"seed": 1}, {"hidden": 8}, {"learning_rate": 0.1}, {"sequence": 8}):
        assert plain != losses(**option), option


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
