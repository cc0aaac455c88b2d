"""A home of its own for each test's cluster, and a look at what is left of it."""

import os
import shutil
import tempfile

import pytest

from course_lib.chapters.ch15_launchers_and_recovery import cluster
from course_lib.chapters.ch15_launchers_and_recovery.cluster.configuration import learners
from course_lib.chapters.ch15_launchers_and_recovery.cluster.slurm import left_in


@pytest.fixture
def folder(monkeypatch):
    """The folder of the learner's cluster; afterwards there is neither folder nor process."""
    home = tempfile.mkdtemp(prefix="course_test_", dir="/tmp")  # short: sockets lie in it
    monkeypatch.setenv("COURSE_HOME", home)
    folder = learners()
    yield folder
    cluster.down()
    assert left_in(folder) == []
    assert os.listdir(home) == []
    shutil.rmtree(home)
