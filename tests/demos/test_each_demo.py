"""Every demo that trains, by its options, on 1 to 8 ranks.

A demo proves by itself that losses and gradients are those of one process, and calls and bytes
those of the theory. Beside that, some rows say what an option changes.
"""

from importlib.util import find_spec
from statistics import fmean

import pytest
from together import runs

from course_lib import launch
from course_lib.demos import zero
from course_lib.demos.shared.training import Training
from course_lib.demos.tp import program as tp
from course_lib.demos.tp.megatron import missing
from course_lib.demos.zero import sent_volume
from course_lib.scratch import tensor as tensor_region
from course_lib.scratch.zero import Unit
from course_lib.theory.network.collectives import zero_volume

GPT = {"model": "2x16x4", "steps": 3, "batch": 4, "sequence": 8}
DDP = {"model": "2x32x4", "steps": 4}
FSDP = [
    *({}, {"reshard": False}, {"prefetch": False}),
    *({"precision": "bf16"}, {"clip": 0.1}, {"meta": True}),
]
PIPELINE = {"sequence": 8, "batch": 8, "micro_batches": 4, "steps": 3, "sleep_ms": 0.0}


def accumulated(plain, loud, *buckets):
    """DDP sends more than it must only where it is told to, or while torch settles its buckets."""
    for result in (plain, loud, *buckets):
        assert result.all_reduces == result.predicted_all_reduces
        assert result.scratch.all_reduces == result.scratch.predicted_all_reduces
    assert loud.all_reduces == 3 * plain.all_reduces
    assert loud.losses == pytest.approx(plain.losses, rel=1e-4)
    for result, count in zip(buckets, (5, 2), strict=True):
        assert len(result.predicted_bucket_bytes) == count
        assert result.all_reduces == 1 + (len(result.losses) - 1) * count
        assert result.bucket_bytes == result.scratch.bucket_bytes == result.predicted_bucket_bytes


def sharded(plain, kept, late, half, clipped, meta):
    """By FSDP: what is gathered how often, in which precision, and what clipping adds."""
    for result, gathers in ((plain, 2 * 2 + 1), (late, 2 * 2 + 1), (kept, 2 + 1)):
        assert {version.sent["all-gather"][0] for version in result.versions} == {gathers}
    for one, other in zip(plain.versions, half.versions, strict=True):
        assert other.sent["all-gather"][1] * 2 == one.sent["all-gather"][1]
        assert other.sent["reduce-scatter"] == one.sent["reduce-scatter"]
        assert 1e-4 < other.gradient_difference < half.gradient_tolerance
    assert plain.losses_one_process[2] != clipped.losses_one_process[2]
    assert clipped.versions[0].sent["all-reduce"] == (1, 4)
    for one, other in zip(plain.versions, meta.versions, strict=True):
        assert other.losses == pytest.approx(one.losses, rel=1e-6)


def by_stage(plain, twice):
    """Each stage of ZeRO keeps less, and sends what section 7 of its paper says."""
    *scratch, library = plain.versions
    parameters = Training(**GPT).shape().parameters().total
    kept = [sum(version.stored.values()) for version in scratch]
    assert kept == [parameters * each for each in (16, 4 + 4 + 8 / 2, 4 + 12 / 2, 16 / 2)]
    stages = [sent_volume(version.sent, 2) for version in (*scratch[:3], library)]
    # Torch's DDP all-reduces the gradients, then its broadcasts carry the weights.
    assert stages == [zero_volume(4 * parameters, stage, 2) for stage in (0, 1, 2, 3)]
    for one, other, times in zip(scratch, twice.versions, (1, 1, 2, 2), strict=False):
        sums = next(k for k in ("all-reduce", "reduce-scatter") if k in one.sent)
        assert other.sent[sums][1] == times * one.sent[sums][1]


def one_stage(third, offloaded):
    """`stage` trains one of them, and torch's stage 1 beside the first."""
    assert [version.name for version in third.versions] == ["stage 3 from scratch"]
    names = ["stage 1 from scratch, offloaded", "ZeroRedundancyOptimizer, stage 1"]
    assert [version.name for version in offloaded.versions] == names


