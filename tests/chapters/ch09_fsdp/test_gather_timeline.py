"""FSDP's memory over a step: by hand, against the formula of its peak, and against a run."""

from dataclasses import replace
from itertools import accumulate

import torch
from every import every
from probes import DENSE, Probe
from torch import nn

from course_lib import launch
from course_lib.chapters.ch09_fsdp.gather_timeline import gather_timeline
from course_lib.measure.peak import Watch, watching
from course_lib.scratch.fsdp import FSDP
from course_lib.scratch.gpt import GPT
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import RECIPES, Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.states import local_parameters, sharding_buffers
from course_lib.theory.memory.unit_life import GRADIENTS, WEIGHTS

TINY = TransformerShape(2, 64, 4, 256, 128, 32)
PLAIN, WIDE = Recipe(), Recipe(gradients="fp32")


def weights_in_units(shape, **options):
    """How many layers are whole beside the root, after each change of weights."""
    local = local_parameters(shape)
    levels = gather_timeline(shape, PLAIN, 2, **options).levels((WEIGHTS,))
    sizes = [size // 2 - local.ends_dense for _, size in levels]
    return [size // local.layer_dense for size in sizes]


def test_two_layers_by_hand():
    #  forward: root; 1, free, 2, free; backward: 2, free, 1, free; root, which is less than a layer
    assert weights_in_units(TINY, prefetch=False) == [0, 1, 0, 1, 0, 1, 0, 1, 0, -1]
    assert weights_in_units(TINY) == [0, 1, 2, 1, 0, 1, 2, 1, 0, -1]
    assert max(weights_in_units(TINY, reshard=False)) == 2


@every("recipe", [PLAIN, WIDE])
@every("name", ["gpt2-124m", "llama2-70b", "llama3-8b"])
@every(("reshard", "prefetch"), [(a, b) for a in (0, 1) for b in (0, 1)])
def test_peaks_are_those_of_the_formula(name, recipe, reshard, prefetch):
    shape = MODELS[name]
    units = (2 if prefetch else 1) if reshard else shape.layers
    found = gather_timeline(shape, recipe, 8, reshard=bool(reshard), prefetch=bool(prefetch))
    expected = sharding_buffers(
        local_parameters(shape), replace(recipe, gathered_units=units), Layout(dp=8, zero_stage=3)
    )
    assert found.peak_weights_bytes == expected["gathered_parameters_bytes"]
    together = expected["gathered_parameters_bytes"] + expected["gathered_gradients_bytes"]
    # The worst moment, unless all layers are there: those are freed as gradients come.
    assert found.peak_bytes - found.states_bytes <= together
    if reshard:
        assert found.peak_bytes - found.states_bytes == together
    # ZeRO-2 has the same gradients, and its weights are always whole.
    zero_2 = sharding_buffers(local_parameters(shape), recipe, Layout(dp=8, zero_stage=2))
    assert found.peak_gradients_bytes == zero_2["gathered_gradients_bytes"]


class Marking(FSDP):
    """FSDP that marks in a log of the memory when gradients are whole, and when they leave."""

    log, marks = [], []

    def before_backward(self, number):
        super().before_backward(number)
        self.marks.append(len(self.log))

    def after_backward(self, number, gradients):
        self.marks.append(len(self.log))
        super().after_backward(number, gradients)
        self.marks.append(len(self.log))


# While layers go backward the head's gradients are there, and not the embedding's: those come last.
RUN = [
    TransformerShape(4, 32, 4, 128, vocab, 16, tied_embeddings=tied)
    for vocab in (128, 2048)
    for tied in (True, False)
]


def gradients_of_runs():
    launch.init()
    return [gradients_of_a_run(shape) for shape in RUN]


def gradients_of_a_run(shape):
    """Bytes of whole gradients at the marks of a backward pass, and the most of them.

    No other tensor of this pass is as large as a parameter or as a unit: six tokens, even units.
    """
    model = GPT(shape.layers, shape.hidden, shape.heads, shape.vocab, shape.context)
    if not shape.tied_embeddings:
        model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    sizes = {parameter.nbytes for parameter in model.parameters()}
    fsdp = Marking(model, model.blocks)
    sizes |= {unit.whole.nbytes for unit in fsdp.units}
    loss = model(torch.arange(6)[None]).sum()
    whole = [unit.whole for unit in fsdp.units]  # the weights, which are followed first

    def note(number, change):
        fsdp.log.append(change * (number >= len(whole) and abs(change) in sizes))

    fsdp.log, fsdp.marks = [], []
    with watching(Watch(note), whole):
        loss.backward()
    alive = list(accumulate(fsdp.log, initial=0))
    return [alive[mark] for mark in fsdp.marks], max(alive)


def test_whole_gradients_are_those_of_a_run_on_two_ranks():
    for shape, (marks, most) in zip(RUN, launch.run(gradients_of_runs, ranks=2)[0], strict=True):
        found = gather_timeline(shape, RECIPES["fp32-16"], 2)
        assert most == found.peak_gradients_bytes, shape
        levels, head = found.levels((GRADIENTS,)), 4 * (shape.vocab + 2) * shape.hidden
        moments = [("backward", 0)]
        for layer in (4, 3, 2, 1):
            passed = ("backward", layer), ("reduce-scatter", layer), ("free", (GRADIENTS, layer))
            moments += passed
        first = {(event.what, event.part): event.at for event in reversed(found.trace)}
        held = [[size for at, size in levels if at <= first[one]][-1] for one in moments]
        assert marks[0] == 0 and held[0] == head, shape
        assert marks[1:-2] == held[:-1], shape


def test_yafsdp_holds_the_same_all_the_time():
    shape, recipe = MODELS["llama2-70b"], Recipe(gathering="yafsdp")
    found = gather_timeline(shape, recipe, 8)
    layer = 2 * local_parameters(shape).layer_dense
    assert found.levels() == ((0, 4 * layer),)
    assert found.peak_bytes == found.states_bytes + 4 * layer
    assert found.changes == 1  # once, at the beginning


def test_collectives():
    options = ({}, {"prefetch": False}, {"reshard": False}, {"gathering": "yafsdp"})
    counts = []
    for given in options:
        recipe = Recipe(gathering=given.pop("gathering", "fsdp"))
        found = gather_timeline(TINY, recipe, 2, **given)
        counts.append((found.all_gathers, found.reduce_scatters))
    assert counts == [(5, 3), (5, 3), (3, 3), (10, 6)]  # as the demos count them


REFUSED = [
    (lambda: gather_timeline(TINY, PLAIN, 1), "ranks"),
    (lambda: gather_timeline(MODELS["mixtral-8x7b"], PLAIN, 8), "take a dense model"),
    (lambda: gather_timeline(TINY, PLAIN, 2, reshard="no"), "reshard"),
]
TIMELINES = [gather_timeline(replace(DENSE, layers=layers), PLAIN, 2) for layers in (3, 4)]
PROBES = {"GatherTimeline.levels": Probe(TIMELINES[0].levels, {})}
RECORDS = {"GatherTimeline": TIMELINES}
