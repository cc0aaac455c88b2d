"""Every test here must leave no process and no folder behind: checked after each of them."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from leftovers import no_folders_in, our_ranks

from course_lib import launch
from course_lib.launch import output


@pytest.fixture(scope="session", autouse=True)
def warm_server() -> None:
    assert launch.run(lambda: None) == [None, None]


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(output, "FIRST_S", 60.0)  # so that only the ranks print
    yield
    assert our_ranks() == []
    no_folders_in(folder)
