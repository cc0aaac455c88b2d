"""Generating tokens, their price, and a backward pass whose kernels give way."""

import re
from dataclasses import replace

import pytest
from every import every
from probes import Given, Probe, by_name

from course_lib.chapters.ch17_capstone.costs import (
    PRICES,
    Decoding,
    HourPrice,
    TokenCost,
    most_sequences,
    sharded_backward,
)
from course_lib.theory.compute.flops import training_flops
from course_lib.theory.inputs.hardware import ACCELERATORS, Cluster, Link, accelerator
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.network import collectives
from course_lib.theory.step.streams import Task, shared_timeline

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


ONE = Decoding(MODELS["llama2-70b"], accelerator("H100-SXM"), tp=8, batch=32, context=4096)


def test_training_by_hand():
    # 6 · 68.98e9 FLOP a token, 8 · 989.4 TFLOP/s · 0.4; 8 GPUs at 2 USD.
    rate = 8 * 989.4e12 * 0.4 / (6 * 68_976_648_192)
    cost = TokenCost(ONE, 2.0)
    assert cost.trained_per_s == pytest.approx(rate)
    assert cost.training_usd == pytest.approx(1e6 / rate / 3600 * 16)


def test_training_costs_the_same_on_any_number_of_cards_and_generating_does_not():
    half = TokenCost(Decoding(ONE.shape, ONE.accelerator, 4, 32, 4096), 2.0)
    assert half.training_usd == pytest.approx(TokenCost(ONE, 2.0).training_usd)
    assert half.generating_usd < TokenCost(ONE, 2.0).generating_usd


def test_every_price_says_when_and_who():
    assert set(PRICES) <= set(ACCELERATORS)
    for price in PRICES.values():
        assert re.fullmatch(r"[A-Z][a-z]+ 20\d\d", price.date) and "." in price.source
        assert price.source in price.explain()


def test_deepseeks_price_is_the_default_of_a_cluster():
    assert Cluster(accelerator("H800-SXM")).gpu_hour_usd == PRICES["H800-SXM"].usd


BACKWARD = Task("backward", "computing", 0.095, {"processor": 1.0})
MESSAGE = Task("message", "messages", 0.034, {"link": 1.0})
PREPARE = Task("prepare", "messages", 0.004, {"processor": 1.0}, weight=0.05)


def run(prepare, layers=8):
    return shared_timeline(sharded_backward(layers, BACKWARD, MESSAGE, MESSAGE, prepare=prepare))


def test_alone_all_messages_hide_behind_the_computation():
    free = run(None)
    assert free.total_s == free.ideal_s == pytest.approx(0.034 + 8 * 0.095 + 0.034)
    assert free.waits_s("computing") == pytest.approx(2 * 0.034)


def test_small_kernels_give_way_and_the_computation_waits_in_the_end():
    effect = run(PREPARE)
    assert effect.slowdown("prepare 5") == pytest.approx(21)  # 1 + 1 / 0.05
    # All links of the chain: late scatter, late gather, idle computing stream.
    assert effect.end_s("scatter 5") > run(None).end_s("scatter 5")
    assert effect.end_s("gather 3") > run(None).end_s("gather 3")
    assert effect.waits_s("computing") > 3 * run(None).waits_s("computing")
    assert effect.total_s > 1.2 * run(None).total_s


def test_if_large_kernels_gave_way_instead_little_would_be_lost():
    preferred = run(replace(PREPARE, weight=20))
    assert preferred.total_s < 1.05 * run(None).total_s


def test_a_layer_is_computed_when_it_is_there_and_two_are_whole_at_most():
    effect = run(PREPARE, layers=5)
    for layer in range(5, 0, -1):
        assert effect.start_s(f"backward {layer}") >= effect.end_s(f"gather {layer}")
        if layer > 2:
            assert effect.start_s(f"gather {layer - 2}") >= effect.end_s(f"scatter {layer}")


REFUSED = [
    (lambda: Decoding(LLAMA, H100, tp=0), "tp must be at least 1"),
    (lambda: Decoding(LLAMA, H100, tp=3), "heads 64 is not divisible by tp 3"),
    (lambda: Decoding(MODELS["mixtral-8x7b"], H100), "take a dense model"),
    (lambda: most_sequences(Decoding(LLAMA, H100)), "context must be at least 1"),
    (lambda: TokenCost(ONE, 2.0, 40), "mfu must be at most 1"),
    (lambda: HourPrice(-1, "May 2026", "nobody"), "usd must be at least 0"),
    (lambda: run(None, layers=0), "layers must be at least 1"),
]

PROBES = by_name(
    Probe(
        Decoding,
        BASE,
        {
            "shape": Given(MODELS["llama2-13b"]),
            "accelerator": Given(RTX),
            "link": Given(Link("slow", 1e9, 1e-3)),
        },
        see=_leaves,
    ),
    Probe(
        most_sequences,
        {"decoding": Decoding(**BASE)},
        {"decoding": Given(Decoding(**BASE | {"context": 7})), "reserve_bytes": 1e9},
    ),
    Probe(
        TokenCost,
        {"decoding": ONE, "gpu_hour_usd": 2.0},
        {"decoding": Given(Decoding(ONE.shape, ONE.accelerator, 4))},
        see=lambda cost: [cost.training_usd, cost.generating_usd],
    ),
    Probe(
        HourPrice,
        {"usd": 2.0, "date": "May 2026", "source": "a"},
        see=lambda price: price.explain(),
    ),
    Probe(
        sharded_backward,
        {"layers": 3, "backward": BACKWARD, "gather": MESSAGE, "scatter": MESSAGE},
        {
            "backward": Given(PREPARE),
            "gather": Given(PREPARE),
            "scatter": Given(PREPARE),
            "prepare": Given(PREPARE),
        },
        see=lambda tasks: [vars(task) for task in tasks],
    ),
)
