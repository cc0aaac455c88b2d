"""The search for the batch that fits, beside the theory's answer."""

import pytest
import torch
from together import explained

from course_lib import demos, launch
from course_lib.demos import largest_batch as demo
from course_lib.measure.largest_batch import fits_on_gpu, largest_batch


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


@pytest.mark.parametrize("options", [{"limit_mb": 40.0}, {"limit_mb": 25.0, "model": "2x64x4"}])
def test_the_batch_that_fits_is_the_predicted_one(options):
    result = demos.run("largest_batch", ranks=1, stream=False, sequence=32, **options)
    assert abs(result.found - result.predicted) <= max(1, 0.02 * result.predicted)
    peaks = {batch: peak for batch, peak, _ in result.tries}
    assert peaks[result.found] <= result.limit_bytes < peaks[result.found + 1]
    assert f"predicted {result.predicted}" in result.report()


def test_a_wrong_prediction_is_refused():
    with pytest.raises(AssertionError, match="found 90 samples, predicted 100"):
        demo.Result(1, [], 90, 100).verify()
    demo.Result(1, [], 98, 100).verify()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has an end of its own")
def test_a_cpu_needs_a_limit():
    with pytest.raises(launch.RankFailed, match="limit_mb 0 needs a GPU"):
        demos.run("largest_batch", ranks=1, stream=False, limit_mb=0.0)


def test_bad_options_are_explained():
    cases = [({"limit_mb": -1}, "limit_mb must be at least 0"), ({"most": 0}, "most must be")]
    explained(demo.Options, [*cases, ({"model": "x"}, "neither one of")])
