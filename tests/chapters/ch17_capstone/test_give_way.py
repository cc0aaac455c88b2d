"""The give-way effect: what the authors describe, in the order in which they describe it."""

from dataclasses import replace

import pytest
from probes import Given, Probe, by_name

from course_lib.chapters.ch17_capstone.give_way import sharded_backward
from course_lib.theory.step.streams import Task, shared_timeline

BACKWARD = Task("backward", "computing", 0.095, {"processor": 1.0})
MESSAGE = Task("message", "messages", 0.034, {"link": 1.0})
PREPARE = Task("prepare", "messages", 0.004, {"processor": 1.0}, weight=0.05)


def run(prepare, layers=8):
    return shared_timeline(sharded_backward(layers, BACKWARD, MESSAGE, MESSAGE, prepare=prepare))


def test_alone_all_messages_hide_behind_the_computation():
    free = run(None)
    assert free.total_s == free.ideal_s == pytest.approx(0.034 + 8 * 0.095 + 0.034)
    assert free.waits_s("computing") == pytest.approx(2 * 0.034)


def test_small_kernels_give_way_and_the_computation_waits_in_the_end():
    effect = run(PREPARE)
    assert effect.slowdown("prepare 5") == pytest.approx(21)  # 1 + 1 / 0.05
    # All links of the chain: late scatter, late gather, idle computing stream.
    assert effect.end_s("scatter 5") > run(None).end_s("scatter 5")
    assert effect.end_s("gather 3") > run(None).end_s("gather 3")
    assert effect.waits_s("computing") > 3 * run(None).waits_s("computing")
    assert effect.total_s > 1.2 * run(None).total_s


def test_if_large_kernels_gave_way_instead_little_would_be_lost():
    preferred = run(replace(PREPARE, weight=20))
    assert preferred.total_s < 1.05 * run(None).total_s


def test_a_layer_is_computed_when_it_is_there_and_two_are_whole_at_most():
    effect = run(PREPARE, layers=5)
    for layer in range(5, 0, -1):
        assert effect.start_s(f"backward {layer}") >= effect.end_s(f"gather {layer}")
        if layer > 2:
            assert effect.start_s(f"gather {layer - 2}") >= effect.end_s(f"scatter {layer}")


REFUSED = [
    (lambda: run(None, layers=0), "layers must be at least 1"),
]
PROBES = by_name(
    Probe(
        sharded_backward,
        {"layers": 3, "backward": BACKWARD, "gather": MESSAGE, "scatter": MESSAGE},
        {
            "layers": 4,
            "backward": Given(PREPARE),
            "gather": Given(PREPARE),
            "scatter": Given(PREPARE),
            "prepare": Given(PREPARE),
        },
        see=lambda tasks: [vars(task) for task in tasks],
    ),
)
