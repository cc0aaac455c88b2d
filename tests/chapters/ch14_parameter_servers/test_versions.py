"""Versions of the weights in pipelines with and without a flush."""

import pytest
from probes import Probe, by_name

from course_lib.chapters.ch14_parameter_servers.versions import late_updates, weight_versions


def test_published_versions():
    # arXiv:1806.03377: the first of n stages keeps n versions, the last one 1.
    assert [weight_versions("pipedream", 4, stage) for stage in range(4)] == [4, 3, 2, 1]
    # arXiv:2006.09503: two, however deep the pipeline is.
    assert [weight_versions("2bw", 4, stage) for stage in range(4)] == [2] * 4
    assert [weight_versions("flush", 4, stage) for stage in range(4)] == [1] * 4


def test_gradients_are_late_by_the_other_versions():
    assert [late_updates("pipedream", 4, stage) for stage in range(4)] == [3, 2, 1, 0]
    assert late_updates("2bw", 8, 7) == 1
    assert late_updates("flush", 8, 0) == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (("pipedreem", 4, 0), "did you mean 'pipedream'"),
        (("flush", 0, 0), "stages must be at least 1"),
        (("flush", 4, 4), "stage must be at most 3"),
        (("flush", 4, -1), "stage must be at least 0"),
    ],
)
def test_bad_stages_are_explained(wrong, message):
    with pytest.raises(ValueError, match=message):
        weight_versions(*wrong)
    with pytest.raises(ValueError, match=message):
        late_updates(*wrong)


_CALL = {"scheme": "pipedream", "stages": 4, "stage": 1}
_CHANGES = {"scheme": "flush", "stages": 8, "stage": 2}
PROBES = by_name(
    Probe(weight_versions, _CALL, _CHANGES),
    Probe(late_updates, _CALL, _CHANGES),
)
