"""The text of cells as a file that stands alone: what is kept, what is added, what is refused."""

import linecache
import sys
from types import ModuleType

import pytest

from course_lib.mine.cells import lines_of, sources_with_used, taken_from_the_course, text_of
from course_lib.problem import Problem
from course_lib.scratch import collectives


@pytest.fixture
def cell():
    """Run a text as a cell of one notebook; returns its namespace."""
    space = {"__name__": "__main__"}
    names = []

    def run(source):
        name = f"<cell of a test {len(names)}>"
        names.append(name)
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        exec(compile(source, name, "exec"), space)
        return space

    yield run
    for name in names:
        del linecache.cache[name]


@pytest.mark.parametrize(
    ("earlier", "source", "kept"),
    [
        (  # definitions, imports and the constants that are used, with their comments
            "",
            "import math\n# how far\nFAR = 3\nother = print('not kept')\n"
            "def part(x):\n    return math.floor(x / 2) + FAR\npart(4)\n",
            "import math\n# how far\nFAR = 3\ndef part(x):\n    return math.floor(x / 2) + FAR\n",
        ),
        (  # what another cell imported is imported again
            "import math as m\nfrom pathlib import Path",
            "def part(x):\n    return Path(str(m.floor(x)))\n",
            "from pathlib import Path\nimport math as m\n\n\n"
            "def part(x):\n    return Path(str(m.floor(x)))\n",
        ),
        (  # a class is known by its methods, static and wrapped ones as well
            "",
            "import functools\nclass part:\n    @staticmethod\n    @functools.lru_cache\n"
            "    def value():\n        return 3\n",
            "import functools\nclass part:\n    @staticmethod\n    @functools.lru_cache\n"
            "    def value():\n        return 3\n",
        ),
        (  # a decorated function is found
            "",
            "from course_lib.checked import checked\n@checked\ndef part(x: int): return x\n",
            "from course_lib.checked import checked\n@checked\ndef part(x: int): return x\n",
        ),
    ],
)
def test_the_text_of_a_cell_stands_alone(cell, earlier, source, kept):
    cell(earlier)
    assert text_of([cell(source)["part"]]) == kept
    exec(kept, {})


@pytest.mark.parametrize(
    ("earlier", "name"), [("def helper(x):\n    return x", "helper"), ("", "nowhere")]
)
def test_what_only_another_cell_defines_is_refused_by_its_name(cell, earlier, name):
    cell(earlier)
    space = cell(f"def mine(x):\n    return {name}(x)\n")
    with pytest.raises(Problem, match=rf"{name} comes from another cell.*move {name} into"):
        text_of([space["mine"]])


def test_what_is_at_home_in_a_private_module_is_imported_from_the_public_one(cell, monkeypatch):
    """As pathlib.Path is in Python 3.13, whose pathlib._local is gone in 3.14."""
    local = ModuleType("place._local")
    local.Here = type("Here", (), {"__module__": "place._local"})
    monkeypatch.setitem(sys.modules, "place._local", local)
    hidden = cell("from place._local import Here\n\ndef where():\n    return Here()\n")
    space = cell("def there():\n    return Here()\n")
    assert text_of([space["there"]]).startswith("from place._local import Here\n")
    public = ModuleType("place")
    public.Here = local.Here
    monkeypatch.setitem(sys.modules, "place", public)
    assert text_of([space["there"]]).startswith("from place import Here\n")
    assert text_of([hidden["where"]]).startswith("from place._local import Here\n")


def test_parts_of_several_cells_stand_one_after_the_other(cell):
    first = cell("def one():\n    return 1\n")["one"]
    second = cell("class Two:\n    def two(self):\n        return one() + 1\n")["Two"]
    text = text_of([first, second])
    assert text.index("def one") < text.index("class Two")
    alone = {}
    exec(text, alone)
    assert alone["Two"]().two() == 2


def test_lines_are_those_with_code():
    text = '"""A file."""\n\n# a comment\ndef f():\n    """Says it."""\n    return 1  # one\n\n'
    text += "X = 2\n"
    assert lines_of(text) == 3


def test_sources_come_with_what_they_use_of_their_module():
    found = "\n".join(sources_with_used(collectives, ["ring_reduce_scatter"]).values())
    assert "def _add_around" in found and "def _copy(" in found
    assert "def _copy_around" not in found
    assert not sources_with_used(collectives, ["ring_all_gather"], given=["ring_all_gather"])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from course_lib.scratch.ring import ring as other", {"ring"}),
        ("from course_lib.scratch import around\nx = around.ring(3)", {"ring"}),
        ("import course_lib.scratch.around as a\nclass B(a.ring): pass", {"ring"}),
        ("from course_lib.scratch.around import *", {"*"}),
        ("def f():\n    from course_lib.scratch import ring\n    return ring", {"ring"}),
        ("from course_lib import mine\nx = mine.get('ring', 'course')", {"ring"}),
        ("x = import_module('course_lib.scratch.around')", {"course_lib.scratch.around"}),
        (
            "from course_lib.scratch.around import Peers\ndef ring(x): return Peers.ring_of(x)",
            set(),
        ),
        ("import torch\ndef ring(x):\n    return self.ring(x), torch.ring", set()),
        ("def ring(x):\n    'As course_lib.scratch.around does it.'\n    return x", set()),
    ],
)
def test_what_a_text_takes_from_the_course_is_found(text, found):
    assert taken_from_the_course(text, {"ring"}) == found
