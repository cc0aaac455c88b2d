"""The demo tp: every version equal to one process; collectives and bytes as predicted."""

from importlib.util import find_spec

import pytest
from together import by_rank, explained, runs

from course_lib import demos, launch
from course_lib.demos.tp import program as tp
from course_lib.demos.tp.megatron import missing
from course_lib.scratch import tensor as tensor_region

SMALL = {"model": "2x16x4", "steps": 3, "batch": 2, "sequence": 8}
MEGATRON = find_spec("megatron") is not None


@pytest.mark.parametrize("ranks", [2, 4])
def test_equal_to_one_process_and_as_predicted(ranks):
    cases = {"plain": {}, "sequence": {"sequence_parallel": True}}
    plain, sequence = runs("tp", cases, ranks, **SMALL).values()
    for result in (plain, sequence):
        assert [version.name for version in result.versions][:2] == [
            "from scratch",
            "parallelize_module",
        ]
        assert all(version.losses[-1] < version.losses[0] for version in result.versions)
    if not MEGATRON:
        how = "Megatron-core's layers: not installed: pip install 'course-lib[megatron]'"
        assert how in plain.report()
    size, loss = 4 * 2 * 8 * 16, 4 * 2 * 8  # bytes of b·s·h and of b·s
    ours, theirs = (version.sent for version in plain.versions[:2])
    assert ours == {"all-reduce": (4 * 2 + 2 + 3, 10 * size + 3 * loss)}
    assert theirs == {"all-reduce": (6 * 2 + 2 + 3, 14 * size + 3 * loss)}  # q, k and v
    ours, theirs = (version.sent for version in sequence.versions[:2])
    assert ours["all-gather"] == ours["reduce-scatter"] == (10, 10 * size)
    assert ours["all-reduce"] == (4, 3 * loss + 4 * 16 * (6 * 2 + 2 + 8))
    assert theirs["all-gather"] == (11, 10 * size + 4 * 8 * 16)
    assert theirs["all-reduce"] == (3 + 10, 3 * loss + 10 * 4 * 16)


def test_a_vocabulary_that_does_not_divide():
    results = by_rank("tp", {0: {"model": "1x24x3"}}, ranks=3, **SMALL)
    rows = [result[0].versions[1].stored["gradients"] for result in results]
    assert rows[0] == rows[1] == rows[2] + 4 * 24  # torch: 43, 43 and 42 words
    stored = [result[0].versions[0].stored for result in results]
    assert stored[0] == stored[1] == stored[2]  # ours: 43 each, of which one is padding


def without_f():
    tensor_region.Copy.backward = staticmethod(lambda ctx, gradient: (gradient, None))
    return tp.main(tp.Options(library=False, **SMALL))


def test_a_missing_sum_is_noticed():
    with pytest.raises(launch.RankFailed, match=r"from scratch: the (gradient|loss of update 1)"):
        launch.run(without_f, ranks=2)


@pytest.mark.engine("megatron")
def test_megatron_core_is_equal_and_sends_what_we_send():
    result = demos.run("tp", stream=False, **SMALL)
    ours, _, theirs = result.versions
    assert theirs.name == "Megatron-core's layers"
    assert (theirs.sent, theirs.stored) == (ours.sent, ours.stored)


def test_what_megatron_core_cannot_do_is_said(monkeypatch):
    monkeypatch.setattr("course_lib.demos.tp.megatron.find_spec", lambda name: object())
    assert missing(False, 128, 2) is None
    assert "CUDA" in missing(True, 128, 2)
    assert "vocabulary 128, 3 ranks" in missing(False, 128, 3)


def test_what_the_ranks_cannot_divide_is_explained():
    sequence = {"sequence": 9, "sequence_parallel": True}
    explained(
        lambda **option: tp.Options(**{**SMALL, **option}).layout(2),
        [
            ({"model": "1x18x3"}, "heads 3 is not divisible by tp 2"),
            (sequence, "sequence/cp 9 is not divisible by tp 2"),
        ],
    )
