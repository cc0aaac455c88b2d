"""Batches, steps and tails, published numbers, and torch's own sampler and loader."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probes import Probe, by_name
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from course_lib.theory.step import batching
from course_lib.theory.step.batching import Batching, rank_samples

COUNTS = st.integers(1, 400)
SMALL = st.integers(1, 9)


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


def test_explain_counts_tokens_where_a_sample_is_a_sequence():
    assert "tokens" not in Batching(1000, 5, 2, 2, 4).explain()
    assert "tokens per batch = 80 × sequence 4096 = 327,680" in (
        Batching(1000, 5, 2, 2, 4, sequence=4096).explain()
    )


@given(samples=COUNTS, micro_batch=SMALL, dp=SMALL, drop_last=st.booleans())
def test_steps_and_samples_are_those_of_torch(samples, micro_batch, dp, drop_last):
    for rank in range(dp):
        sampler = DistributedSampler(range(samples), dp, rank, shuffle=False, drop_last=drop_last)
        assert rank_samples(samples, dp, rank, drop_last) == list(sampler)
    if samples >= micro_batch * dp or not drop_last:
        loader = DataLoader(range(samples), micro_batch, sampler=sampler, drop_last=drop_last)
        ours = Batching(samples, micro_batch, gpus_per_node=dp, drop_last=drop_last).epoch()
        assert ours.micro_steps == len(loader)


def test_learning_rate_rules():
    # Goyal et al. 2017: 0.1 at 256 becomes 3.2 at 8192.
    assert batching.scaled_learning_rate(0.1, 256, 8192, "linear") == pytest.approx(3.2)
    assert batching.scaled_learning_rate(0.1, 256, 1024, "sqrt") == pytest.approx(0.2)


@given(critical=st.floats(1, 1e6), batch=st.integers(1, 10**6))
def test_learning_rates_level_off_at_the_critical_batch(critical, batch):
    # Half of the largest rate at the critical batch itself, by 1 / (1 + c / B).
    largest = 3.0
    here = largest / (1 + critical / batch)
    found = batching.scaled_learning_rate(here, batch, 7, "linear", critical_batch=critical)
    assert found == pytest.approx(largest / (1 + critical / 7), rel=1e-6)


@given(ratio=st.floats(1e-3, 1e3))
def test_batch_cost_lies_on_mccandlish_s_hyperbola(ratio):
    cost = batching.batch_cost(ratio, critical_batch=1.0)
    assert (cost.steps - 1) * (cost.samples - 1) == pytest.approx(1.0)


@given(signal=st.floats(0.1, 10), noise=st.floats(0.1, 100))
def test_noise_scale_solves_its_two_equations(signal, noise):
    found = batching.noise_scale(2, signal + noise / 2, 8, signal + noise / 8)
    assert found == pytest.approx(noise / signal, rel=1e-6)


REFUSED = [
    (lambda: rank_samples(8, dp=2, rank=2), "rank must be at most 1, got 2"),
    (lambda: Batching(samples=10, gpus_per_node=8, tp=3), r"world 8 is not divisible by"),
    (lambda: Batching(samples=7, micro_batch=8, drop_last=True), "would drop them all"),
    (lambda: batching.noise_scale(2, 8.0, 8, 1.0), "average the squared norms over more batches"),
    (lambda: batching.noise_scale(2, 1.0, 8, 8.0), "leaves no noise"),
]
PROBES = by_name(
    Probe(
        Batching,
        {"samples": 1003, "micro_batch": 4, "nodes": 4, "gpus_per_node": 8},
        see=lambda cut: (cut.epoch(), cut.tokens_per_batch),
    )
)
RECORDS = {
    "Epoch": [
        Batching(*case).epoch()
        for case in ((1003, 4, 2, 4), (2000, 3, 4, 1), (1003, 4, 2, 1, 3, 1, 1, 1, 1, True))
    ],
    "BatchCost": [batching.batch_cost(1, 2), batching.batch_cost(3, 2)],
}
