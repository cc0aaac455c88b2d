"""The prefetch demo: its steps have the tasks of the theory, in its order and with its waits.

On a slow link they also show how many tokens hide the messages.
"""

import pytest

from course_lib import demos
from course_lib.chapters.ch09_fsdp.hiding import fsdp_hiding_tokens
from course_lib.theory.inputs import RECIPES
from course_lib.theory.memory.unit_life import COMPUTES, UnitCosts, unit_life


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_tasks_are_those_of_the_theory(ranks):
    small = {"layers": 3, "numbers": 6000, "forward_ms": 5.0}
    result = demos.run("prefetch", ranks=ranks, stream=False, **small)
    off, on = result.lanes
    for lanes in (off, on):
        # Each lane in the program's order. A nap of no time, the root's, is not noted.
        for computes in (True, False):
            predicted, measured = (
                [(it.what, it.part) for it in its if (it.what in COMPUTES) == computes]
                for its in ([it for it in lanes.predicted if it.end > it.at], lanes.measured)
            )
            assert measured == predicted
        assert lanes.measured_s > 3 * 0.015
    # Layer 2 is asked for before layer 1 computes, or only after it.
    for lanes in (off, on):
        begun_s = next(it.at for it in lanes.measured if (it.what, it.part) == ("all-gather", 2))
        nap = next(it for it in lanes.measured if (it.what, it.part) == ("forward", 1))
        assert (begun_s < nap.end) == lanes.prefetch
    assert "alone, 0.0 MB" in result.report() and "prefetch on" in result.report()


MESSAGE_S, NUMBERS = 0.020, 6000  # of a gather or a reduction, and the parameters of a unit


def lane(tokens, flop_per_s):
    """The step with prefetch of layers that sleep as long as so many tokens compute."""
    forward_ms = 1000 * 2 * tokens * NUMBERS / flop_per_s
    slow = {"message_ms": 1000 * MESSAGE_S, "forward_ms": forward_ms}
    result = demos.run("prefetch", ranks=2, stream=False, layers=5, numbers=NUMBERS, **slow)
    return result.lanes[1]


def waiting_s(forward_s):
    """By theory, the part of such a step in which no layer computes."""
    root, layer = (
        UnitCosts(seconds, 2 * seconds, MESSAGE_S, MESSAGE_S, 4 * NUMBERS, 4 * NUMBERS)
        for seconds in (0, forward_s)
    )
    return unit_life([root, *[layer] * 5]).waiting_s


def test_the_messages_are_hidden_from_the_predicted_number_of_tokens_on():
    # Two ranks: half of a unit's 4-byte numbers arrives from the other one in MESSAGE_S.
    rates = {"flop_per_s": 3e8, "bytes_per_s": 4 * NUMBERS / 2 / MESSAGE_S}
    hidden = fsdp_hiding_tokens(RECIPES["fp32-16"], 2, **rates)
    assert hidden.forward == pytest.approx(hidden.backward) == pytest.approx(500)
    # At the bound only the ends are left: two gathers before the first layer, one where the
    # backward pass begins, and two reductions after the last one.
    assert [waiting_s(part * 0.020) for part in (0.5, 1, 2)] == pytest.approx([0.2, 0.1, 0.1])
    for _ in range(3):  # a busy machine wakes one step later than the other
        half, bound = (lane(part * max(hidden.forward, hidden.backward), 3e8) for part in (0.5, 1))
        # Layers that wake late: then theory's step with what they took is longer too.
        as_told = [
            0.99 * step.predicted_s < step.measured_s < 1.5 * step.replayed_s
            for step in (half, bound)
        ]
        if all(as_told) and half.waited_s > 1.5 * bound.waited_s:
            break
    assert all(as_told) and half.waited_s > 1.5 * bound.waited_s, (half, bound)
