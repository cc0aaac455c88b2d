"""ZeRO's stages: the paper's figure, its volumes, and the parts of a vector."""

import pytest
from every import every
from probes import DENSE, OFFLOADED, PLAIN, Probe, by_name

from course_lib.theory.compute.flops import six_nd
from course_lib.theory.inputs import MODELS, RECIPES, Link, Recipe
from course_lib.theory.inputs.hardware import NDR
from course_lib.theory.memory.unit_life import unit_life
from course_lib.theory.network.collectives import zero_volume
from course_lib.theory.network.zero import sent_bytes, shard, unit_costs, zero_stages

MIXED = RECIPES["mixed-16"]


def test_figure_1_of_the_paper():
    bills = zero_stages(7_500_000_000, 64, MIXED).bills
    assert [round(bill.total_bytes / 1e9, 1) for bill in bills] == [120.0, 31.4, 16.6, 1.9]


@every("stage", [0, 1, 2, 3])
@every("ranks", [2, 64])
def test_volumes_are_those_of_section_7(stage, ranks):
    size = 2 * 10**6
    assert sent_bytes(10**6, stage, ranks, MIXED) == pytest.approx(zero_volume(size, stage, ranks))


def test_fp32_gradients_make_stage_1_send_less_than_plain_data_parallelism():
    plain, one, *_ = zero_stages(10**6, 4, RECIPES["megatron-18"]).bills
    assert (plain.sent_bytes, one.sent_bytes) == (6_000_000, 4_500_000)


def test_accumulation_multiplies_what_is_not_kept():
    sent = [sent_bytes(1000, stage, 2, MIXED, accumulation=4) for stage in range(4)]
    assert sent == [2000, 2000, 5000, 12_000]


def test_offload_moves_the_optimizer_and_copies_one_part():
    bills = zero_stages(1000, 4, Recipe(offload="optimizer")).bills
    assert [bill.optimizer_bytes for bill in bills] == [0, 0, 0, 0]
    assert [bill.host_bytes for bill in bills] == [12_000, 3000, 3000, 3000]
    assert [bill.bus_bytes for bill in bills] == [4000, 1000, 1000, 1000]
    assert bills[2].bus_seconds(Link("slow", 500.0)) == 2.0
    assert {bill.bus_bytes for bill in zero_stages(1000, 4, MIXED).bills} == {0}


@every(("parameters", "ranks"), [(10, 4), (8, 4), (3, 8), (1, 1), (5, 4)])
def test_parts_cover_the_vector_once_and_are_equally_long(parameters, ranks):
    parts = [shard(parameters, ranks, rank) for rank in range(ranks)]
    owned = [element for part in parts for element in range(part.start, part.stop)]
    assert owned == list(range(parameters))
    assert len({part.stop - part.start + part.zeros for part in parts}) == 1


ON_HOST = zero_stages(1000, 4, OFFLOADED)


# --- unit costs ---


SEVEN = MODELS["llama2-7b"]


def test_all_passes_are_six_flop_for_each_weight_of_a_matrix():
    units = unit_costs(SEVEN, Recipe(), 8, NDR, tokens=8192, flop_per_s=4e14)
    computing_s = sum(unit.forward_s + unit.backward_s for unit in units)
    weights = SEVEN.parameters().total - SEVEN.vocab * SEVEN.hidden  # the embedding is looked up
    assert computing_s == pytest.approx(six_nd(weights, 8192) / 4e14, rel=1e-4)
    assert unit_life(units).computing_s == pytest.approx(computing_s)


def test_a_gather_is_seven_eighths_over_the_bandwidth():
    units = unit_costs(SEVEN, Recipe(gradients="fp32"), 8, NDR, tokens=1, flop_per_s=1e9)
    layer = units[1]
    assert layer.weights_bytes == 2 * 202_383_360
    assert layer.gather_s == pytest.approx(layer.weights_bytes * 7 / 8 / 50e9, rel=0.01)
    assert layer.reduce_s == pytest.approx(2 * layer.gather_s, rel=0.02)
    assert len(units) == 33


REFUSED = [
    (
        lambda: unit_costs(MODELS["mixtral-8x7b"], Recipe(), 2, NDR, tokens=1, flop_per_s=1),
        "take a dense model",
    )
]
PROBES = by_name(
    Probe(
        unit_costs,
        {
            "shape": DENSE,
            "recipe": PLAIN,
            "ranks": 2,
            "link": NDR,
            "tokens": 100,
            "flop_per_s": 1e12,
        },
    )
)
RECORDS = {
    "Shard": [shard(10, 4, rank) for rank in (0, 3)],
    "StageBill": [*ON_HOST.bills, *zero_stages(1000, 4, PLAIN).bills],
    "ZeroStages": [ON_HOST, zero_stages(2000, 2, PLAIN)],
}
