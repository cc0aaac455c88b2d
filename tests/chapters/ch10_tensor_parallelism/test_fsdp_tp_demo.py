"""The demo fsdp_tp: copies of a cut model, whole or sharded, on a mesh of ranks."""

from together import by_rank, explained, runs

from course_lib.chapters.ch10_tensor_parallelism.demos import fsdp_tp

SMALL = {"model": "2x16x4", "steps": 3, "batch": 4, "sequence": 8}


def judged(result):
    assert len(result.versions) == 3
    assert all(version.losses[-1] < version.losses[0] for version in result.versions)
    return result.versions


def test_two_by_two():
    results = by_rank("fsdp_tp", {"all": {}}, ranks=4, **SMALL)
    copies, ours, theirs = judged(results[0]["all"])
    assert results[0]["all"].notes == ["  ranks, dp by tp: [[0, 1], [2, 3]]"]  # tp innermost
    assert all(other["all"].versions[0].losses == copies.losses for other in results)
    weights = copies.stored["weights"]
    assert ours.stored["weights"] == theirs.stored["weights"] == weights / 2
    assert copies.sent["all-reduce"][0] == 4 * 2 + 2 + 3 + 2
    assert ours.sent["all-reduce"][0] == 4 * 2 + 2 + 3
    assert theirs.sent["all-reduce"][0] == 6 * 2 + 2 + 3
    for version in (ours, theirs):
        assert version.sent["all-gather"][0] == 2 * 2 + 1
        assert version.sent["reduce-scatter"] == (2 + 1, weights)


def test_two_ranks_are_one_axis_or_the_other():
    tensor, data = runs("fsdp_tp", {2: {"tp": 2}, 1: {"tp": 1}}, **SMALL).values()
    assert set(judged(tensor)[1].sent) == {"all-reduce"}
    assert set(judged(data)[1].sent) == {"all-gather", "reduce-scatter"}
    assert tensor.losses_one_process == data.losses_one_process


def test_what_the_ranks_cannot_divide_is_explained():
    def layout(ranks, **option):
        return fsdp_tp.Options(**{**SMALL, **option}).layout(ranks, 3)

    explained(
        layout,
        [
            ({"ranks": 3}, "ranks 3 is not divisible by tp 2"),
            ({"batch": 3, "ranks": 4}, "batch 3 is not divisible by dp 2"),
            ({"sequence": 9, "ranks": 4}, "sequence 9 is not divisible by dp 2"),
            ({"model": "1x18x2", "ranks": 4}, "hidden 18 is not divisible by ranks 4"),
            ({"model": "1x12x3", "tp": 2, "ranks": 2}, "heads 3 is not divisible by tp 2"),
            (
                {"tp": 1, "batch": 6, "sequence": 9, "ranks": 3},
                "vocabulary 128 is not divisible by ranks 3",
            ),
        ],
    )
