"""A unit's life on two lanes: by hand and by the bytes of gather_timeline.

tests/test_stories.py lays it beside a real run.
"""

from dataclasses import replace

import pytest
from every import every
from probes import DENSE, Probe, by_name

from course_lib import launch
from course_lib.chapters.ch09_fsdp.gather_timeline import gather_timeline
from course_lib.demos.shared.training import Training, mean_loss
from course_lib.measure.wire import log_wire
from course_lib.scratch.yafsdp import YaFSDP
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.memory.states import local_parameters
from course_lib.theory.memory.unit_life import (
    GRADIENTS,
    REDUCED,
    WEIGHTS,
    UnitCosts,
    buffer_turns,
    changes,
    fsdp_calls,
    unit_life,
)

ROOT, LAYER = UnitCosts(0, 0, 1, 1, 5, 5), UnitCosts(2, 4, 1, 1, 10, 10)
UNITS = [ROOT, LAYER, LAYER, LAYER, LAYER]


def test_two_layers_by_hand():
    alone = unit_life(UNITS[:3], prefetch=0)
    # root 1; layers 1 + 2 each; backward: 1 + 4 each, a reduction at a time; the root's at the end
    ends = [(task.what, task.part, task.end) for task in alone.tasks]
    assert ends == [
        *(("all-gather", 0, 1), ("forward", 0, 1)),
        *(("all-gather", 1, 2), ("forward", 1, 4), ("all-gather", 2, 5), ("forward", 2, 7)),
        *(("backward", 0, 7), ("all-gather", 2, 8), ("backward", 2, 12), ("reduce-scatter", 2, 13)),
        *(
            ("all-gather", 1, 14),
            ("backward", 1, 18),
            ("reduce-scatter", 1, 19),
            ("reduce-scatter", 0, 20),
        ),
    ]
    assert (alone.total_s, alone.computing_s, alone.waiting_s) == (20, 12, 8)
    # ahead: only the first gather, the one at the turn, and the last reductions show
    assert unit_life(UNITS[:3]).total_s == 1 + 1 + 2 + 2 + 1 + 4 + 4 + 2


def test_what_is_whole_in_the_life_of_a_unit():
    """Room from when it is asked for until it is freed; gradients until they are reduced."""
    trace, part = unit_life(UNITS).trace, (WEIGHTS, 2)
    changes = [(e.what, e.at) for e in trace if e.part == part]
    first, second = (e for e in trace if (e.what, e.part) == ("all-gather", 2))
    assert changes == [("take", first.at), ("free", 6), ("take", 15), ("free", 23)]
    assert (first.at, second.at) == (2, 16)  # then the link is busy with layer 4's gradients
    (reduced,) = (e for e in trace if (e.what, e.part) == ("reduce-scatter", 2))
    (grows,) = (e for e in trace if (e.what, e.part) == ("take", (GRADIENTS, 2)))
    assert (grows.at, reduced.at, reduced.end) == (19, 23, 24)
    assert trace.held(24)[0][REDUCED].label == "2" and trace.held(27)[0][REDUCED].label == "1"
    assert not trace.held(trace.times[-1])[0]


@every(("reshard", "prefetch"), [(a, b) for a in (True, False) for b in (0, 1)])
def test_the_peaks_are_those_of_gather_timeline(reshard, prefetch):
    local, shape = local_parameters(DENSE), DENSE
    layer = UnitCosts(2, 4, 1, 1, 2 * local.layer_dense, 2 * local.layer_dense)
    ends, head = 2 * local.ends_dense, 2 * local.head_dense
    root = UnitCosts(0, 0, 1, 1, ends, ends, head)
    found = unit_life([root] + [layer] * shape.layers, prefetch=prefetch, reshard=reshard)
    expected = gather_timeline(shape, Recipe(), 2, reshard=reshard, prefetch=bool(prefetch))
    assert found.peak_bytes == expected.peak_bytes - expected.states_bytes
    sent = found.trace.sent()
    assert sent["all-gather"].calls == expected.all_gathers
    assert sent["reduce-scatter"].calls == expected.reduce_scatters


LIVES = [unit_life(UNITS), unit_life([ROOT, replace(LAYER, forward_s=3)], prefetch=2)]


# --- buffer turns ---


class Told(YaFSDP):
    """YaFSDP that writes down what lies in its buffers when a layer begins."""

    def before_forward(self, layer, *_):
        super().before_forward(layer)
        if layer.number == 0:
            self.told, self.computed = [], [None, None]
        self.tell("forward", layer)

    def before_backward(self, layer, gradient):
        super().before_backward(layer, gradient)
        self.computed[layer.number % 2] = layer.number
        self.tell("backward", layer)

    def tell(self, phase, layer):
        weights = tuple(held and held.number for held in self.held)
        on_the_way = [other.number for other in self.gathers]
        reduced = self.reduction and [
            it.number for it in self.layers if it.flat is self.reduction.flat
        ]
        self.told.append((phase, layer.number, weights, tuple(self.computed), on_the_way, reduced))


def real_moments(layers):
    training = Training(f"{layers}x16x2", batch=4, sequence=8)
    rank, model = launch.init(), training.build()
    ends = [model.norm, model.head]
    told = Told(model, [model.embedding, model.positions, *model.blocks, *ends])
    rows = [part.chunk(rank.world)[rank.rank] for part in training.batches()[0]]
    with log_wire() as log:
        mean_loss(model, rows).backward()
    return told.told, log.sent()


@pytest.mark.parametrize("layers", [1, 4])
def test_the_buffers_of_a_real_run(layers):
    trace = buffer_turns(layers + 4)
    for told, sent in launch.run(real_moments, layers, ranks=2):
        assert len(told) == len(trace.times) - 1
        for turn, (phase, layer, *buffers, arriving, reduced) in enumerate(told):
            now, held = {event.what: event.part for event in trace.at(turn)}, trace.held(turn)[0]
            assert now[phase] == layer
            for kind, those in zip((WEIGHTS, GRADIENTS), buffers, strict=True):
                labels = [held[kind, odd].label if (kind, odd) in held else None for odd in (0, 1)]
                assert labels == [None if one is None else str(one) for one in those]
            assert arriving == [layer for what, layer in now.items() if what == "all-gather"]
            # The head is the embedding again: they share a flat parameter.
            leaving = now.get("reduce-scatter")
            assert leaving in (reduced or [None])
        gathers = 1 + trace.sent()["all-gather"].calls
        assert gathers == sent["all-gather"].calls == 2 * (layers + 4) - 2


REFUSED = [
    (lambda: unit_life([ROOT]), "give the root and at least one layer"),
    (lambda: fsdp_calls(2**30), "layers must be at most 200"),
]
PROBES = by_name(
    Probe(unit_life, {"units": UNITS}, see=lambda life: life.trace),
    Probe(
        changes,
        {"units": UNITS, "calls": fsdp_calls(4)},
        {"units": [ROOT] * 5, "calls": fsdp_calls(3), "copy_bytes": [1] * 5},
        see=list,
    ),
)
RECORDS = {"UnitCosts": [ROOT, UnitCosts(1, 1, 2, 2, 6, 7, 3)], "UnitLife": LIVES}
