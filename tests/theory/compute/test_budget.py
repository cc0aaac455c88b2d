"""Time, money and utilisation against arithmetic."""

import pytest
from every import every
from probes import Probe, by_name

from course_lib.theory.compute import budget


def test_a_run_is_time_gpu_hours_and_money():
    run = budget.training_run(8.64e20, gpus=100, flop_per_s_per_gpu=1e14, gpu_hour_usd=3)
    assert (run.time_s, run.days, run.gpu_hours, run.cost_usd) == (86400, 1, 2400, 7200)
    for word in ("86,400 s", "1.00 days", "100 GPUs × 24.0 h", "2,400", "7,200 USD"):
        assert word in run.explain()
    measured = budget.training_run_at(8.64e9, gpus=100, tokens_per_s_per_gpu=1000)
    assert measured == budget.TrainingRun(86400, 100, 2.0)
    assert budget.training_run_at(8.64e9, 100, 1000, gpu_hour_usd=3) == run


@every(
    ("flop", "parameters"),
    [(1.92e19, 400e6), (1.21e20, 1e9), (1.23e22, 10e9), (5.76e23, 67e9), (3.85e24, 175e9)],
)
def test_the_best_size_is_chinchillas(flop, parameters):
    # arXiv:2203.15556, table 3.
    assert budget.compute_optimal_parameters(flop) == pytest.approx(parameters, rel=0.04)


TIMES = ({"before_s": 4.0, "after_s": 3.0}, {"before_s": 5.0, "after_s": 2.0})


def test_a_million_tokens_on_deepseeks_own_terms():
    # arXiv:2412.19437, tables 1 and section 2: 14.8T tokens of pre-training cost 2,664K H800-hours
    # and 5.328M USD, 0.36 USD a million.
    rate = 14.8e12 / (2_664_000 * 3600 / 2048)
    assert budget.usd_per_million_tokens(rate, 2048, 2.0) == pytest.approx(0.36, abs=1e-9)


def test_at_the_even_price_a_token_costs_the_same():
    other = budget.even_price(2.0, 1000.0, 250.0)
    costs = [budget.usd_per_million_tokens(*gpu) for gpu in ((1000, 1, 2.0), (250, 1, other))]
    assert other == 0.5 and costs[0] == costs[1]


REFUSED = [
    (lambda: budget.training_run(1e50, 1, 1), "flop must be at most 1e"),
    (lambda: budget.saved_fraction(0, 1), "before_s"),
    (lambda: budget.throughput_gain(1, 0), "after_s"),
]
PROBES = by_name(
    Probe(budget.saved_fraction, *TIMES, signed=True),
    Probe(budget.throughput_gain, *TIMES, signed=True),
)
