"""YaFSDP's buffers: by a real run on two ranks, and by the number of gathers."""

import pytest
from probes import Probe

from course_lib import launch
from course_lib.demos.shared.batch import mean_loss
from course_lib.demos.shared.training import Training
from course_lib.measure.wire import log_wire
from course_lib.scratch.yafsdp import YaFSDP
from course_lib.theory.memory.buffer_turns import buffer_turns
from course_lib.theory.memory.unit_life import GRADIENTS, WEIGHTS


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


def test_one_layer_needs_no_turns():
    with pytest.raises(ValueError, match="layers must be at least 2"):
        buffer_turns(1)


PROBES = {"buffer_turns": Probe(buffer_turns, {"layers": 4}, {"layers": 5})}
