"""Where there can be no cluster, one sentence says why and what to do."""

import os
import sys

import pytest

from course_lib import cluster
from course_lib.cluster import configuration
from course_lib.problem import Problem


def test_missing_packages_are_named_with_the_line_that_installs_them(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(configuration, "program", lambda name: name if name == "sbatch" else None)
    reason = "munged and slurmctld and slurmd not found: on Debian or Ubuntu, apt-get install "
    with pytest.raises(Problem, match=f"{reason}.*slurm-wlm munge"):
        cluster.up()
    with pytest.raises(Problem, match=reason), cluster.running():
        pass
    with pytest.raises(Problem, match=reason):
        cluster.requeue()


def test_another_system_is_told_so(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cluster.obstacle() == (
        "Slurm's daemons are built for Linux and this is darwin: use a Linux machine"
    )


def test_administrators_programs_are_found_on_a_short_path(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    found = configuration.program("chroot")  # on Debian in /usr/sbin
    assert (found is None) != os.path.exists("/usr/sbin/chroot")
