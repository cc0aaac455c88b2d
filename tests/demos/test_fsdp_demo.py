"""The FSDP demo: both versions equal to one process, collectives and bytes as the theory says."""

import pytest
from together import runs

from course_lib import demos
from course_lib.demos.shared.sharding import fsdp
from course_lib.demos.shared.training import Training

MODEL = "2x32x4"


CASES = {
    "plain": {},
    "kept": {"reshard": False},
    "half": {"precision": "bf16"},
    "clipped": {"clip": 0.1},
    "meta": {"meta": True},
    "late": {"prefetch": False},
}
UNEVEN = {"model": "2x20x2", "batch": 7, "sequence": 9}


@pytest.fixture(scope="module")
def two():
    return runs("fsdp", CASES, steps=3, model=MODEL)


def both(result, what):
    ours, library = (getattr(version, what) for version in result.versions)
    return ours, library


def test_equal_to_one_process_and_as_predicted(two):
    four = demos.run("fsdp", ranks=4, stream=False, steps=3, model=MODEL)
    whole = Training(MODEL).shape().parameters().total * 4
    # main() verifies losses, gradients, collectives and bytes
    for ranks, result in ((2, two["plain"]), (4, four)):
        for version in result.versions:
            assert version.stored["weights"] == whole // ranks
        ours, library = both(result, "sent")
        assert ours == library


def test_two_gathers_and_one_reduction_a_layer_or_one_without_reshard(two):
    for case, gathers in (("plain", 2 * 2 + 1), ("late", 2 * 2 + 1), ("kept", 2 + 1)):
        for version in two[case].versions:
            assert version.sent["all-gather"][0] == gathers
            assert version.sent["reduce-scatter"][0] == 2 + 1


def test_uneven_sizes_are_padded_as_stated():
    result = demos.run("fsdp", ranks=3, stream=False, steps=3, **UNEVEN)
    training = Training(**UNEVEN)
    for version, by_tensor in zip(result.versions, (False, True), strict=True):
        units = fsdp(training, 3, "fp32", by_tensor=by_tensor).units()
        (_, layer, more), (_, root, root_more) = units["layers"], units["ends"]
        assert more + root_more > 0
        gathered = root + root_more + 4 * (layer + more)
        assert version.sent["all-gather"] == (5, 4 * gathered)


def test_bf16_halves_the_gathers_and_nothing_else(two):
    whole, half = two["plain"], two["half"]
    for one, other in zip(whole.versions, half.versions, strict=True):
        assert other.sent["all-gather"][1] * 2 == one.sent["all-gather"][1]
        assert other.sent["reduce-scatter"] == one.sent["reduce-scatter"]
        assert other.stored == one.stored
        assert 1e-4 < other.gradient_difference < half.gradient_tolerance


def test_clipping_changes_training_and_adds_one_sum(two):
    plain, clipped = two["plain"], two["clipped"]
    assert plain.losses_one_process[2] != clipped.losses_one_process[2]
    ours, library = both(clipped, "sent")
    assert ours["all-reduce"] == (1, 4)
    assert library["all-reduce"][0] == 1
    assert library["all-reduce"][1] > 4


def test_from_the_meta_device(two):
    whole, meta = two["plain"], two["meta"]
    for one, other in zip(whole.versions, meta.versions, strict=True):
        assert other.losses == pytest.approx(one.losses, rel=1e-6)
