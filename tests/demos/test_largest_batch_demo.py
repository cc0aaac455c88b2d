"""The search for the batch that fits, beside the theory's answer."""

from functools import partial
from itertools import product

import pytest
import torch
from together import runs

from course_lib import demos, launch
from course_lib.demos import largest_batch as demo
from course_lib.measure.peak import fits_on_gpu, largest_batch, peak_bytes


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 7, 8, 100, 127, 128, 1000, 5000])
def test_the_search_finds_the_limit_in_few_tries(limit):
    tried = []

    def fits(batch):
        tried.append(batch)
        return batch <= limit

    assert largest_batch(fits, most=1000) == min(limit, 1000)
    assert len(tried) == len(set(tried)) <= 2 * max(1, limit).bit_length() + 1
    assert max(tried) <= 1000


def test_out_of_memory_means_that_it_does_not_fit(monkeypatch):
    def full():
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    assert fits_on_gpu(lambda: None)
    assert not fits_on_gpu(full)
    with pytest.raises(ZeroDivisionError):
        fits_on_gpu(lambda: 1 / 0)


BATCHES, MODELS = (8, 15, 44), ("small", "tiny")


def peaks(technique):
    """On a rank: by model and batch, the bytes of an update beyond those that are predicted."""
    found, rank = {}, launch.init()
    for model in MODELS:
        options = demo.Options(technique=technique, model=model)
        trained = demo.Trained(options, rank)
        for batch in BATCHES:
            rows = trained.rows(batch)
            peak = peak_bytes(partial(trained.update, rows), [*trained.states(), *rows])
            found[model, batch] = peak - demo.predicted_bytes(options, batch, rank.world)
    return found


@pytest.mark.parametrize(("technique", "ranks"), [("alone", 1), ("ddp", 2), ("fsdp", 2)])
def test_every_batch_needs_what_is_predicted(technique, ranks):
    """A sample needs 300 kB or more, so the largest batch is right at nearly every limit."""
    found = launch.run(peaks, technique, ranks=ranks)[0]
    assert len(found) == len(MODELS) * len(BATCHES)
    assert all(0 <= more < 1000 for more in found.values()), found


def test_the_batch_that_fits_is_the_predicted_one():
    limits = {"small": (20, 30, 60), "tiny": (4, 10)}
    cases = {
        (model, limit): {"model": model, "limit_mb": float(limit)}
        for model, each in limits.items()
        for limit in each
    }
    for case, result in runs("largest_batch", cases, ranks=1).items():
        assert result.found == result.predicted, case
        size = {batch: peak for batch, peak, _ in result.tries}
        assert size[result.found] <= result.limit_bytes < size[result.found + 1]
        assert f"predicted {result.predicted}" in result.report()


def test_fsdp_trains_what_ddp_cannot_and_a_larger_batch():
    """As in the benchmark that note 002 quotes."""
    pairs = product(("ddp", "fsdp"), (14.0, 20.0))
    cases = {pair: {"technique": pair[0], "limit_mb": pair[1]} for pair in pairs}
    found = [result.found for result in runs("largest_batch", cases).values()]
    assert found == [0, 5, 6, 11]


def test_a_wrong_prediction_is_refused():
    with pytest.raises(AssertionError, match="the 90 samples that fit differs from 100, predicted"):
        demo.judged(90, 100).verify()
    demo.judged(98, 100).verify()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has an end of its own")
def test_a_cpu_needs_a_limit():
    with pytest.raises(launch.RankFailed, match="limit_mb 0 needs a GPU"):
        demos.run("largest_batch", ranks=1, stream=False, limit_mb=0.0)
