"""The choice of a stage: against the bill of each stage, one GPU more and one less."""

from itertools import pairwise

from every import every
from probes import Probe, by_name

from course_lib.chapters.ch08_zero.zero_choice import (
    fewest_ranks,
    most_parameters,
    stage_timeline,
    whole_and_cut,
)
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import RECIPES, Recipe
from course_lib.theory.network.zero import STAGES, zero_stages

MIXED = RECIPES["mixed-16"]


def stored(parameters, stage, ranks, recipe):
    return zero_stages(parameters, ranks, recipe).bills[stage].total_bytes


def test_the_papers_bytes():
    found = [whole_and_cut(stage, MIXED) for stage in STAGES]
    assert found == [(16, 0), (4, 12), (2, 14), (0, 16)]


@every("recipe", [*RECIPES.values(), Recipe(offload="optimizer"), Recipe(optimizer="sgd")])
@every("stage", STAGES)
def test_they_add_up_to_the_bill(stage, recipe):
    everywhere, cut = whole_and_cut(stage, recipe)
    assert 1000 * everywhere + 250 * cut == stored(1000, stage, 4, recipe)


@every("name", ["llama2-7b", "gpt3-175b"])
@every("stage", [1, 2, 3])
def test_one_gpu_less_does_not_fit(stage, name):
    count = MODELS[name].parameters().total
    ranks = fewest_ranks(count, stage, 80e9, MIXED)
    if ranks is None:
        assert stored(count, stage, 10**6, MIXED) > 80e9
    else:
        assert stored(count, stage, ranks, MIXED) <= 80e9
        assert stored(count, stage, ranks - 1, MIXED) > 80e9


def test_without_zero_one_gpu_is_as_good_as_many():
    assert fewest_ranks(10, 0, 160, MIXED) == 1
    assert fewest_ranks(10, 0, 159, MIXED) is None


def test_room_for_one_parameter_is_enough_where_all_is_cut():
    assert fewest_ranks(10, 3, 16, MIXED) == 10
    assert fewest_ranks(10, 3, 15, MIXED) is None


@every("ranks", [1, 3, 8, 64])
@every("stage", STAGES)
@every("room", [0, 15, 100, 12_345])
def test_one_parameter_more_does_not_fit(room, stage, ranks):
    most = most_parameters(stage, ranks, room, MIXED)
    if most:
        assert stored(most, stage, ranks, MIXED) <= room
    assert stored(most + 1, stage, ranks, MIXED) > room


def end(stage, forward_s=1.0, half_s=1.0, waits=False, blocks=4):
    rows = stage_timeline(stage, blocks, forward_s, half_s, waits=waits)
    return max(span[2] for spans in rows.values() for span in spans)


@every("case", [(0, False), (1, False), (1, True), (2, False), (3, False)])
def test_a_step_takes_its_computing_and_sends_its_halves(case):
    stage, waits = case
    rows = stage_timeline(stage, 4, 1.0, 0.5, waits=waits)
    assert sum(end - start for _, start, end, _ in rows["computing"]) == 12
    halves = 4 * (3 if stage == 3 else 2)
    assert sum(end - start for _, start, end, _ in rows["messages"]) == 0.5 * halves


@every("stage", STAGES)
def test_nothing_overlaps_with_itself(stage):
    for spans in stage_timeline(stage, 5, 1.0, 1.5).values():
        assert all(one[2] <= two[1] for one, two in pairwise(spans))


def test_by_hand():
    assert end(0) == 4 + 8 + 2  # the last block's all-reduce is exposed
    assert end(1, waits=True) == 12 + 4 + 4
    assert end(1) == end(2) == 1 + 12 + 1  # the first gather and the last scatter
    assert end(3) == 1 + 12 + 1  # as long a message as a block forward: it just keeps up
    assert end(3, half_s=2.0) == 2 * 12  # the link never rests


def test_free_messages_leave_the_computing():
    assert {end(stage, half_s=0.0) for stage in STAGES} == {12}


REFUSED = [
    (lambda: stage_timeline(4, 4, 1.0, 1.0), "zero_stage must be"),
    (lambda: stage_timeline(3, 4, 1.0, 1.0, waits=True), "waits must be False in stage 3"),
    (lambda: stage_timeline(0, 0, 1.0, 1.0), "blocks must be"),
    (lambda: stage_timeline(0, 4, -1.0, 1.0), "forward_s must be at least 0"),
    (lambda: stage_timeline(0, 4, 1.0, -1.0), "half_s must be at least 0"),
    (lambda: whole_and_cut(4, MIXED), "zero_stage must be"),
    (lambda: fewest_ranks(0, 1, 1e9, MIXED), "parameters must be at least 1"),
    (lambda: fewest_ranks(10, 1, -1, MIXED), "room_bytes must be at least 0"),
    (lambda: most_parameters(1, 0, 1e9, MIXED), "ranks must be at least 1"),
    (lambda: most_parameters(1, 8, -1, MIXED), "room_bytes must be at least 0"),
]
PROBES = by_name(
    Probe(fewest_ranks, {"parameters": 1000, "zero_stage": 2, "room_bytes": 5000, "recipe": MIXED}),
    Probe(
        stage_timeline,
        {"zero_stage": 1, "blocks": 4, "forward_s": 1.0, "half_s": 1.0, "waits": False},
    ),
)
