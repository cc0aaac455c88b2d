"""The price of a million tokens, by hand."""

import pytest
from probes import Given, Probe, by_name

from course_lib.chapters.ch17_capstone.decoding import Decoding
from course_lib.chapters.ch17_capstone.token_cost import TokenCost
from course_lib.theory.inputs.hardware import accelerator
from course_lib.theory.inputs.models import MODELS

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


REFUSED = [
    (lambda: TokenCost(ONE, 2.0, 40), "mfu must be at most 1"),
]
PROBES = by_name(
    Probe(
        TokenCost,
        {"decoding": ONE, "gpu_hour_usd": 2.0},
        {
            "decoding": Given(Decoding(ONE.shape, ONE.accelerator, 4)),
            "gpu_hour_usd": 3.0,
            "mfu": 0.3,
        },
        see=lambda cost: [cost.training_usd, cost.generating_usd],
    ),
)
