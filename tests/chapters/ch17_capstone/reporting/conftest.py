import pytest

from course_lib.checking import progress


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A folder of this test alone for progress, parts and words."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(progress, "_noted", set())
    return tmp_path / "home"
