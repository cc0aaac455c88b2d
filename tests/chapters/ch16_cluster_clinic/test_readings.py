"""What pieces of ranks may be: found again when they were made so."""

import pytest
import torch

from course_lib.chapters.ch16_cluster_clinic.comparing.readings import (
    HUGE,
    explained,
    joined,
    relative,
    right_readings,
)

BIAS = torch.linspace(3, 5, 12)
WHOLE = torch.arange(72.0).reshape(6, 12) + 1


def best(kind, pieces, own_rows=False, whole=WHOLE):
    readings = list(right_readings(kind, pieces, whole, own_rows))
    return min(readings, key=lambda reading: relative(reading.whole, whole), default=None)


@pytest.mark.parametrize(("dimension", "parts"), [(0, 1), (1, 1), (0, 3), (1, 2), (1, 3)])
def test_what_was_cut_is_joined(dimension, parts):
    shares = [part.chunk(2, dimension) for part in WHOLE.chunk(parts, dimension)]
    pieces = [torch.cat([share[rank] for share in shares], dimension) for rank in range(2)]
    assert torch.equal(joined(pieces, dimension, parts), WHOLE)
    found = best("output", pieces)
    assert torch.equal(found.whole, WHOLE)
    assert f"dimension {dimension}" in found.words
    assert (f"{parts} parts" in found.words) == (parts > 1)


def test_padding_the_worst_rank_and_pieces_that_fit_nothing():
    whole = WHOLE[:, :11]
    padded = torch.cat([whole, torch.full((6, 1), float("-inf"))], 1)
    assert torch.equal(best("output", padded.chunk(2, 1), whole=whole).whole, whole)
    assert relative(best("output", [WHOLE, 2 * WHOLE]).whole, WHOLE) == 1
    assert best("output", [WHOLE]).words == "whole"
    for piece in (WHOLE[:, :5], WHOLE[0]):
        assert best("output", [piece, piece]) is None


@pytest.mark.parametrize("kind", ["loss", "gradient of the output"])
def test_means_over_the_ranks_are_right_only_where_ranks_have_rows_of_their_own(kind):
    pieces = [0.5 * WHOLE, 1.5 * WHOLE]
    assert relative(best(kind, pieces, own_rows=True).whole, WHOLE) == 0
    assert relative(best(kind, pieces).whole, WHOLE) > 0
    assert relative(best("gradient of the weight", pieces, own_rows=True).whole, WHOLE) > 0


def test_gradients_of_own_rows_may_be_divided_later():
    pieces = list((2 * WHOLE).chunk(2, 0))
    assert relative(best("gradient of the output", pieces, own_rows=True).whole, WHOLE) == 0
    assert relative(best("gradient of the output", pieces).whole, WHOLE) == 1


@pytest.mark.parametrize("scale", [1, 2])
def test_cuts_within_groups_that_have_rows_of_their_own(scale):
    pieces = [part for rows in (scale * WHOLE).chunk(2) for part in rows.chunk(2, 1)]
    found = best("gradient of the output", pieces, own_rows=True)
    assert torch.equal(found.whole, WHOLE)
    assert found.words == "cut along dimension 1, on each 2 ranks"
    output = best("output", pieces, own_rows=True).whole
    assert torch.equal(output, scale * WHOLE)  # only gradients may be larger
    assert best("output", pieces) is None


MISTAKES = {
    "sum over the ranks is right: an all-reduce": [0.25 * WHOLE, 0.75 * WHOLE],
    "mean over the ranks is right": [0.5 * WHOLE, 1.5 * WHOLE],
    "2 times what is expected: summed over 2": [2 * WHOLE, 2 * WHOLE],
    "1/2 of what is expected": (WHOLE / 2).chunk(2, 1),
    "it is √2 times": [2**0.5 * part for part in WHOLE.chunk(2, 1)],
    "it is 1/√2 of": [2**-0.5 * part for part in WHOLE.chunk(2, 1)],
    "wrong sign": [-WHOLE, -WHOLE],
    "every row is off by the same vector: a bias": [WHOLE + BIAS] * 2,
    "right, but for a bias": [0.25 * WHOLE + WHOLE[0], 0.75 * WHOLE + WHOLE[0]],
    "": [WHOLE, WHOLE**2],
    "  ": [WHOLE + BIAS],  # of one process no reason is about ranks
    "   ": [WHOLE + 2 * BIAS] * 2,  # by another vector than once more the bias
}


@pytest.mark.parametrize("words", MISTAKES)
def test_known_mistakes_have_their_words(words):
    found = explained(MISTAKES[words], WHOLE, 1e-4, BIAS)
    assert words.strip() in found
    assert bool(words.strip()) == bool(found)


def test_relative_differences_of_odd_tensors():
    assert relative(torch.zeros(0), torch.zeros(0)) == 0
    assert relative(torch.zeros(2), torch.zeros(2)) == 0
    assert relative(torch.ones(2), torch.zeros(2)) == HUGE
    assert relative(torch.tensor([1.0, float("nan")]), torch.ones(2)) == HUGE
