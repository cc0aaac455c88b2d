"""A refusal of the course is short in a notebook; every other error keeps its traceback."""

import pytest
from jupyter_client.manager import start_new_kernel

from course_lib import short_errors


@pytest.fixture(scope="module")
def run():
    """Runs a cell in a real kernel, and gives the lines of its traceback."""
    manager, client = start_new_kernel(startup_timeout=200, kernel_name="python3")

    def run_cell(cell):
        found = []

        def hook(message):
            found.extend(message["content"].get("traceback", []))

        client.execute_interactive(cell, output_hook=hook, timeout=200)
        return found

    yield run_cell
    client.stop_channels()
    manager.shutdown_kernel(now=True)


MISTYPED = 'predict("k", "?", yours="12 GB")'
SENTENCE = "ValueError: yours must be a number, got '12 GB': write only the number, no unit"


def test_a_mistyped_argument_is_the_learners_line_and_a_sentence(run):
    lines = run(f"from course_lib import predict\n\n{MISTYPED}")
    assert lines[:2] == [f"line 3 of your code:  {MISTYPED}", SENTENCE]
    assert len(lines) == 3 and "%tb" in lines[2]


def test_the_whole_traceback_can_still_be_seen(run):
    run(f"from course_lib import predict\n{MISTYPED}")
    assert "predictions.py" in "\n".join(run("%tb"))
    run("%xmode Verbose")
    assert "predictions.py" in "\n".join(run(MISTYPED))
    run("%xmode Context")
    assert len(run(MISTYPED)) == 3


def test_the_line_is_that_of_the_learners_own_function(run):
    run("from course_lib.theory.step.batching import Batching")
    lines = run("def mine():\n    Batching(10, 0)\nmine()")
    assert lines[0] == "line 2 of your code:  Batching(10, 0)"


@pytest.mark.parametrize(
    "cell",
    [
        "int('x')",
        "raise ValueError('mine')",
        "from course_lib import launch\nlaunch.run()",
        # A bug inside the course: nobody there has refused anything.
        "from course_lib.checking import gaps\ngaps.in_words('x', '')",
        # Called by the course, and raised by the learner.
        "from course_lib.validation import derive\n"
        "class Bad:\n    @property\n    def x(self):\n        raise ValueError('x')\n"
        "derive(Bad(), x=1)",
    ],
)
def test_what_the_course_did_not_refuse_keeps_its_traceback(run, cell):
    lines = run(cell)
    assert lines and "line 1 of your code" not in lines[0] and "Traceback" in "\n".join(lines)


def test_outside_of_ipython_nothing_happens():
    short_errors.install()
    try:
        int("x")
    except ValueError as error:
        assert short_errors.short(error) == []
