"""Keeps a test run away from the progress of whoever runs it, makes checks strict, skips tests."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from course_lib.chapters.ch15_launchers_and_recovery.cluster.slurm import Slurm

_home = tempfile.mkdtemp(prefix="course-test-")
os.environ["COURSE_HOME"] = _home
os.environ["COURSE_STRICT"] = "1"  # in the notebooks that nbval runs, a failed check is an error
# Several workers share the cores: two threads of one would mostly wait for those of the others.
os.environ.setdefault("OMP_NUM_THREADS", "1")
INTERNALS_SINCE = (2, 13)  # the torch whose schedules, trackers and saved tensors were compared
atexit.register(shutil.rmtree, _home, ignore_errors=True)


@pytest.fixture(scope="module")
def slurm() -> "Iterator[Slurm]":
    """A Slurm of two nodes on this machine, which is up while the tests of one file run."""
    # here, so that other tests do not load it
    from course_lib.chapters.ch15_launchers_and_recovery import cluster

    with cluster.running() as slurm:
        yield slurm


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what this environment cannot run: see the markers in pyproject.toml."""
    if item.get_closest_marker("engine") and os.environ.get("COURSE_ENGINES") == "later":
        pytest.skip("an engine's test: .ci/engines runs it next, and skips none")
    missing = [name for mark in item.iter_markers("engine") for name in mark.args if _lacks(name)]
    if missing:
        pytest.skip(f'needs {", ".join(missing)}: see "engines" in pyproject.toml')
    if item.get_closest_marker("torch_internals"):
        _skip_under_an_older_torch()


def _lacks(name: str) -> bool:
    """Whether there is neither a package nor a program of this name."""
    return find_spec(name) is None and shutil.which(name) is None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests run only when they are asked for."""
    if "slow" in config.getoption("markexpr"):
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="takes minutes: run it by `pytest -m slow`"))


def _skip_under_an_older_torch() -> None:
    """Comparisons with torch's internals: they differ by release."""
    import torch  # here, so that tests of pure arithmetic run without loading it

    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < INTERNALS_SINCE:
        pytest.skip(f"compares with the internals of torch 2.13, this is {torch.__version__}")
