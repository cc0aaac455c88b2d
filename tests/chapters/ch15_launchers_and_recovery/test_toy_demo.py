"""The smallest job: by hand and by torchrun it learns what one process does."""

import pytest
from together import keep_mine

from course_lib import demos, launch
from course_lib.chapters.ch15_launchers_and_recovery.demos.toy import Start, judged

_START = Start("torchrun", "", 2, [1.0, 0.5], 1.0)


def test_both_launchers_learn_what_one_process_does(tmp_path, monkeypatch):
    keep_mine(tmp_path, monkeypatch, "launcher")
    result = demos.run("toy", ranks=2, stream=False, parts="mine")  # verify() compared them
    by_hand, by_torchrun = result.starts
    assert by_hand.launcher.startswith("by hand, with your rank_environment, launch_ranks")
    assert by_torchrun.launcher == "torchrun"
    assert by_hand.world == by_torchrun.world == 2
    assert (
        "by_hand 2 mine course_lib.chapters.ch15_launchers_and_recovery.demos.toy mine"
        in result.report()
    )


def test_a_learners_launcher_is_what_starts_the_ranks(tmp_path, monkeypatch):
    broken = (
        "env={**os.environ, **one}) for one in told]",
        "env=dict(os.environ)) for one in told]",
    )
    keep_mine(tmp_path, monkeypatch, "launcher", change=broken)
    with pytest.raises(launch.RankFailed, match=r"(?s)KeyError: 'RANK'"):
        demos.run("toy", ranks=2, stream=False, parts="mine")


def test_other_weights_and_other_ranks_are_refused():
    judged(2, [1.0, 0.5], [_START])
    with pytest.raises(AssertionError, match=r"torchrun: the last layer differs .* by 3\.5e-01"):
        judged(2, [1.0, 1.0], [_START])
    with pytest.raises(AssertionError, match="torchrun: ranks started is 2, predicted 3"):
        judged(3, [1.0, 0.5], [_START])
