"""Wrong or doubtful claims of the study notes about models, hardware and FLOPs, by number.

Each docstring is the claim; each test asserts what is right, and that the claim is not.
"""

import pytest

from course_lib.theory.compute import budget, flops
from course_lib.theory.inputs import hardware
from course_lib.theory.inputs.hardware import ACCELERATORS, Cluster
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.units import format_flop
from course_lib.theory.step import batching

LLAMA2_70B = MODELS["llama2-70b"]


def test_erratum_1():
    """Claim: 6 is the number of multiplies and adds per token.

    It is per token AND per parameter, 2 forward and 4 backward; attention's scores and the look-up
    of an untied embedding are not in it (Kaplan et al. 2020, arXiv:2001.08361, section 2.1).
    """
    n, tokens = LLAMA2_70B.parameters().total - LLAMA2_70B.parameters().embedding, 4096
    exact = flops.training_flops(LLAMA2_70B, 1, tokens)
    assert exact.model_flop - exact.scores_flop == pytest.approx(6 * n * tokens, rel=1e-4)
    assert exact.forward_flop - exact.scores_flop // 3 == pytest.approx(2 * n * tokens, rel=1e-4)
    assert exact.scores_flop > 0
    assert exact.model_flop_per_token > 6 * n > 6


def test_erratum_2():
    """Claim: the total computation is some number of "Tflops" (196 of them).

    An amount is measured in FLOP; FLOP/s is a rate. Amount over rate is time.
    """
    amount, rate = flops.six_nd(1e9, 8 * 4096), 330e12
    assert format_flop(amount) == "196.6 TFLOP"
    assert "/s" not in format_flop(amount)
    assert budget.training_run(amount, 1, rate).time_s == pytest.approx(0.596, rel=1e-3)
    assert budget.achieved_flop_per_s(amount, time_s=0.5) != amount


def test_erratum_6():
    """Claim: an RTX 4090 reaches 330 TFLOP/s.

    That is fp16 with fp16 accumulation; with fp32 accumulation, and in bf16, it is 165.2
    (NVIDIA Ada whitepaper, appendix A).
    """
    peak = ACCELERATORS["RTX4090"].peak_flop_per_s
    assert peak == 165.2e12 != 330e12
    assert peak == pytest.approx(2.52e9 * 64 * 2 * 512, rel=1e-3)
    assert 2 * peak == pytest.approx(330.3e12, rel=1e-3)


def test_erratum_7():
    """Claim: an H100 has 989 TFLOP/s. True of dense bf16 on the SXM board only.

    1979 is the sparse rate, 756 that of the PCIe board, and the best measured matmul reaches 794.5.
    """
    h100 = ACCELERATORS["H100-SXM"]
    assert h100.peak_flop_per_s == pytest.approx(989e12, rel=1e-3)
    assert h100.peak_flop_per_s == pytest.approx(1979e12 / 2, rel=1e-3)
    assert h100.peak_flop_per_s != pytest.approx(756e12, rel=0.1)
    assert Cluster(h100).matmul_flop_per_s == pytest.approx(794.5e12)


def test_erratum_8():
    """Claim: the 4090's link has 32 GB/s and the H100's 900, so the H100 needs 1100 FLOP/byte.

    The first is one way, the second both ways added. One way the H100 has 450: 2198 FLOP/byte.
    """
    pcie, nvlink = ACCELERATORS["RTX4090"].inside, ACCELERATORS["H100-SXM"].inside
    assert pcie.bytes_per_s == pytest.approx(32e9, rel=0.02)
    assert nvlink.bytes_per_s == 450e9 != 900e9
    assert hardware.ridge(989e12, nvlink.bytes_per_s) == pytest.approx(2198, rel=1e-3)
    assert hardware.ridge(989e12, nvlink.bytes_per_s) != pytest.approx(1100, rel=0.5)


def test_erratum_11():
    """Claim: the H200's faster memory raises the ratio of computing to communication.

    FLOPs over network bytes stay as they were; what falls is the ridge of the memory, 295 to 206.
    """
    h100, h200 = ACCELERATORS["H100-SXM"], ACCELERATORS["H200-SXM"]
    network = [hardware.ridge(c.peak_flop_per_s, c.inside.bytes_per_s) for c in (h100, h200)]
    assert network[0] == network[1]
    assert h100.ridge_flop_per_byte == pytest.approx(295, rel=2e-3)
    assert h200.ridge_flop_per_byte == pytest.approx(206, rel=2e-3)
    memory_bound = 10.0  # FLOP/byte: here the faster memory does help
    assert h200.attainable_flop_per_s(memory_bound) > h100.attainable_flop_per_s(memory_bound)


