"""Decoding: by hand for LLaMA-2 70B, and by a model's own parameters."""

import pytest
from every import every
from probes import Given, Probe, by_name

from course_lib.chapters.ch17_capstone.decoding import Decoding, most_sequences
from course_lib.theory.compute.flops import training_flops
from course_lib.theory.inputs.hardware import Link, accelerator
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.network import collectives

LLAMA, RTX, H100 = MODELS["llama2-70b"], accelerator("RTX4090"), accelerator("H100-SXM")


def test_a_token_of_70b_on_eight_4090_by_hand():
    one = Decoding(LLAMA, RTX, tp=8)
    assert one.weight_bytes == pytest.approx(2 * 68.7145e9 / 8, rel=1e-5)
    assert one.read_s == pytest.approx(0.0170, rel=5e-3)
    assert one.sent_bytes == 160 * 8192 * 2 * 2 * 7 / 8 == pytest.approx(4.59e6, rel=1e-3)
    assert one.transfer_s == pytest.approx(0.15e-3, rel=0.03)
    assert one.latency_s == pytest.approx(160 * 14 * 5.7e-6)
    assert one.compute_s < one.read_s / 100


def test_training_a_sequence_sends_as_much_as_4096_times_two_tokens():
    # Four sums a layer instead of two, for 4096 tokens instead of one: 37.6 GB, 1.19 s on PCIe.
    training = 80 * collectives.tensor_parallel_bytes(1, 4096, 8192, 8)
    assert training == pytest.approx(37.6e9, rel=1e-3)
    assert training == 2 * 4096 * Decoding(LLAMA, RTX, tp=8).sent_bytes
    assert training / RTX.inside.bytes_per_s == pytest.approx(1.19, rel=5e-3)


def test_a_token_is_a_forward_pass_over_one_token():
    # Another formula, which counts the scores of the one token with itself as well.
    forward = training_flops(LLAMA, 1, 1).forward_flop
    scores = 4 * LLAMA.layers * LLAMA.hidden
    assert 8 * Decoding(LLAMA, H100, tp=8).flop == forward - scores


def test_the_cache_of_llama2_70b_is_320_kib_a_token():
    # 2 · 80 layers · 8 heads · 128 · 2 bytes (Ainslie et al. 2023, arXiv:2305.13245: GQA-8).
    one = Decoding(LLAMA, H100, context=1)
    assert one.cache_bytes == 2 * 80 * 8 * 128 * 2 == 320 * 1024
    assert Decoding(LLAMA, H100, tp=16, context=1).cache_bytes == one.cache_bytes / 8  # two copies


def test_a_batch_reads_the_weights_once():
    one, many = (Decoding(LLAMA, H100, tp=8, batch=batch) for batch in (1, 64))
    assert one.weight_bytes == many.weight_bytes and one.read_s == many.read_s
    assert many.flop_per_byte == pytest.approx(64 * one.flop_per_byte)
    assert one.flop_per_byte == pytest.approx(1, rel=0.01)


def test_a_tied_embedding_is_read_as_the_head():
    small = MODELS["gpt2-124m"]
    positions = small.context * small.hidden
    assert Decoding(small, H100).weight_bytes == 2 * (small.parameters().total - positions)


def test_what_fits_is_what_is_left():
    longer = Decoding(LLAMA, accelerator("H200-SXM"), tp=8, context=4096)
    count = most_sequences(longer, 1e9)
    used = LLAMA.parameters().total * 2 / 8 + count * longer.cache_bytes + 1e9
    assert 0 <= 141e9 - used < longer.cache_bytes
    assert most_sequences(Decoding(LLAMA, RTX, tp=2, context=10)) == 0


@every(("batch", "first"), [(1, "weights"), (500, "computing")])
def test_what_it_waits_for_is_the_whole_time(batch, first):
    one = Decoding(LLAMA, RTX, tp=8, batch=batch, context=10)
    waits = one.waits()
    assert sum(waits.values()) == pytest.approx(one.token_s)
    assert next(iter(waits)) == first and ("keys and values" in waits) == (first == "weights")


def test_it_explains_itself():
    text = Decoding(LLAMA, RTX, tp=8).explain()
    assert "4.59 MB in 160 sums on PCIe4 x16" in text and "33.4 tokens/s" in text


def _leaves(one):
    return [one.weight_bytes, one.cache_bytes, one.flop, one.sent_bytes, one.token_s]


BASE = {"shape": MODELS["llama2-7b"], "accelerator": H100, "tp": 2, "context": 100}
REFUSED = [
    (lambda: Decoding(LLAMA, H100, tp=0), "tp must be at least 1"),
    (lambda: Decoding(LLAMA, H100, tp=3), "heads 64 is not divisible by tp 3"),
    (lambda: Decoding(MODELS["mixtral-8x7b"], H100), "take a dense model"),
    (lambda: most_sequences(Decoding(LLAMA, H100)), "context must be at least 1"),
]
PROBES = by_name(
    Probe(
        Decoding,
        BASE,
        {
            "shape": Given(MODELS["llama2-13b"]),
            "accelerator": Given(RTX),
            "tp": 4,
            "batch": 2,
            "context": 50,
            "element_bytes": 1,
            "link": Given(Link("slow", 1e9, 1e-3)),
        },
        see=_leaves,
    ),
    Probe(
        most_sequences,
        {"decoding": Decoding(**BASE)},
        {"decoding": Given(Decoding(**BASE | {"context": 7})), "reserve_bytes": 1e9},
    ),
)
