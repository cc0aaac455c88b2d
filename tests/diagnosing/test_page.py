"""Whose line it is: that is the line that a learner can change."""

import pytest

from course_lib.diagnosing.page import Line, own_line

PLACES = {
    "/home/me/train.py": True,
    "C:\\Users\\me\\train.py": True,
    "/tmp/ipykernel_7/123.py": True,
    "<ipython-input-3-abc>": True,
    "/usr/lib/python3.11/selectors.py": False,
    "C:\\me\\venv\\Lib\\site-packages\\torch\\nn\\module.py": False,
    "/home/me/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py": False,
    "<string>": False,
    "<frozen runpy>": False,
    "/home/me/course/course_lib/launch/rank.py": False,
    "/home/me/course/course_lib/demos/ddp.py": True,
    "/home/me/venv/lib/python3.12/site-packages/course_lib/demos/ddp.py": True,  # installed
}


@pytest.mark.parametrize("file", PLACES)
def test_whose_line_it_is(file):
    assert Line(file, 1, "f").own is PLACES[file]


def test_the_innermost_own_line_is_named():
    files = ["/home/me/main.py", "/home/me/train.py", "/usr/lib/python3.11/selectors.py"]
    stack = tuple(Line(file, 7, "f") for file in files)
    assert own_line(stack).place == "train.py:7"
    assert own_line(stack[2:]) is None
    assert Line("C:\\Users\\me\\train.py", 7, "f").place == "train.py:7"
