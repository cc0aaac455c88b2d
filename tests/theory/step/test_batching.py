"""Batches, steps and tails, and published numbers."""

import dataclasses

import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st
from probes import Probe, by_name

from course_lib.theory.step import batching
from course_lib.theory.step.batching import Batching, rank_samples

COUNTS = st.integers(1, 400)
SMALL = st.integers(1, 9)


def test_two_hundred_steps_are_one_hundred_updates():
    epoch = Batching(samples=1000, micro_batch=5, accumulation=2).epoch()
    assert (epoch.micro_steps, epoch.updates) == (200, 100)


def test_global_batch_counts_data_parallel_ranks_only():
    settings = {"samples": 10**6, "micro_batch": 4, "accumulation": 8, "gpus_per_node": 8}
    assert Batching(**settings, nodes=2).global_batch == 512
    assert Batching(**settings, nodes=8, tp=8, pp=4).global_batch == 64


def test_llama2_batch_has_four_million_tokens():
    # 4M tokens at context 4096: github.com/meta-llama/llama, MODEL_CARD.md.
    batch = Batching(samples=10**6, micro_batch=1024, sequence=4096)
    assert batch.tokens_per_batch == 4_194_304


@given(samples=COUNTS, micro_batch=SMALL, accumulation=SMALL, dp=SMALL, drop_last=st.booleans())
def test_every_sample_is_accounted_for(samples, micro_batch, accumulation, dp, drop_last):
    if drop_last and samples < micro_batch * accumulation * dp:
        return
    batch = Batching(samples, micro_batch, accumulation, gpus_per_node=dp, drop_last=drop_last)
    epoch = batch.epoch()
    assert epoch.samples_per_rank * dp == samples + epoch.repeated - epoch.dropped
    assert not (epoch.repeated and epoch.dropped)
    full_steps = (epoch.micro_steps - 1) * micro_batch
    assert full_steps + epoch.last_micro_batch == epoch.samples_per_rank
    assert (epoch.updates - 1) * accumulation + epoch.last_window == epoch.micro_steps
    assert 1 <= epoch.last_micro_batch <= micro_batch
    assert 1 <= epoch.last_window <= accumulation


@every("field", [f.name for f in dataclasses.fields(Batching) if f.name != "drop_last"])
def test_each_count_changes_a_result(field):
    base = {"samples": 1003, "nodes": 4, "gpus_per_node": 4}
    changed = {**base, field: base.get(field, 1) * 2}
    assert Batching(**base).explain() != Batching(**changed).explain()


def test_explain_counts_tokens_where_a_sample_is_a_sequence():
    assert "tokens" not in Batching(1000, 5, 2, 2, 4).explain()
    assert "tokens per batch = 80 × sequence 4096 = 327,680" in (
        Batching(1000, 5, 2, 2, 4, sequence=4096).explain()
    )


@every("bad", [0, -1, 2.0, "4", True, None, 10**30])
@every("field", ["samples", "micro_batch", "accumulation", "nodes", "tp"])
def test_bad_counts_are_named(field, bad):
    with pytest.raises(ValueError, match=field):
        Batching(**{"samples": 10, field: bad})


def test_a_rank_beyond_the_last_is_refused():
    assert batching.rank_samples(8, dp=2, rank=1) == [1, 3, 5, 7]
    with pytest.raises(ValueError, match="rank must be at most 1, got 2"):
        batching.rank_samples(8, dp=2, rank=2)


def test_learning_rate_rules():
    # Goyal et al. 2017: 0.1 at 256 becomes 3.2 at 8192.
    assert batching.scaled_learning_rate(0.1, 256, 8192, "linear") == pytest.approx(3.2)
    assert batching.scaled_learning_rate(0.1, 256, 1024, "sqrt") == pytest.approx(0.2)
    with pytest.raises(ValueError, match="did you mean 'linear'"):
        batching.scaled_learning_rate(0.1, 256, 1024, "liner")