def layers_cut(plain, sequence):
    """Calls of tensor parallelism by hand: 2 layers, the embedding, and three for the loss."""
    size, loss = 4 * 4 * 8 * 16, 4 * 4 * 8  # bytes of b·s·h and of b·s
    ours, theirs = (version.sent for version in plain.versions[:2])
    assert ours == {"all-reduce": (4 * 2 + 2 + 3, 10 * size + 3 * loss)}
    assert theirs == {"all-reduce": (6 * 2 + 2 + 3, 14 * size + 3 * loss)}  # q, k and v
    assert sequence.versions[0].sent["reduce-scatter"] == (10, 10 * size)
    if find_spec("megatron") is None:
        assert "Megatron-core's layers: not installed: pip install" in plain.report()


def mesh(result):
    """Eight ranks are two by two by two."""
    (version,) = result.versions
    assert version.name == "scratch dp 2 x tp 2 x pp 2"
    assert [note.partition(";")[0] for note in result.notes] == [
        f"rank {rank}: pp {rank // 4}, dp {rank // 2 % 2}, tp {rank % 2}" for rank in range(8)
    ]
    assert result.notes[0].endswith("1/2 of each matrix of 2 layers")
    message = 4 * 8 * 16  # one sample: b·s·h in fp32; micro-batches have 2 samples
    assert version.sent["tp all-reduce"] == (2 * (4 * 2 + 1), 2 * (4 * 2 + 1) * 2 * message)
    assert version.sent["pp send-recv"] == (2, 2 * 2 * message)


def two_axes(result):
    """Copies of a cut model, whole or sharded over dp."""
    copies, ours, theirs = result.versions
    assert result.notes == ["  ranks, dp by tp: [[0, 1], [2, 3]]"]  # tp innermost
    weights = copies.stored["weights"]
    assert ours.stored["weights"] == theirs.stored["weights"] == weights / 2


def allocations(result):
    """YaFSDP asks for less memory in a step, and has its buffers before it."""
    # A layer: two gathers, its gradients, and the part of them that stays. The root: one gather.
    assert result.allocations["mini-FSDP"] == 4 * 2 + 3
    # Embedding, positions, layers, norm, head: what stays. The tied head saves one sum.
    assert result.allocations["YaFSDP"] == 2 + 4 - 1
    assert result.allocations["fully_shard"] > result.allocations["mini-FSDP"]
    memory, stored = {one.name: one for one in result.memory}, result.versions[0].stored
    more = memory["YaFSDP"].start_bytes - memory["mini-FSDP"].start_bytes
    buffers = stored["weight buffers"] + stored["gradient buffers"]
    assert more == pytest.approx(buffers, rel=0.001)
    assert all(one.peak_bytes == max(one.timeline) for one in result.memory)


def ring(result):
    """Only the zig-zag gives all ranks the same scores."""
    assert len(set(result.scores["zig-zag ring"])) == 1
    assert len(set(result.scores["ring"])) == 4


def without_zigzag(result):
    assert [one.name for one in result.versions] == ["ring", "torch: all-gather, DDP"]


def routed(dropping, fixed):
    """Capacity drops choices; dealt out in turn, all experts are equally busy."""
    assert sum(dropping.dropped) > 0 and fixed.imbalance == [1.0] * 3


def balanced(result):
    with_loss, without = result.imbalance[-10:], result.imbalance_without_loss[-10:]
    assert fmean(with_loss) < 0.95 * fmean(without)


