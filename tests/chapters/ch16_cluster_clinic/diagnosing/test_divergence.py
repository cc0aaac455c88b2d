"""The first divergence over flight records: beside what was broken, and beside the doctor."""

import pytest
from pages import written

from course_lib.chapters.ch16_cluster_clinic.diagnosing.divergence import first_divergence, flights
from course_lib.chapters.ch16_cluster_clinic.diagnosing.judging import diagnose
from course_lib.chapters.ch16_cluster_clinic.diagnosing.reading import read

# In all of these, rank 1 of three was broken from the second of its updates on.
FOUND = {
    "none": None,
    "hang": (3, (1,)),
    "short": (3, (1,)),
    "collective": (3, (1,)),
    "order": (3, (1,)),
    "extra": (3, (1,)),
    "twice": (4, (1,)),  # it has called its third once more: at number 4 the others gather
    "shape": (3, ()),  # rank 0 was aborted before it left anything, and one stands against one
    "dtype": (3, ()),
}


@pytest.mark.parametrize("kind", FOUND)
def test_a_recorded_launch(kind, tmp_path):
    assert first_divergence(flights(kind)) == FOUND[kind]
    accused = diagnose(read(written(kind, tmp_path))).finding.ranks
    assert not FOUND[kind] or set(FOUND[kind][1]) <= set(accused)


def test_another_kind_was_not_recorded():
    with pytest.raises(ValueError, match="'kill' was not recorded: take one of none, hang"):
        flights("kill")


def test_no_records_and_one_record_agree():
    assert first_divergence({}) is None
    assert first_divergence({0: flights("none")[0]}) is None
