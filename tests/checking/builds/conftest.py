"""Ranks of a check have more time on a machine that does other work as well."""

import os
from types import SimpleNamespace

import pytest

from course_lib import launch
from course_lib.checking.builds import ranks

MOST_TIMES = 8


@pytest.fixture(autouse=True)
def time_on_a_busy_machine(monkeypatch):
    """More seconds the more processes wait for a processor; a refusal names those of the course."""

    def run(*args, timeout_s, **options):
        waiting = os.getloadavg()[0] / (os.cpu_count() or 1) / 2  # 2: those of the tests themselves
        return launch.run(*args, timeout_s=timeout_s * min(max(1, waiting), MOST_TIMES), **options)

    monkeypatch.setattr(ranks, "launch", SimpleNamespace(run=run, RankFailed=launch.RankFailed))
