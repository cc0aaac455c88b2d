"""Training with rounded products: what a scale is for, by another seed than the chapter's."""

import pytest

from course_lib import demos


@pytest.fixture(scope="module")
def result():
    return demos.run("fp8", ranks=1, stream=False, seed=1)


def test_a_scale_for_each_tensor_keeps_the_loss_of_fp32(result):
    last = result.last
    assert last["bf16"] == pytest.approx(last["fp32"], rel=0.01)
    assert last["fp8"] == pytest.approx(last["fp32"], rel=0.02)
    assert last["fp8, no scale"] > 1.1 * last["fp32"]


def test_all_versions_start_alike_and_none_is_another(result):
    first = [losses[0] for losses in result.losses.values()]
    assert first == pytest.approx([first[0]] * 4, rel=0.01)
    assert len({tuple(losses) for losses in result.losses.values()}) == 4
