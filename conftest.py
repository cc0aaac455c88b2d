"""Keeps every test run away from the progress of whoever runs it, and makes checks strict."""

import atexit
import os
import shutil
import tempfile

import pytest

_home = tempfile.mkdtemp(prefix="course-test-")
os.environ["COURSE_HOME"] = _home
os.environ["COURSE_STRICT"] = "1"  # in the notebooks that nbval runs, a failed check is an error
# Several workers share the cores: two threads of one would mostly wait for those of the others.
os.environ.setdefault("OMP_NUM_THREADS", "1")
atexit.register(shutil.rmtree, _home, ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests run only when they are asked for."""
    if "slow" in config.getoption("markexpr"):
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="takes minutes: run it by `pytest -m slow`"))