def schedules(all_, chunks):
    """Every schedule that fits, beside torch's; the V keeps one table and holds p on each stage."""
    names = ["scratch naive", "scratch gpipe", "torch gpipe", "scratch 1f1b", "torch 1f1b"]
    names += ["scratch interleaved", "torch interleaved", "scratch zb1p", "scratch zbv"]
    assert [version.name for version in all_.versions] == names
    boundary = 4 * 2 * 8 * 16  # one micro-batch of 2 samples: b·s·h in fp32
    assert all_.versions[-1].sent == {"send-recv": (8, 8 * boundary)}
    assert [stage.layers for stage in all_.stages["zbv"]] == [[2, 1], [1, 1]]
    assert [version.sent["send-recv"][0] for version in chunks.versions] == [4 * 5] * 2


def in_flight(result):
    held = {name: [stage.most_held for stage in each] for name, each in result.stages.items()}
    assert held == {
        "naive": [1, 1, 1, 1],
        "gpipe": [4, 4, 4, 4],
        "1f1b": [4, 3, 2, 1],
        "interleaved": [8, 8, 7, 5],  # chunks
        "zb1p": [4, 4, 4, 4],
    }  # four micro-batches do not fill a V of four stages


def devices(result):
    by_hand = result.versions[0]
    copied = 2 * by_hand.stored["weights"]
    assert by_hand.stored["weights, copied"] == copied and not by_hand.sent
    assert f"{copied:,} B of weights" in result.report()
    assert "device_ids [0], output_device None" in result.report()


def recomputed(*results):
    for result, segments in zip(results, (2, 3), strict=True):
        without, by_hand, library = result.costs
        assert result.segments == segments
        assert by_hand.kept_bytes == library.kept_bytes < without.kept_bytes
        assert library.flop < by_hand.flop


def few_bytes(small, usual):
    """Only what should fail fails; small updates are lost by bf16."""
    for result in (small, usual):
        each = [version.state_bytes / version.parameters for version in result.versions]
        assert each == pytest.approx([16, 8, 16, 10, 10], rel=0.01)
        gaps = [version.gap for version in result.versions]
        assert gaps[3] < 0.1 < 1 < gaps[4]
    plain, master = (version.gap for version in small.versions[1:3])
    assert master < plain / 2


RUNS = [  # demo, ranks, options of all cases, cases, what they show besides
    (
        *("checkpoint", 4, GPT | {"steps": 4, "save_after": 2}),
        [{"save_ranks": 2}, {"load_ranks": 3}],
        None,
    ),
    ("checkpointing", 2, GPT | {"model": "3x16x2", "batch": 7}, [{}, {"segment": 1}], recomputed),
    ("context", 1, GPT, [{}], None),
    ("context", 2, GPT | {"sequence": 22, "zigzag": False}, [{}], without_zigzag),
    ("context", 4, GPT | {"sequence": 24, "batch": 3}, [{}], ring),
    (
        *("ddp", 2, DDP),
        [
            *({"accumulation": 3, "micro_batch": 2, "no_sync": quiet} for quiet in (True, False)),
            {"bucket_cap_mb": 0.02, "micro_batch": 2},
            {"model": "2x128x4", "steps": 3},
        ],
        accumulated,
    ),
    ("ddp", 4, DDP, [{}], None),
    ("experts", 1, GPT, [{"steps": 40, "balance": 0.1, "sequence": 16}], balanced),
    ("experts", 2, GPT, [{"capacity_factor": 0.8, "top_k": 1}, {"fixed_routes": True}], routed),
    ("experts", 4, GPT, [{"experts": 8, "batch": 6}], None),
    ("fsdp", 2, DDP, FSDP, sharded),
    ("fsdp", 3, {"model": "2x20x2", "batch": 7, "sequence": 9}, [{}], None),
    ("fsdp_tp", 2, GPT, [{"tp": 1}, {"tp": 2}], None),
    ("fsdp_tp", 4, GPT, [{}], two_axes),
    ("multi_device", 2, GPT | {"model": "3x16x2"}, [{"devices": 3}], devices),
    (
        *("optimizers", 1, GPT | {"steps": 12}),
        [{"learning_rate": 3e-4}, {"learning_rate": 3e-3}],
        few_bytes,
    ),
    (
        *("pipeline", 2, PIPELINE | {"model": "5x16x2"}),
        [{}, {"model": "6x16x2", "schedule": "interleaved", "virtual_stages": 3}],
        schedules,
    ),
    ("pipeline", 4, PIPELINE | {"model": "9x16x2"}, [{}], in_flight),
    ("three_d", 1, GPT, [{}], None),
    ("three_d", 3, GPT | {"model": "3x16x2", "batch": 6}, [{}, {"pp": 3}], None),
    (
        *("three_d", 4, GPT | {"batch": 8}),
        [{"model": "5x16x2", "tp": 2, "schedule": "interleaved"}, {"micro_batches": 4}],
        None,
    ),
    ("three_d", 8, GPT | {"model": "3x16x2", "batch": 8}, [{}], mesh),
    ("tp", 2, GPT, [{}, {"sequence_parallel": True}], layers_cut),
    ("tp", 3, GPT | {"model": "1x24x3"}, [{}], None),  # which does not divide the vocabulary
    ("tp", 4, GPT, [{"sequence_parallel": True}], None),
    ("yafsdp", 2, {"model": "2x32x4", "steps": 3}, [{"clip": 0.1, "meta": True}], allocations),
    (
        *("yafsdp", 3, {"model": "3x20x2", "steps": 3}),
        [{"batch": 7, "sequence": 9, "precision": "bf16"}],
        None,
    ),
    ("zero", 1, GPT, [{}], None),
    ("zero", 2, GPT, [{}, {"accumulation": 2}], by_stage),
    ("zero", 2, GPT, [{"stage": "3"}, {"stage": "1", "offload": True}], one_stage),
    ("zero", 3, GPT | {"model": "1x18x2", "batch": 7}, [{"offload": True}], None),
    ("zero", 4, GPT | {"model": "2x18x2", "batch": 10}, [{"accumulation": 2}], None),
]


