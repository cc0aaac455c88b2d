"""What was recorded elsewhere can be told again, with its date and its versions."""

from importlib.resources import files

import pytest

from course_lib import recorded

FOLDER = files("course_lib.data") / "recorded"
DATA = {"launchers_worlds", "two_nodes_seconds"}  # numbers of other recordings
NAMES = sorted(file.name.removesuffix(".txt") for file in FOLDER.iterdir())


@pytest.mark.parametrize("name", [name for name in NAMES if name not in DATA])
def test_a_recording_says_when_and_with_what(name):
    head = recorded(name).splitlines()[:2]
    assert any(line.startswith("# ") and " 2026" in line for line in head)


def test_no_recording_has_a_path_of_the_machine_that_made_it():
    assert not [name for name in NAMES if "/tmp" in recorded(name) or "/home" in recorded(name)]


def test_another_name_is_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match="'slurm' was not recorded: take one of bitsandbytes, "):
        recorded("slurm")
