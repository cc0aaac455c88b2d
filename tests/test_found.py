"""What is found instead of listed; figures are listed, and a missing one is named."""

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules, walk_packages

import pytest

import course_lib
from course_lib import figures, panels
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


def test_a_panel_has_the_name_of_its_file():
    files = {path.stem for path in (ROOT / "course_lib" / "panels").glob("*_panel.py")}
    names = set(dir(panels)) - {"Panel"}
    assert {f"{name}_panel" for name in names} == files
    for name in names:
        build = getattr(panels, name)
        assert (build.__name__, inspect.signature(build).return_annotation) == (name, panels.Panel)
    with pytest.raises(AttributeError, match="no panel 'memroy'; the panels are accumulation, "):
        _ = panels.memroy


def test_a_panel_is_loaded_when_it_is_used():
    code = (
        "import sys\nfrom course_lib import panels\n"
        "loaded = lambda: [name[18:] for name in sys.modules if name.endswith('_panel')]\n"
        "print(loaded())\npanels.memory\nprint(loaded())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout == "[]\n['memory_panel']\n", found.stderr


def test_every_figure_is_named_in_its_package_and_drawn_by_a_test():
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "figures").glob("*.py"))
    made = set()
    for found in walk_packages(figures.__path__, "course_lib.figures."):
        module = import_module(found.name)
        for name, value in vars(module).items():
            ours = inspect.isfunction(value) and value.__module__ == module.__name__
            drawn = inspect.signature(value).return_annotation if ours else None
            if drawn is Drawing and name[0] != "_" and ".engines." not in module.__name__:
                made.add(name)
                line = f"from {module.__name__} import {name}"
                assert getattr(figures, name, None) is value, f"figures/__init__.py: add `{line}`"
                assert f"figures.{name}(" in tests, f"tests/figures: draw figures.{name}"
    named = {name for name, one in vars(figures).items() if inspect.isfunction(one)}
    assert made == {name for name in named if ".engines." not in vars(figures)[name].__module__}
