"""The YaFSDP demo: equal to one process, buffers as the theory says, allocations counted."""

import pytest
from together import runs

from course_lib.demos.shared.training import Training
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.memory.states import local_parameters, sharding_buffers

MODEL, LAYERS = "2x32x4", 2


@pytest.fixture(scope="module")
def two():
    cases = {"plain": {}, "again": {}, "clipped": {"clip": 0.1, "meta": True}}
    return runs("yafsdp", cases, steps=3, model=MODEL)


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (4, {"model": MODEL}),
        (3, {"model": "3x20x2", "batch": 7, "sequence": 9, "precision": "bf16"}),
    ],
)
def test_other_ranks_and_sizes(ranks, options):
    """`main` verifies."""
    (version,) = runs("yafsdp", {"": options}, ranks, steps=3)[""].versions
    assert version.stored == version.predicted_stored


def test_the_buffers_are_those_of_the_theory(two):
    recipe = Recipe("fp32", "fp32", master_copy=False, gathering="yafsdp")
    local = local_parameters(Training(MODEL).shape())
    buffers = sharding_buffers(local, recipe, Layout(dp=2, zero_stage=3))
    stored = two["plain"].versions[0].stored
    assert stored["weight buffers"] == buffers["gathered_parameters_bytes"]
    assert stored["gradient buffers"] == buffers["gathered_gradients_bytes"]


def test_allocations_of_each_version(two):
    result = two["plain"]
    # A layer: two gathers, its gradients, and the part of them that stays. The root: one gather.
    assert result.allocations["mini-FSDP"] == 4 * LAYERS + 3
    # Embedding, positions, layers, norm, head: what stays. The tied head saves one sum.
    assert result.allocations["YaFSDP"] == LAYERS + 4 - 1
    assert result.allocations["fully_shard"] > result.allocations["mini-FSDP"]


def test_buffers_are_there_before_the_pass(two):
    result = two["plain"]
    memory = {one.name: one for one in result.memory}
    stored = result.versions[0].stored
    buffers = stored["weight buffers"] + stored["gradient buffers"]
    assert memory["YaFSDP"].start_bytes - memory["mini-FSDP"].start_bytes == pytest.approx(
        buffers, rel=0.001
    )
    assert all(one.peak_bytes == max(one.timeline) for one in result.memory)
    assert "for sharding" in result.report()


def test_clipped_and_from_the_meta_device(two):
    version = two["clipped"].versions[0]
    assert version.sent["all-reduce"] == (1, 4)


def test_twice_the_same(two):
    one, other = two["again"].memory, two["plain"].memory
    assert one[0] == other[0]
    # With collectives under way a thread of gloo may let go of a tensor a moment later.
    assert [m.allocations for m in one] == [m.allocations for m in other]
