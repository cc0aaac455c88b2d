"""What is found instead of listed; figures are listed, and a missing one is named."""

import inspect
import re
from collections import Counter
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules, walk_packages

import pytest

import course_lib
from course_lib import chapters, figures
from course_lib.cli import commands
from course_lib.figures.paper.drawing import Drawing

ROOT = Path(__file__).parents[1]


def test_the_library_offers_its_packages_and_the_functions_of_notebooks():
    packages = {path.parent.name for path in (ROOT / "course_lib").glob("*/__init__.py")}
    functions = {"check", "hint", "predict", "expect", "quiz", "show_source"}
    assert packages | functions <= set(dir(course_lib))
    for name in packages | functions:
        assert getattr(course_lib, name).__name__.rpartition(".")[2] == name
    with pytest.raises(AttributeError, match="no attribute 'chek'"):
        _ = course_lib.chek


def test_each_command_has_its_parts_and_a_line_in_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for found in iter_modules(commands.__path__):
        command = import_module(f"{commands.__name__}.{found.name}")
        assert command.ABOUT and callable(command.add_options) and callable(command.run)
        assert f"\n| `course {found.name}" in readme, f"README.md: add `course {found.name}`"


def test_every_figure_is_drawn_by_a_test_and_a_shared_one_is_named_in_its_package():
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "figures").glob("*.py"))
    shared = [found.name for found in walk_packages(figures.__path__, "course_lib.figures.")]
    for module in map(import_module, (*shared, *chapters.files("figures.py"))):
        for name, value in vars(module).items():
            ours = inspect.isfunction(value) and value.__module__ == module.__name__
            drawn = inspect.signature(value).return_annotation if ours else None
            if drawn is Drawing and name[0] != "_" and ".engines." not in module.__name__:
                line = f"from {module.__name__} import {name}"
                if module.__name__ in shared:
                    assert getattr(figures, name, None) is value, (
                        f"figures/__init__.py: add `{line}`"
                    )
                as_named = re.findall(rf"\b{name} as (\w+)", tests)
                assert any(f"{it}(" in tests for it in (name, *as_named)), f"draw {name}"


def test_no_two_test_files_have_one_name():
    """They have no packages, so pytest knows them by their names alone."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("*.py"))
    assert [name for name, count in names.items() if count > 1 and name != "conftest.py"] == []
