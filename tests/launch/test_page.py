"""Whose line it is: the program's own, or that of Python, torch, another package or a launch."""

from course_lib.launch.page import Line, own_line

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


def test_the_innermost_own_line_is_named():
    assert {file: Line(file, 1, "f").own for file in PLACES} == PLACES
    files = ["/home/me/main.py", "/home/me/train.py", "/usr/lib/python3.11/selectors.py"]
    stack = tuple(Line(file, 7, "f") for file in files)
    assert own_line(stack).place == "train.py:7"
    assert own_line(stack[2:]) is None
    assert Line("C:\\Users\\me\\train.py", 7, "f").place == "train.py:7"
