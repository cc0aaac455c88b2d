import re

import pytest

from course_lib.checking.builds import compare


@pytest.fixture(autouse=True)
def patience(request, monkeypatch):
    """Ranks get a minute where none is to hang: a busy machine is no fault of an answer."""
    case = getattr(request.node, "callspec", None)
    if case and not re.search("nothing moves|still computes", case.params.get("words", "")):
        monkeypatch.setattr(compare, "LIMIT_S", 60.0)
