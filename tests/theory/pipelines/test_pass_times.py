"""Durations of passes: each matters, and bad ones are explained."""

import pytest
from every import every
from probes import TIMES, Probe, by_name

from course_lib.theory.pipelines.pass_times import PassTimes
from course_lib.theory.pipelines.simulation import timeline


@every(
    "change",
    [
        {"forward": 2.0},
        {"backward": 3.0},
        {"weight": 0.5},
        {"overlapped": 2.5},
        {"transfer": 0.25},
    ],
)
def test_every_duration_matters(change):
    assert timeline("dualpipe", 4, 8, times=PassTimes(**change)).makespan != (
        timeline("dualpipe", 4, 8).makespan
    )


def test_the_gradients_of_the_weights_may_take_the_whole_backward_pass():
    (stage,) = PassTimes(backward=2.0, weight=2.0).of(1)
    assert (stage["I"], stage["W"]) == (0.0, 2.0)
    with pytest.raises(ValueError, match="give at most that"):
        PassTimes(backward=2.0, weight=2.1).of(1)


REFUSED = [
    (lambda: PassTimes(forward=0), "forward must be above 0"),
    (lambda: PassTimes(backward=(1, float("nan"))), r"backward\[1\] must be finite"),
    (lambda: PassTimes(transfer=float("inf")), "transfer must be finite"),
]
PROBES = by_name(
    Probe(
        PassTimes,
        {"forward": 1.0, "backward": 2.0},
        {"forward": 1.5, "backward": 3.0, "weight": 0.5, "overlapped": 2.5, "transfer": 0.5},
        see=lambda times: [
            timeline(name, 4, 8, times=times).makespan for name in ("zb1p", "dualpipe")
        ],
    ),
    Probe(TIMES.of, {"stages": 2}, {"stages": 3}),
)
