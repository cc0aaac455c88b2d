"""Ray Train starts the launchers' job: the losses of any other launcher, and nothing remains.

Without Ray most of it is skipped: `pip install -e ".[test,ray]"`.
"""

import json
import os
import signal
import subprocess
import sys
import time
import uuid

import pytest

from course_lib import launch
from course_lib.chapters.ch15_launchers_and_recovery.demos.launchers import job
from course_lib.chapters.ch15_launchers_and_recovery.demos.launchers.ray_train import ended_after
from tests.launch.leftovers import MARK, marked

MODULE = "course_lib.chapters.ch15_launchers_and_recovery.demos.launchers.ray_train"
with_ray = pytest.mark.engine("ray")


@with_ray
def test_ray_train_learns_what_other_launchers_do_and_leaves_nothing():
    mark = uuid.uuid4().hex
    environment = os.environ | {MARK: mark, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", MODULE, "--ranks", "2", "--json"]
    for _ in range(3):
        ended = subprocess.run(command, env=environment, capture_output=True, text=True)
        if "timed out during startup" not in ended.stderr:  # Ray's own limit, on a busy machine
            break
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    expected = launch.run(job.main, job.Options(), ranks=2)[0]
    assert found["world"] == 2
    assert found["losses"] == pytest.approx(expected.losses, rel=1e-6)
    deadline_s = time.monotonic() + 10
    while left := marked(mark):
        assert time.monotonic() < deadline_s, left
        time.sleep(0.1)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGALRM")
def test_the_limit_ends_the_block_whatever_is_made_of_it_and_leaves_the_clock_as_it_was():
    handler, clock = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    with pytest.raises(TimeoutError, match=r"no end within 0\.1 s"), ended_after(0.1):
        try:
            time.sleep(200)
        except TimeoutError:
            raise SystemError("returned a result with an exception set") from None
    with pytest.raises(SystemError, match="another"), ended_after(60):
        raise SystemError("another")
    assert signal.getsignal(signal.SIGALRM) is handler
    assert signal.getitimer(signal.ITIMER_REAL) == pytest.approx(clock, abs=5)
