"""A /dev/shm of a size of its own."""

import shutil
import subprocess
import sys

import pytest

from course_lib.chapters.ch16_cluster_clinic import small_shm

SIZE = "import shutil; print(shutil.disk_usage('/dev/shm').total)"


@pytest.fixture(autouse=True)
def _possible():
    if reason := small_shm.obstacle():
        pytest.skip(reason)


@pytest.mark.parametrize("size_mib", [1, 64])
def test_it_has_the_size_asked_for_and_outside_nothing_changes(size_mib):
    before = shutil.disk_usage("/dev/shm").total
    assert int(small_shm.printed([sys.executable, "-c", SIZE], size_mib)) == size_mib * 2**20
    assert shutil.disk_usage("/dev/shm").total == before


def test_a_command_that_does_not_end_is_ended():
    with pytest.raises(subprocess.TimeoutExpired):
        small_shm.printed(["sleep", "30"], timeout_s=0.5)
