"""Errata of the study notes on pipelines and communication: the wrong claim, and what is right.

The number in a test's name is that of the erratum.
"""

import pytest

from course_lib.theory.compute import budget
from course_lib.theory.inputs.hardware import HDR, PCIE4, Cluster, Link, accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import model
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.network import collectives
from course_lib.theory.network.bucket_timeline import ddp_buckets, gradient_syncs
from course_lib.theory.network.step_traffic import step_traffic
from course_lib.theory.pipelines import bubble
from course_lib.theory.pipelines.simulation import timeline

LLAMA = model("llama2-70b")
H100 = accelerator("H100-SXM")


def test_erratum_3():
    """Claim: "2 · 3 · 8192 / 64 / 2 = 384 FLOP per byte, 859 GB/s, twice that both ways".

    Reproduced.
    """
    intensity = collectives.matrix_intensity(8192, 64)
    assert intensity == 384
    needed = 859.4e9
    assert collectives.ridge(330e12, needed) == pytest.approx(intensity, rel=1e-4)
    assert collectives.matrix_tp_reach(8192, 330e12, needed) == pytest.approx(64, rel=1e-4)
    assert 2 * needed == pytest.approx(1.72e12, rel=1e-3)


def test_erratum_4():
    """Claim: "Divide by heads for less memory per parameter, by bytes to count memory".

    Heads divide the work that a GPU does for each byte it receives; bytes count what is moved.
    """
    # 3 passes: one forward, two backward (gradients of the input and of the weights).
    tokens, hidden, heads, element_bytes = 100, 8192, 64, 2
    flop_of_one_gpu = 3 * 2 * tokens * hidden * (hidden // heads)
    received = tokens * hidden * element_bytes
    assert collectives.matrix_intensity(hidden, heads) == flop_of_one_gpu / received
    assert collectives.matrix_intensity(hidden, heads, element_bytes=4) == 384 / 2
    weights_of_one_gpu = hidden * (hidden // heads) * element_bytes
    assert flop_of_one_gpu / weights_of_one_gpu != 384  # memory would depend on the tokens


def test_erratum_5():
    """Claim: "FLOP per byte of tensor parallelism is 6h / 2t".

    That is one matrix whose input is shipped.

    A layer does 72bsh² / t for 8bsh (t-1)/t elements: 4.5h / (t-1).
    """
    hidden, tp = 8192, 8
    assert collectives.matrix_intensity(hidden, tp) == 3072
    right = collectives.layer_intensity(hidden, tp)
    assert right == pytest.approx(4.5 * hidden / (tp - 1)) == pytest.approx(5266.3, rel=1e-4)


def test_erratum_8():
    """Claim: "H100: 900 GB/s".

    That is both ways; one way is 450 and the ridge 2198 FLOP per byte.
    """
    assert H100.inside.bytes_per_s == 450e9
    assert collectives.ridge(989e12, 450e9) == pytest.approx(2198, rel=1e-3)
    assert collectives.ridge(989e12, 900e9) == pytest.approx(1099, rel=1e-3)


def test_erratum_9():
    """Claim: "24576 / t >= 1100, so t <= 11": 24576 / 1100 is 22.3, and 11.2 needs 2198."""
    printed = collectives.matrix_tp_reach(8192, 1100.0, 1.0)
    assert printed == pytest.approx(22.34, rel=1e-3)
    assert printed != pytest.approx(11, rel=0.1)
    assert collectives.matrix_tp_reach(8192, 989e12, 450e9) == pytest.approx(11.18, rel=1e-3)


def test_erratum_10():
    """Claim: "t <= 2.4 on a 4090": one matrix; for the whole layer 4 or 8, and 17 on an H100."""
    assert collectives.matrix_tp_reach(8192, 330e12, 32e9) == pytest.approx(2.38, rel=2e-3)
    assert collectives.layer_tp_reach(8192, 330e12, 32e9) == 4
    assert collectives.layer_tp_reach(8192, 165.2e12, 31.5e9) == 8
    assert collectives.layer_tp_reach(8192, 989e12, 450e9) == 17


def test_erratum_13():
    """Claim: "All-reduce sums, averages and broadcasts".

    It reduce-scatters and gathers, 2(n-1)/n · S.
    """
    size, ranks = 4e9, 8
    halves = [
        collectives.sent_bytes(part, size, ranks) for part in ("reduce-scatter", "all-gather")
    ]
    assert sum(halves) == collectives.sent_bytes("all-reduce", size, ranks) == 7e9
    by_broadcast = 2 * (ranks - 1) * size  # through one GPU: all send to it, it sends to all
    assert by_broadcast == 8 * 7e9


def test_erratum_15():
    """Claim: "2N - 1 live activations": 1F1B holds min(m, N - stage), GPipe all m."""
    stages, micro_batches = 8, 32
    in_turn = timeline("1f1b", stages, micro_batches)
    assert [in_turn.in_flight(stage) for stage in range(stages)] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert in_turn.in_flight(0) != 2 * stages - 1
    assert timeline("gpipe", stages, micro_batches).in_flight(0) == micro_batches
    assert timeline("1f1b", stages, 3).in_flight(0) == 3


def test_erratum_16():
    """Claim: "As many batches as layers fill the pipeline".

    With 80 and 80, half of the time is idle.
    """
    full = timeline("1f1b", 80, 80)
    assert full.bubble_over_ideal == bubble.bubble_over_ideal(80, 80) == 0.9875
    assert 1 - full.bubble_fraction == pytest.approx(0.503, abs=5e-4)
    many = timeline("1f1b", 80, 800)
    assert many.bubble_over_ideal == pytest.approx(79 / 800)


def test_erratum_22():
    """Claim: "80 stages hold 160 times the activations".

    Stage 0 holds one model's worth, for any p.
    """
    for stages in (2, 8, 80):
        layers = LLAMA.layers // stages
        held = layers * timeline("1f1b", stages, 80).in_flight(0)
        assert held == LLAMA.layers == 80
        assert held != 160


def test_erratum_26():
    """Claim: "2048 GPUs can all be seen as data parallel": only 2048 / 80 = 25.6 replicas."""
    layout = Layout(dp=25, pp=80, accumulation=80)
    with pytest.raises(ValueError, match="world 2048"):
        layout.check_world(2048)
    traffic = step_traffic(Job(LLAMA, Recipe(), layout, Cluster(H100, nodes=250), sequence=4096))
    assert layout.world == 2000
    assert {item.ranks for item in traffic.collectives if item.axis == "dp"} == {25}


def test_erratum_28():
    """Claim: "4 GB over PCIe": 0.125 s at 32 GB/s one way, 0.25 s for two passes."""
    once = collectives.seconds("send-recv", 4000000000.0, 2, Link("link", 32000000000.0))
    assert once == 0.125
    assert 2 * once == 0.25
    assert collectives.seconds("send-recv", 4000000000.0, 2, Link("link", PCIE4.bytes_per_s)) > once


def test_erratum_29():
    """Claim: "8 cards of 200 Gb/s match PCIe": each is 25 GB/s, 78 % of PCIe 4.0 x16 (32 GB/s)."""
    assert HDR.bytes_per_s == 200e9 / 8
    assert HDR.bytes_per_s / 32e9 == pytest.approx(0.78, abs=2e-3)
    assert HDR.bytes_per_s < PCIE4.bytes_per_s


def test_erratum_34():
    """Claim: "Tensor parallelism splits by heads".

    Only up to kv_heads (8); beyond, keys are copied.
    """

    def keys_and_values(tp):
        traffic = step_traffic(
            Job(LLAMA, Recipe(), Layout(tp=tp, cp=2), Cluster(H100, 4), sequence=4096)
        )
        return sum(
            item.size_bytes for item in traffic.collectives if item.what == "keys and values"
        )

    assert keys_and_values(4) == 2 * keys_and_values(8)
    assert keys_and_values(8) == keys_and_values(16)


def test_erratum_36():
    """Claim: "DDP is similar to DataParallel".

    DDP all-reduces buckets, DataParallel's one GPU sends all.

    Per GPU DDP sends at most twice the parameters; the first GPU of DataParallel sends them to
    each of the others, in every step.
    """
    size = 100 * 2**20
    assert len(ddp_buckets([2**20] * 100)) == 5  # so that backward hides most of it
    for ranks in (2, 8, 64):
        assert collectives.sent_bytes("all-reduce", size, ranks) < 2 * size
        data_parallel = (ranks - 1) * size
        assert data_parallel / collectives.sent_bytes("all-reduce", size, ranks) == ranks / 2


def test_erratum_37():
    """Claim: "Workers sum gradients periodically": once at every optimizer step."""
    for accumulation in (1, 4, 32):
        updates = 320 // accumulation
        assert gradient_syncs(320, accumulation, no_sync=True) == updates


def test_erratum_41():
    """Claim: "ZeRO reduces redundant compute": only storage; stage 3 sends half as much again."""
    assert collectives.zero_volume(1.0, 3) / collectives.zero_volume(1.0, 0) == 1.5
    assert collectives.zero_volume(1.0, 1) == collectives.zero_volume(1.0, 2) == 2.0


def test_erratum_52():
    """Claim: "26 % faster": 26.5 % less time, which is 36 % more throughput."""
    saved = budget.saved_fraction(9.76, 7.17)
    gained = budget.throughput_gain(9.76, 7.17)
    assert saved == pytest.approx(0.265, abs=1e-3)
    assert gained == pytest.approx(0.361, abs=1e-3)
    assert gained == pytest.approx(saved / (1 - saved))
