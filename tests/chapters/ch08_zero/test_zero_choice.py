"""The choice of a stage: against the bill of each stage, one GPU more and one less."""

from every import every
from probes import Probe, by_name

from course_lib.chapters.ch08_zero.zero_choice import fewest_ranks, most_parameters, whole_and_cut
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


REFUSED = [
    (lambda: whole_and_cut(4, MIXED), "zero_stage must be"),
    (lambda: fewest_ranks(0, 1, 1e9, MIXED), "parameters must be at least 1"),
    (lambda: fewest_ranks(10, 1, -1, MIXED), "room_bytes must be at least 0"),
    (lambda: most_parameters(1, 0, 1e9, MIXED), "ranks must be at least 1"),
    (lambda: most_parameters(1, 8, -1, MIXED), "room_bytes must be at least 0"),
]
PROBES = by_name(
    Probe(fewest_ranks, {"parameters": 1000, "zero_stage": 2, "room_bytes": 5000, "recipe": MIXED})
)
