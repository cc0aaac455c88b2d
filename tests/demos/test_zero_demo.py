"""The ZeRO demo on real ranks: equal to one process, stored and sent as the theory says."""

import pytest
from together import runs

from course_lib import launch
from course_lib.demos.shared.training import Training
from course_lib.demos.zero import program as zero
from course_lib.demos.zero.program import redundancy_optimizer_parts, sent_volume
from course_lib.theory.network.collectives import zero_volume

BASE = {"steps": 3, "model": "1x16x2"}
CASES = [
    (1, {}),
    (4, {"model": "2x18x2", "batch": 10, "accumulation": 2}),  # padding, uneven batches
    (3, {"model": "1x18x2", "batch": 7, "offload": True}),
    (2, {"model": "2x6x2"}),  # more outside the layers than in one of them
]


@pytest.fixture(scope="module")
def two():
    cases = {
        "equal": CASES[3][1],
        "kept": {"model": "2x32x4"},
        "once": {"batch": 6},
        "thrice": {"batch": 6, "accumulation": 3},
        "stage 3": {"stage": "3"},
        "stage 1": {"stage": "1", "offload": True},
    }
    return runs("zero", cases, **BASE)


@pytest.fixture(scope="module")
def four():
    return runs("zero", {"equal": CASES[1][1], "volume": {"model": "4x16x2"}}, ranks=4, **BASE)


def by_stage(result):
    return {version.name: version for version in result.versions}


def test_every_stage_is_as_one_process_and_as_predicted(two, four):
    for ranks, options in CASES:
        results = {2: two, 4: four}.get(ranks) or runs("zero", {"equal": options}, ranks, **BASE)
        # `verify` inside compares losses, gradients, calls and bytes.
        versions = results["equal"].versions
        assert len(versions) == 5
        assert all(version.predicted_stored for version in versions)
        assert all(bool(version.predicted_sent) == (ranks > 1) for version in versions)
        assert all(version.losses[-1] < version.losses[0] for version in versions)
        offloaded = [version.stored.get("on the host", 0) for version in versions[:4]]
        assert all(offloaded) if options.get("offload") else not any(offloaded)


def test_each_stage_keeps_less(two):
    *scratch, library = two["kept"].versions
    kept = [sum(version.stored.values()) for version in scratch]
    parameters = Training(model="2x32x4").shape().parameters().total
    bytes_each = [16, 4 + 4 + 8 / 2, 4 + 12 / 2, 16 / 2]  # ZeRO, figure 1, for fp32
    assert kept == [parameters * each for each in bytes_each]
    assert library.stored["weights"] == scratch[1].stored["weights"]
    assert library.stored["optimizer"] >= scratch[1].stored["optimizer"]  # tensors are not cut


def test_the_volume_is_1_1_and_nearly_1_5_times(four):
    ranks, versions = 4, four["volume"].versions
    plain, one, two, three, library = (sent_volume(v.sent, ranks) for v in versions)
    shape = Training(model="4x16x2").shape()
    size, ends = 4 * shape.parameters().total, 4 * (shape.embedding_parameters().total + 2 * 16)
    assert plain == one == two == zero_volume(size, 0, ranks)
    # What is outside the layers is gathered once instead of twice.
    assert three == zero_volume(size, 3, ranks) - zero_volume(ends, 2, ranks) / 2
    # It gathers twice: DDP's all-reduce the gradients, then the broadcasts the weights.
    assert library == zero_volume(size, 3, ranks)


def test_accumulation_costs_stage_2_and_3_a_sum_for_each_micro_batch(two):
    once, thrice = by_stage(two["once"]), by_stage(two["thrice"])
    for name, version in thrice.items():
        sums = next(k for k in ("all-reduce", "reduce-scatter") if k in version.sent)
        times = 3 if name.startswith(("stage 2", "stage 3")) else 1
        assert version.sent[sums][1] == times * once[name].sent[sums][1]
        assert version.losses == pytest.approx(once[name].losses, rel=1e-5)


def test_one_stage_alone(two):
    assert list(by_stage(two["stage 3"])) == ["stage 3 from scratch"]
    both = ["stage 1 from scratch", "ZeroRedundancyOptimizer, stage 1"]
    assert list(by_stage(two["stage 1"])) == [both[0] + ", offloaded", both[1]]


def test_whole_tensors_do_not_divide_evenly():
    assert redundancy_optimizer_parts([5, 4, 3, 3], 2) == [8, 7]
    assert redundancy_optimizer_parts([9, 1], 4) == [9, 1, 0, 0]


def broken_reduce():
    """One unit keeps its own gradient, without the other ranks'."""
    from course_lib.scratch.zero import Unit

    whole = Unit.reduce

    def reduce(unit):
        whole(unit)
        if len(unit.parameters) < 6:  # what is outside the layers
            unit.gradient = unit.gradient * 0.5

    Unit.reduce = reduce
    return zero.main(zero.Options(steps=3, model="1x16x2", stage="2"))


def test_a_wrong_gradient_is_refused():
    with pytest.raises(launch.RankFailed, match=r"stage 2 from scratch: the .* differs"):
        launch.run(broken_reduce, ranks=2)
