"""FSDP's memory over a step: by hand, and against the formula of its peak."""

from dataclasses import replace

import pytest
from every import every
from probes import DENSE, Probe

from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.gather_timeline import gather_timeline
from course_lib.theory.memory.states import local_parameters, sharding_buffers

TINY = TransformerShape(2, 64, 4, 256, 128, 32)
LAYER, ENDS = 49_984, 128 * 64 + 32 * 64 + 2 * 64
PLAIN, WIDE = Recipe(), Recipe(gradients="fp32")


def weights_in_units(shape, **options):
    """How many layers are whole beside the root, after each change."""
    local = local_parameters(shape)
    events = gather_timeline(shape, PLAIN, 2, **options).events
    sizes = [event.weights_bytes // 2 - local.ends_dense for event in events]
    return [size // local.layer_dense for size in sizes]


def test_the_sizes_are_those_of_the_tiny_model():
    local = local_parameters(TINY)
    assert (local.layer_dense, local.ends_dense) == (LAYER, ENDS)


def test_two_layers_by_hand():
    #  forward: root; 1, fetch 2, compute, free; compute, free; backward: head; 2, fetch 1, …
    assert weights_in_units(TINY, prefetch=False) == [
        *(0, 1, 1, 0, 1, 1, 0),
        *(0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, -1, -1),
    ]
    assert weights_in_units(TINY) == [
        *(0, 1, 2, 2, 1, 1, 0),
        *(0, 1, 2, 2, 1, 1, 1, 1, 0, 0, 0, -1, -1),
    ]
    assert max(weights_in_units(TINY, reshard=False)) == 2


@every("recipe", [PLAIN, WIDE])
@every("name", ["gpt2-124m", "llama2-70b"])
@every(("reshard", "prefetch"), [(a, b) for a in (0, 1) for b in (0, 1)])
def test_peaks_are_those_of_the_formula(name, recipe, reshard, prefetch):
    shape = MODELS[name]
    units = (2 if prefetch else 1) if reshard else shape.layers
    found = gather_timeline(shape, recipe, 8, reshard=bool(reshard), prefetch=bool(prefetch))
    expected = sharding_buffers(
        local_parameters(shape),
        replace(recipe, gathered_units=units),
        Layout(dp=8, zero_stage=3),
    )
    assert found.peak_weights_bytes == expected["gathered_parameters_bytes"]
    assert found.peak_gradients_bytes == expected["gathered_gradients_bytes"]
    together = expected["gathered_parameters_bytes"] + expected["gathered_gradients_bytes"]
    # Both peaks fall together, unless all layers are there: those are freed as gradients come.
    assert found.peak_bytes - found.states_bytes <= together
    if reshard:
        assert found.peak_bytes - found.states_bytes == together


def test_yafsdp_holds_the_same_all_the_time():
    shape, recipe = MODELS["llama2-70b"], Recipe(gathering="yafsdp")
    found = gather_timeline(shape, recipe, 8)
    layer = 2 * local_parameters(shape).layer_dense
    assert {event.gathered_bytes for event in found.events} == {4 * layer}
    assert found.peak_bytes == found.states_bytes + 4 * layer
    assert found.changes == 1  # once, at the beginning


def test_collectives():
    counts = [
        (found.all_gathers, found.reduce_scatters)
        for found in (
            gather_timeline(TINY, PLAIN, 2),
            gather_timeline(TINY, PLAIN, 2, prefetch=False),
            gather_timeline(TINY, PLAIN, 2, reshard=False),
            gather_timeline(TINY, Recipe(gathering="yafsdp"), 2),
        )
    ]
    assert counts == [(5, 3), (5, 3), (3, 3), (10, 6)]  # as the demos count them


def test_nothing_is_left_in_the_end():
    last = gather_timeline(MODELS["gpt2-124m"], WIDE, 4).events[-1]
    assert last.gathered_bytes == 0


def test_explain_names_the_peak():
    text = gather_timeline(MODELS["llama2-7b"], PLAIN, 8).explain()
    assert "65 all-gathers, 33 reduce-scatters" in text
    assert "16.14 GB" in text


def test_what_is_refused():
    with pytest.raises(ValueError, match="ranks"):
        gather_timeline(TINY, PLAIN, 1)
    with pytest.raises(ValueError, match="take a dense model"):
        gather_timeline(MODELS["mixtral-8x7b"], PLAIN, 8)
    with pytest.raises(ValueError, match="reshard"):
        gather_timeline(TINY, PLAIN, 2, reshard="no")


TIMELINES = [gather_timeline(replace(DENSE, layers=layers), PLAIN, 2) for layers in (3, 4)]
PROBES = {
    "gather_timeline": Probe(
        gather_timeline,
        {"shape": DENSE, "recipe": PLAIN, "ranks": 2},
        {
            "shape": replace(DENSE, layers=3),
            "recipe": Recipe(gathering="yafsdp"),
            "ranks": 4,
            "reshard": False,
            "prefetch": False,
        },
    ),
    "GatherTimeline.explain": Probe(TIMELINES[0].explain, {}, {"unit": "GiB"}),
}
RECORDS = {"GatherEvent": list(TIMELINES[0].events), "GatherTimeline": TIMELINES}
