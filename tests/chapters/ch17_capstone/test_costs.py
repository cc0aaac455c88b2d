"""Generating tokens, their price, and a backward pass whose kernels give way."""

import re

import pytest
from every import every
from refused import accepted

from course_lib.chapters.ch17_capstone import panels
from course_lib.chapters.ch17_capstone.costs import (
    PRICES,
    Decoding,
    TokenCost,
    most_sequences,
    sharded_backward,
)
from course_lib.chapters.ch17_capstone.streams import Task, shared_timeline
from course_lib.theory.compute.flops import training_flops
from course_lib.theory.inputs.hardware import ACCELERATORS, accelerator
from course_lib.theory.inputs.models import MODELS

LLAMA, RTX, H100 = MODELS["llama2-70b"], accelerator("RTX4090"), accelerator("H100-SXM")


def test_a_token_of_70b_on_eight_4090_by_hand():
    one = Decoding(LLAMA, RTX, tp=8)
    assert one.weight_bytes == pytest.approx(2 * 68.7145e9 / 8, rel=1e-5)
    assert one.read_s == pytest.approx(0.0170, rel=5e-3)
    assert one.sent_bytes == 160 * 8192 * 2 * 2 * 7 / 8 == pytest.approx(4.59e6, rel=1e-3)
    assert one.transfer_s == pytest.approx(0.15e-3, rel=0.03)
    assert one.latency_s == pytest.approx(160 * 14 * 5.7e-6)
    assert one.compute_s < one.read_s / 100


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


ONE = Decoding(MODELS["llama2-70b"], accelerator("H100-SXM"), tp=8, batch=32, context=4096)


def test_training_by_hand():
    # 6 · 68.98e9 FLOP a token, 8 · 989.4 TFLOP/s · 0.4; 8 GPUs at 2 USD.
    rate = 8 * 989.4e12 * 0.4 / (6 * 68_976_648_192)
    cost = TokenCost(ONE, 2.0)
    assert cost.trained_per_s == pytest.approx(rate)
    assert cost.training_usd == pytest.approx(1e6 / rate / 3600 * 16)
    half = TokenCost(Decoding(ONE.shape, ONE.accelerator, 4, 32, 4096), 2.0)
    assert half.training_usd == pytest.approx(cost.training_usd)
    assert half.generating_usd < cost.generating_usd


def test_every_price_says_when_and_who():
    assert set(PRICES) <= set(ACCELERATORS)
    for price in PRICES.values():
        assert re.fullmatch(r"[A-Z][a-z]+ 20\d\d", price.date) and "." in price.source
        assert price.source in price.explain()


BACKWARD = Task("backward", "computing", 0.095, {"processor": 1.0})
MESSAGE = Task("message", "messages", 0.034, {"link": 1.0})
PREPARE = Task("prepare", "messages", 0.004, {"processor": 1.0}, weight=0.05)


def run(prepare, layers=8):
    return shared_timeline(sharded_backward(layers, BACKWARD, MESSAGE, MESSAGE, prepare=prepare))


def test_small_kernels_give_way_and_the_computation_waits_in_the_end():
    effect = run(PREPARE)
    assert effect.slowdown("prepare 5") == pytest.approx(21)  # 1 + 1 / 0.05
    # All links of the chain: late scatter, late gather, idle computing stream.
    assert effect.end_s("scatter 5") > run(None).end_s("scatter 5")
    assert effect.end_s("gather 3") > run(None).end_s("gather 3")
    assert effect.waits_s("computing") > 3 * run(None).waits_s("computing")
    assert effect.total_s > 1.2 * run(None).total_s


def test_a_layer_is_computed_when_it_is_there_and_two_are_whole_at_most():
    effect = run(PREPARE, layers=5)
    for layer in range(5, 0, -1):
        assert effect.start_s(f"backward {layer}") >= effect.end_s(f"gather {layer}")
        if layer > 2:
            assert effect.start_s(f"gather {layer - 2}") >= effect.end_s(f"scatter {layer}")


def test_nonsense_is_refused_in_a_sentence():
    refused = [
        (lambda: Decoding(LLAMA, H100, tp=0), "tp must be at least 1"),
        (lambda: Decoding(LLAMA, H100, tp=3), "heads 64 is not divisible by tp 3"),
        (lambda: Decoding(MODELS["mixtral-8x7b"], H100), "take a dense model"),
        (lambda: most_sequences(Decoding(LLAMA, H100)), "context must be at least 1"),
        (lambda: TokenCost(ONE, 2.0, 40), "mfu must be at most 1"),
        (lambda: run(None, layers=0), "layers must be at least 1"),
    ]
    assert not accepted(refused)


# --- the answers that the texts give to their panels ---------------------------------------------


def test_copies_of_a_small_weight_cost_what_section_17_4_says():
    parts = {part: panels.give_way(weight=1 / part) for part in (1, 10, 20, 100)}
    total_s = {part: made.result.total_s for part, made in parts.items()}
    assert total_s[10] / total_s[1] < 1.001
    longer = {part: round(100 * (size / 0.924 - 1)) for part, size in total_s.items()}
    assert (longer[10], longer[20], longer[100]) == (3, 21, 42)
    for number, ends in ((0, "836 ms"), (20, "924 ms")):
        text = panels.give_way(multiprocessors=number).text
        assert f"without small kernels: {ends}" in text


def test_full_batches_cost_what_section_17_6_says():
    full = panels.token_cost(batch=398)
    assert "at most 398 sequences" in full.text
    cheap = panels.token_cost(card="RTX4090", cents=15, batch=34)
    assert cheap.result.generating_usd == pytest.approx(full.result.generating_usd, rel=0.05)
    long = panels.token_cost(batch=49, context=32_768)
    assert "at most 49 sequences" in long.text
    assert round(long.result.generating_usd / full.result.generating_usd) == 7