@given(critical=st.floats(1, 1e6), batch=st.integers(1, 10**6))
def test_learning_rates_level_off_at_the_critical_batch(critical, batch):
    # Half of the largest rate at the critical batch itself, by 1 / (1 + c / B).
    largest = 3.0
    here = largest / (1 + critical / batch)
    found = batching.scaled_learning_rate(here, batch, 7, "linear", critical_batch=critical)
    assert found == pytest.approx(largest / (1 + critical / 7), rel=1e-6)


def test_far_below_the_critical_batch_the_rules_are_the_plain_ones():
    for rule in ("linear", "sqrt"):
        plain = batching.scaled_learning_rate(0.1, 256, 1024, rule)
        limited = batching.scaled_learning_rate(0.1, 256, 1024, rule, critical_batch=1e9)
        assert limited == pytest.approx(plain, rel=1e-5)


def test_batch_cost_at_the_critical_batch_is_two_of_each():
    cost = batching.batch_cost(5.0, critical_batch=5.0)
    assert (cost.steps, cost.samples) == (2.0, 2.0)


@given(ratio=st.floats(1e-3, 1e3))
def test_batch_cost_lies_on_mccandlish_s_hyperbola(ratio):
    cost = batching.batch_cost(ratio, critical_batch=1.0)
    assert (cost.steps - 1) * (cost.samples - 1) == pytest.approx(1.0)


@given(signal=st.floats(0.1, 10), noise=st.floats(0.1, 100))
def test_noise_scale_solves_its_two_equations(signal, noise):
    found = batching.noise_scale(2, signal + noise / 2, 8, signal + noise / 8)
    assert found == pytest.approx(noise / signal, rel=1e-6)


REFUSED = [
    (
        lambda: Batching(samples=10, gpus_per_node=8, tp=3),
        r"world 8 is not divisible by tp\*pp\*cp 3",
    ),
    (lambda: Batching(samples=7, micro_batch=8, drop_last=True), "would drop them all"),
    (lambda: batching.noise_scale(2, 8.0, 8, 1.0), "average the squared norms over more batches"),
    (lambda: batching.noise_scale(2, 1.0, 8, 8.0), "leaves no noise"),
]
PROBES = by_name(
    Probe(
        Batching,
        {"samples": 1003, "micro_batch": 4, "nodes": 4, "gpus_per_node": 8},
        {
            "samples": 2000,
            "micro_batch": 5,
            "accumulation": 2,
            "nodes": 8,
            "gpus_per_node": 4,
            "tp": 2,
            "pp": 2,
            "cp": 2,
            "sequence": 512,
            "drop_last": True,
        },
        see=lambda cut: (cut.epoch(), cut.tokens_per_batch),
    ),
    Probe(
        rank_samples,
        {"samples": 10, "dp": 3, "rank": 1},
        {"samples": 20, "dp": 2, "rank": 0, "drop_last": True},
    ),
    Probe(
        batching.scaled_learning_rate,
        {"base": 0.1, "base_batch": 256, "batch": 512, "rule": "linear"},
        {"base": 0.2, "base_batch": 128, "batch": 64, "rule": "sqrt", "critical_batch": 300.0},
    ),
    Probe(
        batching.batch_cost,
        {"batch": 1.0, "critical_batch": 2.0},
        {"batch": 3.0, "critical_batch": 5.0},
    ),
    Probe(
        batching.noise_scale,
        {"small": 1, "square_small": 9.0, "big": 10, "square_big": 2.0},
        {"small": 2, "square_small": 8.0, "big": 20, "square_big": 3.0},
    ),
)
RECORDS = {
    "Epoch": [
        Batching(*case).epoch()
        for case in ((1003, 4, 2, 4), (2000, 3, 4, 1), (1003, 4, 2, 1, 3, 1, 1, 1, 1, True))
    ],
    "BatchCost": [batching.batch_cost(1, 2), batching.batch_cost(3, 2)],
}
