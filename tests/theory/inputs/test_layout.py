"""Layouts: what they add up to, what they refuse, and how many micro-batches they hold."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probes import DENSE, GUESS, H100, MIXTURE, SPREAD, Given, Probe, by_name, check
from refused import rows

from course_lib.theory.inputs.hardware import Cluster
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.peak import gpu_memory
from course_lib.theory.pipelines.simulation import timeline
from course_lib.theory.step.step_time import step_time

SMALL = TransformerShape(layers=6, hidden=32, heads=8, ffn=64, vocab=50, context=64, kv_heads=4)


def test_context_and_tensor_ranks_count_experts_do_not():
    layout = Layout(dp=4, tp=8, pp=2, cp=2, ep=8)
    assert layout.world == 128
    assert layout.shard_ranks == 8
    assert layout.expert_shard_ranks == 1


def test_remainder_of_the_layers_goes_to_the_first_stages():
    assert Layout(pp=4).chunk_layers(SMALL) == (2, 2, 1, 1)
    assert Layout(pp=2, stage_layers=(1, 5)).chunk_layers(SMALL) == (1, 5)


def test_chunks_of_a_stage():
    assert Layout(pp=4).stage_chunks(1) == (1,)
    interleaved = Layout(pp=2, schedule="interleaved", virtual_stages=3, accumulation=2)
    assert interleaved.stage_chunks(1) == (1, 3, 5)
    # Of 8 micro-batches in groups of 3, 3 and 2 gradients are exchanged three times.
    assert dataclasses.replace(GROUPED, reduce="group").reductions == 3
    in_a_v = Layout(pp=3, schedule="zbv", accumulation=5)
    assert [in_a_v.stage_chunks(stage) for stage in range(3)] == [(0, 5), (1, 4), (2, 3)]
    assert [in_a_v.stage_of(chunk) for chunk in range(6)] == [0, 1, 2, 2, 1, 0]
    assert in_a_v.holds_ends(0) == (True, True) and in_a_v.holds_ends(2) == (False, False)
    assert Layout(pp=4, schedule="dualpipe", accumulation=8).stage_chunks(1) == (1, 2)


@given(
    pp=st.integers(1, 6),
    groups=st.integers(1, 4),
    virtual_stages=st.integers(2, 4),
    more=st.integers(0, 8),
)
def test_interleaved_in_flight_equals_the_simulated_schedule(pp, groups, virtual_stages, more):
    """Groups of pp, or of a few more, the last of them with twice as many as are left over."""
    group = pp + more if more else None
    steps = (pp + more) * groups + pp * (more > 0)
    layout = Layout(
        pp=pp,
        schedule="interleaved",
        accumulation=steps,
        virtual_stages=virtual_stages,
        group=group,
    )
    simulated = timeline("interleaved", pp, steps, virtual_stages, group=group)
    for stage in range(pp):
        held = layout.in_flight(stage)
        assert tuple(held) == layout.stage_chunks(stage)
        passes = round(simulated.in_flight(stage) * virtual_stages)
        assert sum(held.values()) == passes


def test_a_world_of_another_size_is_refused():
    Layout(dp=2, tp=4).check_world(8)
    with pytest.raises(ValueError, match=r"world 16 is not dp\*tp\*pp\*cp = 2\*4\*1\*1 = 8"):
        Layout(dp=2, tp=4).check_world(16)
    with pytest.raises(ValueError, match="stage must be at most 3"):
        Layout(pp=4).in_flight(4)


def seen(layout):
    """Memory of all stages, time and batch of a layout."""
    job = Job(MIXTURE, layout=layout, cluster=Cluster(H100, nodes=16), sequence=512)
    bills = [gpu_memory(job, stage) for stage in range(layout.pp)]
    return bills, step_time(job, GUESS).leaves(), layout.global_batch


GROUPED = Layout(pp=2, accumulation=8, schedule="interleaved", virtual_stages=2, group=3)
REFUSED = [
    *rows(
        lambda fields: Layout(**fields),
        [
            ({"zero_stage": 4}, "zero_stage must be at most 3"),
            ({"ep": 3, "dp": 4}, r"dp\*cp 4 is not divisible by ep 3"),
            ({"virtual_stages": 2}, "virtual_stages 2 does not go with schedule '1f1b'"),
            ({"schedule": "interleaved"}, "interleaved needs 2 or more"),
            (
                {"schedule": "interleaved", "virtual_stages": 2, "pp": 4, "accumulation": 6},
                "accumulation 6 is not divisible by pp 4",
            ),
            ({"schedule": "dualpipe", "pp": 3, "accumulation": 8}, "pp 3 is odd"),
            (
                {"schedule": "zbv", "pp": 2, "accumulation": 3, "stage_layers": (3, 3)},
                r"has 2 entries: give 2\*pp = 4",
            ),
            ({"reduce": "group"}, "reduce 'group' needs groups of micro-batches, which '1f1b' has"),
            ({"stage_layers": (3, 3), "pp": 3}, "has 2 entries: give pp"),
        ],
    ),
    *rows(
        lambda fields: Layout(**fields).check(SMALL, sequence=64),
        [
            ({"tp": 3}, "heads 8 is not divisible by tp 3"),
            ({"pp": 4, "schedule": "zbv", "accumulation": 7}, "2.pp 8 leaves a stage without"),
            ({"pp": 7}, "leaves a stage without a layer: take at most 6"),
            ({"pp": 2, "stage_layers": (3, 4)}, "sum to 7: make them sum to the model's 6 layers"),
            ({"ep": 2, "dp": 2}, "ep 2 has no experts to spread in this model"),
            ({"cp": 3}, "sequence 64 is not divisible by cp 3"),
            ({"tp": 8, "cp": 16, "sequence_parallel": True}, "sequence/cp 4 is not divisible by"),
        ],
    ),
    *rows(
        lambda change: Layout(tp=4).check(dataclasses.replace(SMALL, **change)),
        [
            ({"kv_heads": 6, "heads": 24, "hidden": 48}, "kv_heads 6 is not divisible by tp 4"),
            ({"kv_heads": 3, "heads": 24, "hidden": 48}, "tp 4 is not divisible by kv_heads 3"),
            ({"ffn": 66}, "ffn 66 is not divisible by tp 4"),
        ],
    ),
    (lambda: Layout(dp=16, ep=16).check(MODELS["mixtral-8x7b"]), "experts 8 is not divisible by"),
]
PROBES = by_name(
    Probe(
        Layout,
        {"dp": 2, "tp": 2, "pp": 2, "cp": 2, "accumulation": 4},
        {
            "dp": 4,
            "tp": 4,
            "pp": 3,
            "cp": 4,
            "ep": 2,
            "zero_stage": 1,
            "sequence_parallel": True,
            "micro_batch": 2,
            "accumulation": 8,
            "schedule": "gpipe",
            "virtual_stages": Given(3, {"schedule": "interleaved"}, before=2),
            "group": Given(4, {"schedule": "interleaved", "virtual_stages": 2}),
            "stage_layers": (1, 6),
            "shard_group": Given(2, {"zero_stage": 1}),
            "reshard": Given(False, {"zero_stage": 3}),
            "reduce": "micro-batch",
            "keep_gathered": Given(True, {"sequence_parallel": True}),
            "keep_outputs": True,
        },
        see=seen,
    ),
    check(
        Layout(tp=8, cp=2).check,
        {"shape": dataclasses.replace(DENSE, kv_heads=8), "sequence": 512},
        {"shape": dataclasses.replace(DENSE, heads=4)},
    ),
    check(SPREAD.check_sequence, {"sequence": 512}),
    check(SPREAD.check_world, {"world": 16}),
    check(SPREAD.check_chunks, {"shape": DENSE}, {"shape": dataclasses.replace(DENSE, layers=1)}),
    Probe(GROUPED.full_moments, {"stage": 0}, see=list, signed=True),
)