@pytest.mark.parametrize(
    ("demo", "ranks", "base", "cases", "check"), RUNS, ids=[f"{row[0]}-{row[1]}" for row in RUNS]
)
def test_all_that_a_demo_claims_is_so(demo, ranks, base, cases, check):
    results = runs(demo, dict(enumerate(cases)), ranks, **base).values()
    for result in results:
        assert result.facts and result.report()
        for version in getattr(result, "versions", ()) if demo != "optimizers" else ():
            assert version.losses[-1] < version.losses[0]
    if check:
        check(*results)


# -- these facts can be false ----------------------------------------------------------------------


def without_f():
    tensor_region.Copy.backward = staticmethod(lambda ctx, gradient: (gradient, None))
    return tp.main(tp.Options(library=False, **GPT))


def half_a_gradient():
    """What is outside the layers keeps half of its gradient."""
    whole = Unit.reduce

    def reduce(unit):
        whole(unit)
        if len(unit.parameters) < 6:
            unit.gradient = unit.gradient * 0.5

    Unit.reduce = reduce
    return zero.main(zero.Options(stage="2", **GPT))


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (without_f, r"from scratch: the (gradient|loss of update 1)"),
        (half_a_gradient, r"stage 2 from scratch: the .* differs"),
    ],
)
def test_a_broken_version_is_refused(broken, words):
    with pytest.raises(launch.RankFailed, match=words):
        launch.run(broken, ranks=2)


# -- other libraries -------------------------------------------------------------------------------


@pytest.mark.engine("megatron")
def test_megatron_core_is_equal_and_sends_what_we_send():
    ours, _, theirs = runs("tp", {"": {}}, **GPT)[""].versions
    assert theirs.name == "Megatron-core's layers"
    assert (theirs.sent, theirs.stored) == (ours.sent, ours.stored)


def test_what_megatron_core_cannot_do_is_said(monkeypatch):
    monkeypatch.setattr("course_lib.demos.tp.megatron.find_spec", lambda name: object())
    assert missing(False, 128, 2) is None
    assert "CUDA" in missing(True, 128, 2)
    assert "vocabulary 128, 3 ranks" in missing(False, 128, 3)