def test_erratum_21():
    """Claim: LLaMA-2 has 80 layers. Only the 70B has; 7B has 32 and 13B 40."""
    layers = {name: MODELS[name].layers for name in ("llama2-7b", "llama2-13b", "llama2-70b")}
    assert layers == {"llama2-7b": 32, "llama2-13b": 40, "llama2-70b": 80}


def test_erratum_24():
    """Claim: full recomputation repeats 3240 layers, 40 times the work.

    Each layer is repeated once, from its stored input: 4/3 of the FLOPs, 8·N·D instead of 6·N·D
    (Narayanan et al. 2021, arXiv:2104.04473). 80·81/2 = 3240 would need all inputs thrown away.
    """
    full = flops.training_flops(LLAMA2_70B, 1, 4096, recompute="full")
    layers = full.model_flop - full.head_flop
    assert full.recompute_flop * 3 == layers
    assert full.hardware_flop / full.model_flop == pytest.approx(4 / 3, rel=0.01)
    assert flops.six_nd(7e10, 1, "full") / flops.six_nd(7e10, 1) == pytest.approx(4 / 3)
    assert full.hardware_flop < 40 * full.model_flop


def test_erratum_25():
    """Claim: each layer of LLaMA-2 70B has 1B parameters. It has 0.8557B."""
    count = LLAMA2_70B.parameters()
    layer = LLAMA2_70B.layer_parameters(0).total
    outside = count.embedding + count.head + LLAMA2_70B.head_parameters().norms
    assert 80 * layer == count.total - outside
    assert layer == pytest.approx(0.8557e9, rel=1e-4)
    assert layer != pytest.approx(1e9, rel=0.1)


def test_erratum_28():
    """Claim, arithmetic reproduced: 196.6 TFLOP take 0.596 s, 80 micro-batches of a layer 48 s.

    It supposes 330 TFLOP/s and full use of them. At the 4090's own 165.2 it is twice as long; the
    traffic of 4 GB at 32 GB/s is 0.125 s, two passes 0.25 s.
    """
    amount = flops.six_nd(1e9, 8 * 4096)
    assert amount == 196_608_000_000_000
    noted = budget.training_run(amount, 1, 330e12).time_s
    assert noted == pytest.approx(0.596, rel=1e-3)
    assert 80 * noted == pytest.approx(48, rel=0.01)
    real = budget.training_run(amount, 1, ACCELERATORS["RTX4090"].peak_flop_per_s).time_s
    assert real == pytest.approx(1.19, rel=1e-3)
    link = hardware.Link("as in the notes", 32e9)
    exchange = 2 * 4e9 / link.bytes_per_s
    assert exchange == 0.25
    assert exchange / noted == pytest.approx(0.42, abs=0.005)  # sent with each micro-batch
    assert exchange / (80 * noted) == pytest.approx(0.005, abs=5e-4)  # summed first


def test_erratum_29():
    """Claim: eight 200 Gb/s ConnectX-6 cards match eight PCIe4 x16 slots.

    200 Gb/s are 25 GB/s for each GPU, 78 % of the slot's nominal 32 GB/s.
    """
    network = hardware.HDR.bytes_per_s
    assert network == 200e9 / 8
    assert network / 32e9 == pytest.approx(0.78, abs=0.005)
    assert network < hardware.PCIE4.bytes_per_s


def test_erratum_30():
    """Claim: a global batch of 16384 sequences is ordinary.

    16384 × 4096 tokens are 67.1M: 16 times LLaMA-2's 4M and 4 times Llama 3 405B's 16M.
    """
    tokens = batching.Batching(10**6, 16384, sequence=MODELS["llama2-70b"].context).tokens_per_batch
    assert tokens == 67_108_864
    assert tokens == 16 * 4 * 2**20 == 4 * 16 * 2**20


def test_erratum_56():
    """Claim: GPT-2 Large has 762M parameters, as the paper says. It has 774,030,080."""
    large, xl = (MODELS[name].parameters().total for name in ("gpt2-774m", "gpt2-1.5b"))
    assert (large, xl) == (774_030_080, 1_557_611_200)
    assert large != pytest.approx(762e6, rel=0.01)
